"""Makes the tiny CLIP and SigLIP models in this folder, whose vectors of texts and of pictures are of one space, and what the
transformers library computes with them.

    pip install torch transformers safetensors tokenizers sentencepiece protobuf pillow
    OMP_NUM_THREADS=1 python make_vectors.py          # all, or: python make_vectors.py clip

Each folder has a random model of the library's own class as the library saves it, its tokenizer and its image processor's settings.
`golden.json` has `texts`, each with its `tokens` and the `vector` that `get_text_features` makes of them, and `pictures` (of so many
pixels; `texture` of make_vision.py draws them) with that of `get_image_features`. Of the Qwen3-VL that make_qwen.py has made
`vectors.json` has, for each of its conversations, the row behind the last layer's norm of the last token: what Qwen3-VL-Embedding makes
vectors of.
"""
import json, shutil, sys

import sentencepiece, torch, transformers as t
from tokenizers import pre_tokenizers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.siglip.tokenization_siglip import SiglipTokenizer
from transformers.models.siglip2.tokenization_siglip2 import Siglip2Tokenizer

from make_vision import HERE, texture

TEXTS = ["a photo of a cat", "Two DOGS,  and (perhaps) a bird!", "x", "a very long text about this and that, of which the end is lost because there is no room for it", "it's 3 o'clock"]
PICTURES = [(32, 32), (57, 40), (9, 64), (150, 90)]
SAID = ["a photo of a cat and a dog", "this is the long text of that bird", "there is no room for it", "it is three o clock", "perhaps two dogs and about a very lost end because of which"] * 4


def clip_words(folder):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: index for index, letter in enumerate(alphabet + [letter + "</w>" for letter in alphabet])}
    merges = [("t", "h"), ("a", "t</w>"), ("th", "e</w>"), ("o", "f</w>"), ("p", "h"), ("i", "t</w>"), ("'", "s</w>")]
    for a, b in merges: words[a + b] = len(words)
    for token in ("<|startoftext|>", "<|endoftext|>"): words[token] = len(words)
    return t.CLIPTokenizer(vocab=words, merges=merges, model_max_length=24)


def siglip_words(folder):
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(SAID), model_prefix=str(folder / "spiece"), vocab_size=44, model_type="unigram", pad_id=-1, bos_id=-1, eos_id=1, unk_id=2, control_symbols=["<pad>"], normalization_rule_name="identity", minloglevel=2, num_threads=1)
    (folder / "spiece.vocab").unlink()
    return SiglipTokenizer(str(folder / "spiece.model"), model_max_length=16)


def siglip2_words(folder):
    words = {token: index for index, token in enumerate(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"] + [f"<0x{byte:02X}>" for byte in range(256)])}
    for letter in "▁abcdefghiklmnoprstuvwxy": words[letter] = len(words)
    merges = [("▁", "a"), ("t", "h"), ("a", "t"), ("▁", "o"), ("i", "s"), ("th", "e")]
    for a, b in merges: words[a + b] = len(words)
    tokenizer = Siglip2Tokenizer(vocab=words, merges=merges, model_max_length=16, padding_side="right", model_input_names=["input_ids"])
    from tokenizers import processors
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", pair="$A <eos> $B <eos>", special_tokens=[("<eos>", 1)])
    return tokenizer


SIGLIP = dict(vision=dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3, image_size=30, patch_size=8),
              text=dict(hidden_size=48, intermediate_size=72, num_hidden_layers=2, num_attention_heads=3, max_position_embeddings=16))
CASES = {
    "clip": dict(config=t.CLIPConfig, model=t.CLIPModel, dtype=torch.float16, words=clip_words, more=dict(projection_dim=20),
                 vision=dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3, image_size=32, patch_size=8),
                 text=dict(hidden_size=32, intermediate_size=72, num_hidden_layers=3, num_attention_heads=2, max_position_embeddings=24, eos_token_id=2),
                 image=lambda: CLIPImageProcessorPil(size=dict(shortest_edge=32), crop_size=dict(height=32, width=32))),
    # Frames with pixels behind their last patch.
    "siglip": dict(SIGLIP, config=t.SiglipConfig, model=t.SiglipModel, dtype=torch.float16, words=siglip_words, more={}, image=lambda: SiglipImageProcessorPil(size=dict(height=30, width=30))),
    "siglip2": dict(SIGLIP, config=t.SiglipConfig, model=t.SiglipModel, dtype=torch.bfloat16, words=siglip2_words, more={}, image=lambda: SiglipImageProcessorPil(size=dict(height=30, width=30), resample=2)),
}


def make(name):
    case = CASES[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True); folder.mkdir()
    words = case["words"](folder)
    torch.manual_seed(7)
    config = case["config"](text_config=dict(case["text"], vocab_size=len(words)), vision_config=dict(case["vision"]), **case["more"])
    config._attn_implementation = "eager"
    model = case["model"](config).float().eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            x = torch.randn(p.shape)
            if "norm" in key: x = 0.2 * x + (0 if key.endswith("bias") else 1)
            elif key.endswith("bias"): x = 0.2 * x
            elif "patch_embedding" in key: x = 0.06 * x
            elif "position_embedding" in key or "class_embedding" in key: x = 0.3 * x
            elif "logit" not in key: x = 0.2 * x
            p.copy_(x.to(case["dtype"]).float())
        image = case["image"]()
        how = dict(padding=True) if name == "clip" else dict(padding="max_length")
        texts = []
        for text in TEXTS:
            inputs = words([text.lower() if name == "siglip2" else text], truncation=True, return_tensors="pt", **how)
            made = model.get_text_features(input_ids=inputs["input_ids"])
            texts.append(dict(text=text, tokens=inputs["input_ids"][0].tolist(), vector=[round(float(n), 6) for n in getattr(made, "pooler_output", made)[0]]))
        pictures = []
        for size in PICTURES:
            made = model.get_image_features(pixel_values=image([texture(*size)], return_tensors="pt")["pixel_values"])
            pictures.append(dict(size=size, vector=[round(float(n), 6) for n in getattr(made, "pooler_output", made)[0]]))
    model.to(case["dtype"]).save_pretrained(folder)
    words.save_pretrained(folder)
    settings = json.loads(image.to_json_string())
    settings["image_processor_type"] = settings["image_processor_type"].removesuffix("Pil")
    if name == "clip":
        # As OpenAI's own files say it.
        settings = dict(crop_size=32, do_center_crop=True, do_normalize=True, do_resize=True, feature_extractor_type="CLIPFeatureExtractor", image_mean=settings["image_mean"], image_std=settings["image_std"], resample=3, size=32)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (folder / "golden.json").write_text(json.dumps(dict(texts=texts, pictures=pictures)) + "\n")
    print(name, [len(one["tokens"]) for one in texts], [one["vector"][:3] for one in texts[:2] + pictures[:2]])


def read_last(name):
    folder = HERE / name
    model = t.Qwen3VLForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").float().eval()
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    image = Qwen2VLImageProcessorPil(**{key: value for key, value in settings.items() if key != "image_processor_type"})
    vectors = []
    with torch.no_grad():
        for talk in json.loads((folder / "golden.json").read_text()):
            seen = image([texture(*part) for message in talk["messages"] for part in message["parts"] if not isinstance(part, str)], return_tensors="pt")
            tokens = torch.tensor([talk["tokens"]])
            rows = model.model(input_ids=tokens, use_cache=False, mm_token_type_ids=(tokens == model.config.image_token_id).int(), **seen).last_hidden_state
            vectors.append([round(float(n), 5) for n in rows[0, -1]])
    (folder / "vectors.json").write_text(json.dumps(vectors) + "\n")
    print(name, [vector[:3] for vector in vectors])


if __name__ == "__main__":
    for name in sys.argv[1:] or [*CASES, "qwen3_vl"]: (make if name in CASES else read_last)(name)
