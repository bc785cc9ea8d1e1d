"""Small tokenizers of each kind, trained on a few sentences, written as the published files are."""
import json, math, struct
from collections import Counter
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of China? The capital of China is Beijing. Explain gravity.",
    "Gravity is a force that attracts two bodies towards each other. It gives weight to physical objects and is responsible for the movement of planets around the sun.",
    "A server reads the weights once and shares them between requests, so that a second request costs little more than the first one did.",
    "Given a web search query, retrieve relevant passages that answer the query, and put the best of them first; the rest may follow in any order.",
    "Rows of one batch never wait for each other: a short text leaves as soon as it is done, and the next one takes its place.",
    "Every text has the same vector alone, beside others, and in any order; this is what the tests in this folder are here to show.",
    "Numbers such as 3.14, 42 and 1,000 are cut into pieces, and so are names, links and words that nobody has written before.",
    "The cat and the dog sat in here. A bird sang over there, loud and clear, until the end of the day.",
]
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def truncated_and_padded(tokenizer):
    """The published all-MiniLM-L6-v2 file has a truncation and a fixed padding in it, which sentence-transformers overrides."""
    tokenizer.enable_truncation(20); tokenizer.enable_padding(length=20, pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")


def joined_pieces(words, count, join=lambda a, b: a + b):
    """The alphabet of `words` (each a tuple of symbols), then the `count` most frequent joins of two, with how often each occurs.
    Written out here because the library's trainers for these kinds do not give the same pieces every time."""
    words = Counter(words)
    pieces = {s: sum(n for word, n in words.items() for t in word if t == s) for s in sorted({s for word in words for s in word})}
    while len(pieces) < count:
        pairs = Counter()
        for word, n in words.items():
            for pair in zip(word, word[1:]): pairs[pair] += n
        (a, b), often = min(pairs.items(), key=lambda p: (-p[1], p[0]))
        pieces[join(a, b)] = often
        joined = Counter()
        for word, n in words.items():
            out, i = [], 0
            while i < len(word):
                both = word[i:i + 2] == (a, b)
                out.append(join(a, b) if both else word[i]); i += 2 if both else 1
            joined[tuple(out)] += n
        words = joined
    return pieces


@cache
def wordpiece_vocabulary(size, specials, lowercase):
    normalizer, splitter = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    words = [w for text in CORPUS + ["京 é"] for w, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
    pieces = joined_pieces([(w[0], *("##" + c for c in w[1:])) for w in words], size - len(specials), lambda a, b: a + b.removeprefix("##"))
    return {t: i for i, t in enumerate([*specials, *pieces])}


def wordpiece(size=180, specials=tuple(BERT_SPECIALS), lowercase=True, cls="[CLS]", sep="[SEP]", pair_separators=1):
    vocabulary = wordpiece_vocabulary(size, specials, lowercase)
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(list(specials))
    pair = f"{cls}:0 $A:0 {sep}:0 " + (f"$B:1 {sep}:1" if pair_separators == 1 else f"{sep}:0 $B:0 {sep}:0")
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{cls}:0 $A:0 {sep}:0", pair=pair, special_tokens=[(t, tokenizer.token_to_id(t)) for t in (cls, sep)])
    return tokenizer


QWEN_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def qwen_pieces():
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_bpe(size, first=(), last=(), pieces=None, words=(), corpus=()):
    """Byte-level BPE: special tokens at the front (roberta, modernbert) or behind the rest (qwen). `words` get merges of their own."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pieces or pre_tokenizers.ByteLevel(add_prefix_space=False)
    corpus = CORPUS + list(corpus) + [w for w in words for _ in range(60)]
    trained.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size - len(last), special_tokens=list(first), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer = Tokenizer.from_str(trained.to_str())
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in last])
    tokenizer.decoder = decoders.ByteLevel()
    for word in words: assert len(tokenizer.encode(word, add_special_tokens=False).ids) == 1, word
    return tokenizer


# The character map of sentencepiece models: a double array over UTF-8 bytes and the texts its leaves point to.
CHARACTER_MAP = {"\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "ﬁ": "fi", "№": "No", "Ａ": "A", "①": "1", "é": "é", "\u200b": ""} | {chr(0xFF21 + i): chr(65 + i) for i in range(26)}


def character_map(pairs):
    """`precompiled_charsmap` for `pairs`, in Darts-clone's layout as sentencepiece writes it."""
    trie, texts = {}, b""
    for source, target in sorted(pairs.items()):
        node = trie
        for byte in source.encode(): node = node.setdefault(byte, {})
        node[0] = len(texts)
        texts += target.encode() + b"\0"
    units, used = [0] * 256, {0}

    def place(at, node):
        # A base is what is xored with a byte to find its child; the position itself is xored into it.
        base = 1
        while any((base ^ byte) in used for byte in node) or (base ^ at) >= 1 << 21: base += 1
        while len(units) <= base | 255: units.extend([0] * 256)
        units[at] |= (base ^ at) << 10 | (1 << 8 if 0 in node else 0)
        used.update(base ^ byte for byte in node)
        for byte, child in node.items():
            if byte == 0: units[base] = child | 1 << 31
            else: units[base ^ byte] |= byte
        for byte, child in node.items():
            if byte: place(base ^ byte, child)

    place(0, trie)
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + texts


@cache
def unigram_pieces(size):
    pieces = joined_pieces([tuple("▁" + w) for text in CORPUS for w in text.split()], size)
    total = sum(pieces.values())
    return [(piece, round(math.log(often / total), 5)) for piece, often in sorted(pieces.items(), key=lambda p: (-p[1], p[0]))]


def unigram(first, last, unk, template, pair, size=170, newer=False):
    """XLM-R's and DeBERTa's kind: a character map, words with a lower one eighth block before them, most likely pieces."""
    pieces = [(t, 0.0) for t in first] + unigram_pieces(size) + [(t, 0.0) for t in last]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=list(first).index(unk), byte_fallback=False))
    normal = normalizers.Precompiled(character_map(CHARACTER_MAP))
    if newer:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normal, normalizers.Replace(Regex(" {2,}"), " ")])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    else:
        tokenizer.normalizer = normal
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)])
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    tokenizer.add_special_tokens([t for t in (*first, *last)])
    used = sorted({word.split(":")[0] for word in (template + " " + pair).split() if not word.startswith("$")})
    tokenizer.post_processor = processors.TemplateProcessing(single=template, pair=pair, special_tokens=[(t, tokenizer.token_to_id(t)) for t in used])
    return tokenizer


def gemma(size):
    """Gemma's kind: merges over characters with spaces as lower one eighth blocks, bytes for what is unknown, <bos> and <eos> around."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained.train_from_iterator([" " + t for t in CORPUS], trainers.BpeTrainer(vocab_size=size - 256, special_tokens=specials, show_progress=False))
    state = json.loads(trained.to_str())
    learned = sorted((i, t) for t, i in state["model"]["vocab"].items() if i >= len(specials))
    vocabulary = {t: i for i, t in enumerate([*specials, *byte_tokens, *(t for _, t in learned)])}
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in state["model"]["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(specials)
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos>:0 $A:0 <eos>:0", pair="<bos>:0 $A:0 <eos>:0 <bos>:1 $B:1 <eos>:1", special_tokens=[("<bos>", 2), ("<eos>", 1)])
    return tokenizer
