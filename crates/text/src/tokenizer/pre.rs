//! Pre-tokenizers: how byte-pair vocabularies split text into words before merging. They are the expressions of
//! each model's own `tokenizer.json`, by their names in GGUF's `tokenizer.ggml.pre`. If a model publishes none,
//! they are llama.cpp's.

/// Pre-tokenizer with its options.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    /// Numbers to cut into groups of three from their end, before any other split.
    pub(super) threes: Option<Threes>,
    /// Expressions, applied one after the other to the pieces that the one before left. Matches and the text
    /// between them are pieces.
    pub(super) patterns: &'static [&'static str],
    /// A word that is a token becomes that token, regardless of merges.
    pub(super) ignore_merges: bool,
    /// Begin texts with the beginning-of-sequence token, unless the file says otherwise.
    pub(super) add_bos: bool,
    /// Normalise text to NFC first.
    pub(super) nfc: bool,
    /// Spelling of text in tokens.
    pub(super) spelling: ByteSpelling,
    /// Token that also takes the white space before it.
    pub(super) mask: Option<&'static str>,
}

/// Spelling of bytes in a vocabulary's token texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ByteSpelling {
    /// Each byte is one of GPT-2's characters.
    Bytes,
    /// Plain text with `▁` for a space; text without a token becomes byte tokens, `<0x00>` to `<0xFF>`.
    Spaces,
    /// Plain words without the white space between them.
    Words,
}

/// Numbers cut into groups of three from their end, like thousands. An expression would have to look ahead to the
/// end of the number at each digit, in quadratic time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threes {
    /// Expression for the numbers.
    pub(super) run: &'static str,
    /// Whether a number is separated from the text next to it.
    pub(super) apart: bool,
    /// Characters that prevent the cut if they follow the number.
    pub(super) not_before: Option<&'static str>,
}

const fn plain(patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer {
        threes: None,
        patterns,
        ignore_merges: false,
        add_bos: false,
        nfc: false,
        spelling: ByteSpelling::Bytes,
        mask: None,
    }
}

const fn nfc(patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { nfc: true, ..plain(patterns) }
}

const fn whole_words(patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { ignore_merges: true, ..plain(patterns) }
}

const fn begun(patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { add_bos: true, ..whole_words(patterns) }
}

const fn masked(patterns: &'static [&'static str], mask: &'static str) -> PreTokenizer {
    PreTokenizer { mask: Some(mask), ..plain(patterns) }
}

const fn threes(run: &'static str, apart: bool, patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { threes: Some(Threes { run, apart, not_before: None }), ..plain(patterns) }
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Splitting expression of Mistral's Tekken.
pub const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+";
const DEEPSEEK_CJK: &str = r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const LLAMA3_SPACES: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const NO_CONTRACTIONS: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU_SCRIPTS: &str = r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const AFMOE_SCRIPTS: &str = r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{F900}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}\u{0E40}-\u{0E7F}\u{0E80}-\u{0EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+";
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
const THREE_DIGITS: &str = r"\p{N}{1,3}";
const CJK: &str = r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";

/// Pre-tokenizers and their names.
const ALL: &[(&[&str], PreTokenizer)] = &[
    (&["default"], plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"])),
    (
        &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "jais",
            "trillion",
            "granite-docling",
        ],
        plain(&[GPT2]),
    ),
    (
        &["jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe"],
        masked(&[GPT2], "<mask>"),
    ),
    (&["modern-bert"], PreTokenizer { nfc: true, ..masked(&[GPT2], "[MASK]") }),
    (&["mpt", "olmo"], nfc(&[GPT2])),
    (
        &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        begun(&[LLAMA3]),
    ),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], plain(&[LLAMA3])),
    (&["glm4", "glm5"], whole_words(&[LLAMA3])),
    (&["jais-2"], plain(&[LLAMA3_SPACES])),
    (&["minicpm5"], whole_words(&[THREE_DIGITS, MINICPM5])),
    (&["qwen2", "deepseek-r1-qwen", "kormo", "megrez", "f2llmv2", "stablelm2"], nfc(&[QWEN2])),
    (&["hunyuan", "grok-2", "solar-open"], plain(&[QWEN2])),
    (&["laguna"], plain(&[r"[^\n]+|[\n]+", QWEN2])),
    (&["ufakzeka"], plain(&[NO_CONTRACTIONS])),
    (&["qwen35"], nfc(&[QWEN35])),
    (&["tekken"], begun(&[TEKKEN])),
    (&["gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"], plain(&[GPT4O])),
    (&["granite-embed-multi-97m"], whole_words(&[GPT4O])),
    // The expression cuts a number before a letter, from its beginning.
    (
        &["tiny_aya", "cohere2moe"],
        PreTokenizer {
            threes: Some(Threes { run: r"\d+", apart: true, not_before: Some(r"[\p{L}\p{M}\p{N}\p{Pc}]") }),
            ..plain(&[GPT4O])
        },
    ),
    (&["youtu"], whole_words(&[YOUTU_SCRIPTS, YOUTU])),
    (&["kimi-k2"], plain(&[KIMI])),
    (
        &["deepseek-llm"],
        plain(&[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+",
            r"\s+$",
            DEEPSEEK_CJK,
            r"\p{N}",
        ]),
    ),
    (&["deepseek-coder"], plain(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"])),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], plain(&[THREE_DIGITS, CJK, DEEPSEEK3])),
    (&["spark2_5"], plain(&[THREE_DIGITS, CJK, SPARK, r"\p{N}"])),
    (&["afmoe"], threes(r"\p{N}+", true, &[AFMOE_SCRIPTS, DEEPSEEK3])),
    (
        &["starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        plain(&[r"\p{N}", GPT2]),
    ),
    (&["command-r"], nfc(&[r"\p{N}", GPT2])),
    (&["exaone-moe"], nfc(&[EXAONE_MOE])),
    (&["superbpe"], threes(r"\d+", false, &[r"\p{N}+"])),
    (&["falcon"], plain(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"])),
    (&["bloom", "poro-chat", "gpt3-finnish"], plain(&[BLOOM])),
    (&["viking"], plain(&[BLOOM, r"\p{N}"])),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], plain(&[BAILING])),
    (&["seed-coder"], plain(&[SEED])),
    (
        &["chameleon"],
        PreTokenizer {
            add_bos: true,
            ..plain(&[
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ])
        },
    ),
    (
        &["gemma4", "granite-embed-multi-311m", "sarvam-moe"],
        PreTokenizer { spelling: ByteSpelling::Spaces, ..plain(&[]) },
    ),
    (&["whitespace"], PreTokenizer { spelling: ByteSpelling::Words, ..plain(&[]) }),
];

/// All known names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().flat_map(|(names, _)| names.iter().copied())
}

/// All pre-tokenizers with their names.
pub(super) fn all() -> impl Iterator<Item = (&'static [&'static str], &'static PreTokenizer)> {
    ALL.iter().map(|(names, pre)| (*names, pre))
}

/// Pre-tokenizer by its name in a GGUF file; files without a name use `default`.
pub(super) fn by_name(name: &str) -> Option<PreTokenizer> {
    ALL.iter().find(|(names, _)| names.contains(&name)).map(|&(_, pre)| pre)
}
