"""Remakes pre_tokenizers.json: the words of some texts by every pre-tokenizer, from Hugging Face's `tokenizers`, whose expressions
are run by Oniguruma. pip install tokenizers; python make_pre_tokenizers.py"""

import json
import pathlib

from tokenizers import Regex, pre_tokenizers

TEXTS = [
    "Hello, world!", "I'LL we're DON'T they've it's o'clock 'tis", "CamelCase camelCASE XMLHttp aB Ab ÀéÉa",
    "1 12 123 1234 1234567 12a a1234 12345x 1234_ 1234-5678", "x=3.14159e-10; 1,234,567.89", "½ Ⅷ ² ٤٥٦٧ 1½234 ½1234",
    "  two   spaces \t tab\n\n\nlines \r\n \r\n  x\n  y \n", "a  1234   5678 \n9", "trailing   ", " " * 21 + "x", "\n \n\n  \n",
    "你好，世界。2024年1月 漢字かなカナ한국어 ㄅㄆ ｶﾅ 𠀀々〇", "abc你好def ABC漢字s 中's don't中", "สวัสดี ລາວ ខ្មែរ မြန်မာ", "नमस्ते দেশ e\u0301a n\u0303",
    "Привет, МИР! ΑΒγδ ǅa ʰb ªº", "()[]{}<>!!! ... -- // /path/to#x $5 €9 `code` ^~|+=", "foo.bar(x)[0]->y; a/b /\n//\n", "!x ?y .z ,w _v",
    "<sentinel:12> IMGIMGABZ IMGIMGZ", "nbsp\u00a0a\u2003b\u3000c\u0085d", "😀 👨‍👩‍👧 ❤️x", "Türkiye'nin İstanbul'da", "a b c d, e f  g 1 h",
    "“quoted” ‘single’ — dash… ：；！（）", "'S 'Re 'LLama ''s",
]

S = r"\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + S
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LINES = r"|\s*[\r\n]+|"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
LLAMA3 = SHORT + "|" + WORD + r"|\p{N}{1,3}|" + OTHER + LINES + S
QWEN2 = SHORT + "|" + WORD + r"|\p{N}|" + OTHER + LINES + S
UP, LOW = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
OTHER_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


def cased(suffix, but=""):
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}[{UP}{but}]*[{LOW}{but}]+{suffix}|{before}[{UP}{but}]+[{LOW}{but}]*{suffix}|"


GPT4O = cased(SHORT + "?") + r"\p{N}{1,3}|" + OTHER_SLASH + LINES + S
CJK = "[一-龥぀-ゟ゠-ヿ]+"
PUNCTUATED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
DEEPSEEK3 = PUNCTUATED + r"[\r\n]*" + LINES + S
DEEPSEEK_CJK = "[一-龥ࠀ-一가-\ud7ff]+"
DEEPSEEK_LETTERS = (
    "\\s?"
    "[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-"
    "\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc"
    "\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a"
    "-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183"
    "\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b"
    "-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+"
)
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

PATTERNS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "llama-bpe": [LLAMA3],
    "jais-2": [SHORT + "|" + WORD + r"|\p{N}{1,3}|" + OTHER + LINES + "".join(rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"\s{1,2}(?!\S)|\s{1}"],
    "minicpm5": [r"\p{N}{1,3}", SHORT + "|" + WORD + r"|\p{N}+|" + OTHER + LINES + S],
    "qwen2": [QWEN2],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "ufakzeka": [WORD + r"|\p{N}|" + OTHER + LINES + S],
    "qwen35": [SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + LINES + S],
    "tekken": [cased("") + r"\p{N}|" + OTHER_SLASH + LINES + S],
    "gpt-4o": [GPT4O],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
    "youtu": ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + CJK, cased(SHORT + "?") + r"\p{N}|" + OTHER_SLASH + LINES + S],
    "kimi-k2": [r"\p{Han}+|" + cased(SHORT + "?", r"&&[^\p{Han}]") + r"\p{N}{1,3}|" + OTHER + LINES + S],
    "deepseek-llm": [r"[\r\n]", DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", DEEPSEEK_CJK, r"\p{N}"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", CJK, DEEPSEEK3],
    "spark2_5": [r"\p{N}{1,3}", CJK, PUNCTUATED + r"|[\r\n]|" + S, r"\p{N}"],
    "afmoe": [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+", DEEPSEEK3],
    "smollm": [r"\p{N}", GPT2],
    "exaone-moe": [SHORT + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|" + S],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|" + S],
    "seed-coder": [SHORT + "|" + WORD + r"|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + LINES + S],
    "chameleon": ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "gemma4": [],
    "whitespace": None,
}

KIN = {
    "gpt-2": "phi-2 gigachat a.x-4.0 mellum exaone4 jais trillion granite-docling jina-es jina-de jina-v1-en jina-v2-es jina-v2-de "
    "jina-v2-code roberta-bpe modern-bert mpt olmo",
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe chatglm-bpe glm4 glm5",
    "qwen2": "deepseek-r1-qwen kormo megrez f2llmv2 stablelm2 hunyuan grok-2 solar-open",
    "gpt-4o": "llama4 kanana2 minimax-m2 talkie granite-embed-multi-97m",
    "tiny_aya": "cohere2moe",
    "deepseek-v3": "hunyuan-dense joyai-llm hy_v4",
    "smollm": "starcoder refact codeshell exaone minerva-7b mellum2 command-r",
    "bloom": "poro-chat gpt3-finnish",
    "bailingmoe": "bailingmoe2 llada-moe",
    "gemma4": "granite-embed-multi-311m sarvam-moe",
}


def words(patterns, text):
    if patterns is None:
        steps = [pre_tokenizers.Whitespace()]
    else:
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return [text[start:end] for _, (start, end) in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


def main():
    splits = {name: [words(patterns, text) for text in TEXTS] for name, patterns in PATTERNS.items()}
    # The texts tell all of them apart, or the test would not.
    names = list(splits)
    for at, name in enumerate(names):
        for other in names[:at]:
            # Two ways to write the same.
            assert splits[name] != splits[other] or (name, other) == ("bailingmoe", "qwen2"), (name, other)
    kin = {name: of for of, names in KIN.items() for name in names.split()}
    out = {"texts": TEXTS, "splits": splits | kin}
    path = pathlib.Path(__file__).with_name("pre_tokenizers.json")
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}" for name, value in out["splits"].items()]
    path.write_text('{"texts": ' + json.dumps(TEXTS, ensure_ascii=False) + ',\n"splits": {\n' + ",\n".join(lines) + "\n}}\n")


main()
