"""Writes what llama.cpp's converter makes of the tiny checkpoints in tests/data, a text file for each, and a small SentencePiece
tokenizer with the pieces it cuts texts into.

    pip install torch transformers sentencepiece gguf numpy
    python make.py LLAMA_CPP_SOURCES

A line is `key NAME TYPE VALUE` (floats as the bits of an f32, texts and arrays as SHA-256), `tensor NAME TYPE SHAPE SHA-256`, or
`near NAME NUMBERS` of a tensor that is computed. The tokenizers of those checkpoints are no real ones: the converter, which
knows tokenizers by a hash, is told that they split texts as GPT-2's does.
"""
import hashlib, json, runpy, subprocess, sys, tempfile
from pathlib import Path

HERE = Path(__file__).parent
DATA = HERE.parents[4] / "tests/data"
CASES = ["tiny/llama3", "tiny/llama-linear", "tiny/mistral", "tiny/mixtral", "tiny/qwen2-yarn", "tiny/qwen3", "tiny/qwen3-moe",
         "dense/gemma", "dense/gemma2", "dense/gemma3"]
TEXTS = ["Hello, world", "  two  spaces", "naïve façade", "12345 + 67.8", "a\nb\tc", "日本 и мир", "▁x", " leading", "the theory of the thing", "🙂 ok"]


def convert(peer, folder, out):
    sys.path[:0] = [peer, f"{peer}/gguf-py"]
    import transformers
    from conversion import base
    transformers.AutoTokenizer.from_pretrained = lambda folder, **_: transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    pieces = base.TextModel._set_vocab_sentencepiece
    def set_vocab(self):
        if not (self.dir_model / "tokenizer.model").exists() and self.hf_arch.startswith("Gemma"): return self._set_vocab_gpt2()
        return pieces(self)
    base.TextModel._set_vocab_sentencepiece = set_vocab
    sys.argv = ["convert_hf_to_gguf.py", "--outtype", "bf16", "--outfile", out, folder]
    runpy.run_path(f"{peer}/convert_hf_to_gguf.py", run_name="__main__")


def sha(data): return hashlib.sha256(data).hexdigest()


def describe(path):
    import gguf, numpy as np
    kinds = {"UINT32": "u32", "INT32": "i32", "FLOAT32": "f32", "BOOL": "bool", "STRING": "text"}
    reader = gguf.GGUFReader(path)
    for name, field in reader.fields.items():
        if name.startswith("GGUF."): continue
        value, kind = field.contents(), field.types[0].name
        if kind == "ARRAY":
            of = kinds[field.types[1].name]
            data = "\0".join(value).encode() if of == "text" else np.array(value, dtype={"i32": "<i4", "f32": "<f4"}[of]).tobytes()
            yield f"key {name} array-{of} {sha(data)}"
        elif kind == "FLOAT32": yield f"key {name} f32 {np.float32(value).view(np.uint32):08x}"
        elif kind == "STRING": yield f"key {name} text {sha(value.encode())}"
        else: yield f"key {name} {kinds[kind]} {str(value).lower()}"
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight": yield f"near {tensor.name} {' '.join(str(x) for x in tensor.data)}"
        else: yield f"tensor {tensor.name} {tensor.tensor_type.name} {'x'.join(str(n) for n in reversed(tensor.shape))} {sha(tensor.data.tobytes())}"


def pieces():
    """A tokenizer.json as transformers makes it of a SentencePiece model, and that library's own pieces."""
    import sentencepiece
    from tokenizers import Tokenizer, AddedToken, decoders, models, normalizers
    with tempfile.TemporaryDirectory() as room:
        corpus = "\n".join(Path(file).read_text() for file in ["/usr/share/common-licenses/Apache-2.0", "/usr/share/common-licenses/GPL-3"]) + "\n" + "\n".join(TEXTS * 3)
        Path(room, "text").write_text(corpus)
        sentencepiece.SentencePieceTrainer.Train(input=f"{room}/text", model_prefix=f"{room}/m", model_type="bpe", vocab_size=600, byte_fallback=True, normalization_rule_name="identity",
                                                 remove_extra_whitespaces=False, split_digits=True, character_coverage=0.999, num_threads=1)
        model = sentencepiece.SentencePieceProcessor(f"{room}/m.model")
    texts = [model.IdToPiece(i) for i in range(model.vocab_size())]
    vocab = {text: i for i, text in enumerate(texts)}
    # Each piece from every two pieces that make it, the best piece first.
    merges = [(vocab[text], vocab[text[:at]], vocab[text[at:]], text[:at], text[at:]) for text in texts[259:] for at in range(1, len(text))
              if text[:at] in vocab and text[at:] in vocab]
    merges.sort()
    tokenizer = Tokenizer(models.BPE(vocab, [(left, right) for *_, left, right in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in texts[:3]])
    made = json.loads(tokenizer.to_str())
    return {"tokenizer": made, "cut": [[text, model.Encode(text)] for text in TEXTS]}


if __name__ == "__main__":
    if len(sys.argv) == 4: convert(*sys.argv[1:])
    else:
        for case in CASES:
            with tempfile.TemporaryDirectory() as room:
                out = f"{room}/m.gguf"
                subprocess.run([sys.executable, __file__, sys.argv[1], str(DATA / case), out], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                (HERE / f"{Path(case).name}.txt").write_text("\n".join(describe(out)) + "\n")
        (HERE / "pieces.json").write_text(json.dumps(pieces(), ensure_ascii=False))
