"""Records which matrices the transformers library takes for the embedding and the head of each tiny checkpoint.

    pip install torch transformers safetensors
    python make_tied.py                  # writes tied.json

Each folder whose class the library has and that has a head over the vocabulary is loaded with its `tie_word_embeddings` absent, true and false (a multimodal one with both
of its keys), and with four sets of stored matrices: the embedding alone, the head alone, both with the same numbers, and both with
other numbers (the head is the embedding with its rows turned by one). `tied.json` has for each folder the two names, and for each
setting and set the pair of matrices that the loaded model uses, `input/output`: `e` is the stored embedding, `h` the stored head,
and `-` is a matrix of random numbers, because the files have none.
"""
import itertools, json, sys, tempfile, warnings
from pathlib import Path

import torch, transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMaskedLM

HERE = Path(__file__).parent
GROUPS = ["tiny", "dense", "mixtures", "states", "multimodal", "encoders"]
EMBEDDINGS = ["embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight", "backbone.embeddings.weight", "embeddings.tok_embeddings.weight"]
HEADS = ["lm_head.weight", "embed_out.weight", "cls.predictions.decoder.weight", "decoder.weight"]
SETS = ["embedding", "head", "same", "other"]
KEY = "tie_word_embeddings"


def model_of(folder, config):
    kind = json.loads((folder / "config.json").read_text()).get("architectures", [""])[0]
    if kind.endswith("ForMaskedLM"):
        return AutoModelForMaskedLM
    if "text_config" in json.loads((folder / "config.json").read_text()) or "vision_config" in vars(config):
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def stored_names(folder, stored):
    embeddings = [name for name in stored if any(name.endswith(end) for end in EMBEDDINGS) and "vision" not in name and "per_layer" not in name]
    if len(embeddings) != 1:
        return None
    heads = [name for name in stored if any(name == end or name.endswith("." + end) for end in HEADS) and stored[name].dim() == 2]
    if heads:
        return embeddings[0], heads[0]
    if embeddings[0].startswith("language_model.model."):
        return embeddings[0], "language_model.lm_head.weight"
    if folder.name.startswith("bert"):
        return embeddings[0], "cls.predictions.decoder.weight"
    return embeddings[0], "embed_out.weight" if "embed_in" in embeddings[0] else "lm_head.weight"


def name_of(matrix, embedding, head):
    for name, stored in [("e", embedding), ("h", head)]:
        if matrix.shape == stored.shape and torch.equal(matrix.float(), stored.float()):
            return name
    return "-"


def outcome(folder, settings, stored, names, which):
    embedding = stored[names[0]]
    head = embedding if which == "same" else torch.roll(embedding, 1, 0)
    kept = {name: tensor for name, tensor in stored.items() if name not in names}
    if which != "head":
        kept[names[0]] = embedding.clone()
    if which != "embedding":
        kept[names[1]] = head.clone()
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "config.json").write_text(json.dumps(settings))
        save_file(kept, Path(work) / "model.safetensors", metadata={"format": "pt"})
        model = model_of(folder, AutoConfig.from_pretrained(work)).from_pretrained(work, dtype=torch.float32)
    output = model.get_output_embeddings()
    vocab = embedding.shape[0]
    return "/".join(name_of(part.weight[:vocab], embedding, head) for part in (model.get_input_embeddings(), output))


def record(folder):
    settings = json.loads((folder / "config.json").read_text())
    stored = load_file(folder / "model.safetensors")
    names = stored_names(folder, stored)
    if names is None:
        return None
    nested = "text_config" in settings
    row = dict(folder=f"{folder.parent.name}/{folder.name}", embedding=names[0], head=names[1], outcomes={})
    for outer, inner in itertools.product(["absent", "true", "false"], ["absent", "true", "false"] if nested else ["absent"]):
        changed = json.loads(json.dumps(settings))
        for where, said in [(changed, outer)] + ([(changed["text_config"], inner)] if nested else []):
            where.pop(KEY, None)
            if said != "absent":
                where[KEY] = said == "true"
        label = f"{outer} {inner}" if nested else outer
        row["outcomes"][label] = [outcome(folder, changed, stored, names, which) for which in SETS]
    return row


def main():
    transformers.logging.set_verbosity(50)
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    rows, only = [], sys.argv[1:]
    for group in GROUPS:
        for folder in sorted((HERE / group).iterdir()):
            if not (folder / "config.json").exists() or not (folder / "model.safetensors").exists() or (only and folder.name not in only):
                continue
            if group == "encoders" and "ForMaskedLM" not in (folder / "config.json").read_text():
                continue  # It has no head over the vocabulary.
            try:
                row = record(folder)
            except Exception as error:  # A class that the library does not have.
                print(f"{group}/{folder.name}: left out: {type(error).__name__}: {str(error)[:150]!r}", file=sys.stderr)
                continue
            if row is None:
                print(f"{group}/{folder.name}: no single embedding", file=sys.stderr)
                continue
            print(row["folder"], row["embedding"], row["head"], row["outcomes"])
            rows.append(row)
    lines = ",\n".join(json.dumps(row) for row in rows)
    if not only:
        (HERE / "tied.json").write_text(f'{{"transformers": "{transformers.__version__}", "sets": {json.dumps(SETS)}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
