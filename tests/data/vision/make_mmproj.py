"""Makes of the tiny models that see in this folder what llama.cpp's converters make of them: `text.gguf` and `mmproj.gguf` beside each.

    pip install torch transformers safetensors gguf numpy
    python make_mmproj.py LLAMA_CPP_SOURCES          # all, or with names behind it

The converters know models as they are published, so each is first put so: tensors by the names they had before the library's fifth
version, the processor's settings in full. Tokenizers, which the converter knows by a hash, are said to split texts as GPT-2's does. Of
what a published model has and a tiny one has otherwise (Qwen's windows and bounds of pixels, Pixtral's longest side, which of Gemma's layers
see windows) the file is told by keys that llama.cpp has for others. LLaVA's tower is converted by the script that is older than the converter; it reads it as a model of its own.
"""
import json, runpy, shutil, subprocess, sys, tempfile
from pathlib import Path

HERE = Path(__file__).parent
CASES = ["smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "llava", "llava_next", "pixtral", "mistral3"]
CLIP_COLORS = [[0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]]


def convert(peer, folder, out, *more):
    """In a process of its own: the converter with what it must be told."""
    sys.path[:0] = [peer, f"{peer}/gguf-py"]
    import gguf, transformers
    from conversion import base
    transformers.AutoTokenizer.from_pretrained = lambda folder, **_: transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    pieces = base.TextModel._set_vocab_sentencepiece
    base.TextModel._set_vocab_sentencepiece = lambda self, *more, **named: self._set_vocab_gpt2() if self.hf_arch.startswith("Gemma") else pieces(self, *more, **named)
    # What stands behind the layers is numbered like them, and there are fewer of those than that.
    names = gguf.get_tensor_name_map
    gguf.get_tensor_name_map = lambda arch, blocks: names(arch, max(blocks, 4))
    sys.argv = ["convert_hf_to_gguf.py", "--outfile", out, *more, folder]
    runpy.run_path(f"{peer}/convert_hf_to_gguf.py", run_name="__main__")


def convert_clip(peer, folder, out):
    """LLaVA's tower, by the older script: of CLIP's class, which had a model inside once."""
    import torch, transformers
    from safetensors.torch import load_file
    sys.path[:0] = [f"{peer}/gguf-py"]
    class Outside(torch.nn.Module):
        def __init__(self, inside):
            super().__init__()
            self.vision_model = inside
    load = transformers.CLIPVisionModel.from_pretrained
    transformers.CLIPVisionModel.from_pretrained = lambda folder: Outside(load(folder).float())
    whole, weights = json.loads(Path(folder, "config.json").read_text()), load_file(f"{folder}/model.safetensors")
    with tempfile.TemporaryDirectory() as room:
        from safetensors.torch import save_file
        vision = dict(whole["vision_config"], vision_feature_layer=whole["vision_feature_layer"], architectures=["CLIPVisionModel"])
        # As what was LLaVA 1.6 says it, whose projector's file has the end of lines too.
        if "image_grid_pinpoints" in whole: vision.update(image_grid_pinpoints=whole["image_grid_pinpoints"], mm_patch_merge_type="spatial_unpad", image_aspect_ratio="anyres")
        Path(room, "config.json").write_text(json.dumps(vision))
        save_file({name.replace("vision_tower.", ""): tensor for name, tensor in weights.items() if name.startswith("vision_tower.")}, f"{room}/model.safetensors", metadata={"format": "pt"})
        projector = {name: tensor.float() for name, tensor in weights.items() if name.startswith("multi_modal_projector.")}
        torch.save(dict(projector, **{"model.image_newline": weights["image_newline"].float()} if "image_newline" in weights else {}), f"{room}/llava.projector")
        sys.argv = ["convert", "-m", room, "--clip-model-is-vision", "--llava-projector", f"{room}/llava.projector", "--output-dir", room]
        runpy.run_path(f"{peer}/tools/mtmd/legacy-models/convert_image_encoder_to_gguf.py", run_name="__main__")
        shutil.copy(f"{room}/mmproj-model-f16.gguf", out)


def published(case, folder):
    """The model as it is published, of its folder here."""
    from safetensors.torch import load_file, save_file
    shutil.copytree(HERE / case, folder, ignore=shutil.ignore_patterns("*.gguf", "golden*"))
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    bare = lambda name: name.removeprefix("model.")
    if case == "gemma3": weights = {bare(name).replace("vision_tower.", "vision_tower.vision_model."): tensor for name, tensor in weights.items()}
    if case.startswith("llava"): weights = {bare(name).replace("vision_tower.vision_model.", "vision_tower."): tensor for name, tensor in weights.items()}
    if case == "llava_next": config["architectures"] = ["LlavaForConditionalGeneration"]
    if case == "smolvlm": config["text_config"]["architectures"] = ["VLlama3ForCausalLM"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    settings = {}
    for name in ["processor_config.json", "preprocessor_config.json"]:
        if (folder / name).exists():
            found = json.loads((folder / name).read_text())
            settings.update(found.pop("image_processor", {}), **found)
            (folder / name).unlink()
    for key, colors in zip(["image_mean", "image_std"], CLIP_COLORS): settings.setdefault(key, colors)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return config, settings


def add_keys(peer, path, keys):
    """Writes the file again, with more whole numbers in its metadata."""
    with tempfile.TemporaryDirectory() as room:
        made = f"{room}/made.gguf"
        code = f"""
import sys; sys.path.insert(0, {peer!r} + "/gguf-py")
import gguf
reader = gguf.GGUFReader({str(path)!r})
writer = gguf.GGUFWriter({made!r}, reader.get_field("general.architecture").contents())
for name, field in reader.fields.items():
    if name.startswith("GGUF.") or name == "general.architecture": continue
    kind = field.types[0]
    writer.add_key_value(name, field.contents(), kind, sub_type=field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
for name, value in {keys!r}.items(): writer.add_uint32(name, value)
for tensor in reader.tensors: writer.add_tensor(tensor.name, tensor.data, raw_shape=list(tensor.data.shape), raw_dtype=tensor.tensor_type)
writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()
"""
        subprocess.run([sys.executable, "-c", code], check=True)
        shutil.copy(made, path)


def make(peer, case):
    def run(*what): subprocess.run([sys.executable, __file__, *map(str, what)], check=True, stdout=subprocess.DEVNULL)
    out = HERE / case
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room, case)
        config, settings = published(case, folder)
        kind = "f16" if config["dtype"] == "float16" else "bf16"
        run("--convert", peer, folder, out / "text.gguf", "--outtype", kind)
        if case.startswith("llava"): run("--convert-clip", peer, folder, out / "mmproj.gguf")
        else: run("--convert", peer, folder, out / "mmproj.gguf", "--outtype", kind, "--mmproj")
    if case.startswith("qwen"):
        size = settings.get("size", {})
        keys = {"clip.vision.image_min_pixels": settings.get("min_pixels", size.get("shortest_edge")), "clip.vision.image_max_pixels": settings.get("max_pixels", size.get("longest_edge"))}
        if case == "qwen2_5_vl": keys["clip.vision.window_size"] = config["vision_config"]["window_size"]
        add_keys(peer, out / "mmproj.gguf", keys)
    # Every sixth layer sees everything in what is published, and here every second.
    if case == "gemma3": add_keys(peer, out / "text.gguf", {"gemma3.attention.sliding_window_pattern": 2})
    if case == "pixtral": add_keys(peer, out / "mmproj.gguf", {"clip.vision.preproc_image_size": settings["size"]["longest_edge"]})
    print(case, *((out / name).stat().st_size for name in ("text.gguf", "mmproj.gguf")))


if __name__ == "__main__":
    how, *rest = sys.argv[1:]
    if how == "--convert": convert(*rest)
    elif how == "--convert-clip": convert_clip(*rest)
    else:
        for case in rest or CASES: make(how, case)
