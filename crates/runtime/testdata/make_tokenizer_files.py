"""Remakes tokenizer_files.json: small tokenizers as folders without a tokenizer.json have them, and what the libraries that made
them make of some texts. pip install sentencepiece tiktoken tokenizers; python make_tokenizer_files.py"""

import base64
import io
import json
import pathlib
import tempfile
import unicodedata

import sentencepiece
import tiktoken
from tiktoken import _educational
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
TEXTS = [
    "Hello, world! It's 12345 o'clock.", "  two   spaces \t tab\n\nlines ", "trailing  ", "\ufb01ne \u2167 \uff21\uff22 caf\u00e9 e\u0301", "\u4f60\u597d\uff0c\u4e16\u754c mixed \u6f22\u5b57abc",
    "CamelCase don't DON'T", "\U0001f600 emoji \u00e9", "def f(x):\n    return x ** 2", "a", " ",
]
CORPUS = (HERE.parent.parent / "text/testdata/make.py").read_text() + " the quick brown fox jumps over the lazy dog, she sells sea shells by the sea shore" * 40

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def spm(model_type="bpe", **settings):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in CORPUS.splitlines() if line.strip()), model_writer=model, vocab_size=600,
        model_type=model_type, byte_fallback=True, character_coverage=0.99, num_threads=1, minloglevel=2, **settings,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return model.getvalue(), [processor.encode(text) for text in TEXTS]


def trained():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"])
    tokenizer.train_from_iterator(CORPUS.splitlines(), trainer)
    return tokenizer


def ranks(pattern):
    ours = _educational.bpe_train(CORPUS[:4000], 400, pattern, visualise=None)
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ours, special_tokens={})
    # As Qwen's tokenizer does before.
    texts = [unicodedata.normalize("NFC", text) if pattern == QWEN else text for text in TEXTS]
    return ours, [encoding.encode(text, disallowed_special=()) for text in texts]


def b64(data):
    return base64.b64encode(data).decode()


def lines(ours):
    return "".join(f"{b64(token)} {rank}\n" for token, rank in sorted(ours.items(), key=lambda item: item[1])).encode()


def main():
    cases = {}
    model, ids = spm(normalization_rule_name="identity", remove_extra_whitespaces=False)
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>", "added_tokens_decoder": {"600": {"content": "<|im_end|>", "special": True}}}
    cases["llama"] = {"files": {"tokenizer.model": b64(model)}, "config": config, "ids": ids}
    # A few rules of NFKC: all of them are a quarter of a megabyte.
    rules = {"\ufb01": "fi", "\u2167": "VIII", "\uff21": "A", "\uff22": "B", "\t": " ", "\n": " ", "\u3000": " "}
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as tsv:
        tsv.write("".join(f"{ord(of):x}\t{' '.join(f'{ord(c):x}' for c in to)}\n" for of, to in rules.items()))
        tsv.flush()
        model, ids = spm(normalization_rule_tsv=tsv.name, remove_extra_whitespaces=True)
        unigram, unigram_ids = spm("unigram", normalization_rule_tsv=tsv.name, remove_extra_whitespaces=True)
    cases["unigram normalized"] = {"files": {"tokenizer.model": b64(unigram)}, "config": None, "ids": unigram_ids}
    unigram, unigram_ids = spm("unigram", normalization_rule_name="identity", remove_extra_whitespaces=False)
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False}
    cases["unigram"] = {"files": {"tokenizer.model": b64(unigram)}, "config": config, "ids": unigram_ids}
    cases["normalized"] = {"files": {"tokenizer.model": b64(model)}, "config": None, "ids": ids}
    ours, ids = ranks(QWEN)
    cases["qwen"] = {"files": {"qwen.tiktoken": b64(lines(ours))}, "config": {"tokenizer_class": "QWenTokenizer"}, "ids": ids}
    ours, ids = ranks(KIMI)
    cases["kimi"] = {"files": {"tiktoken.model": b64(lines(ours))}, "config": {"tokenizer_class": "TikTokenTokenizer"}, "ids": ids}
    ours, ids = ranks(TEKKEN)
    vocab = [{"rank": rank, "token_bytes": b64(token), "token_str": None} for token, rank in sorted(ours.items(), key=lambda item: item[1])]
    tekken = {"config": {"pattern": TEKKEN, "default_vocab_size": len(vocab) + 20, "default_num_special_tokens": 20, "version": "v3"}, "vocab": vocab}
    cases["tekken"] = {"files": {"tekken.json": b64(json.dumps(tekken).encode())}, "config": None, "ids": [[id + 20 for id in row] for row in ids]}
    tokenizer = trained()
    saved = json.loads(tokenizer.to_str())["model"]
    merges = "#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in saved["merges"])
    files = {"vocab.json": b64(json.dumps(saved["vocab"]).encode()), "merges.txt": b64(merges.encode())}
    cases["gpt2"] = {"files": files, "config": {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}, "ids": [tokenizer.encode(text).ids for text in TEXTS]}
    path = HERE / "tokenizer_files.json"
    path.write_text(json.dumps({"texts": TEXTS, "cases": cases}, separators=(",", ":"), ensure_ascii=False) + "\n")


main()
