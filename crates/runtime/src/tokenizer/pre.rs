//! How byte-level vocabularies split text into words before merging: the expressions of each model's own
//! `tokenizer.json`, under the names that GGUF files give them in `tokenizer.ggml.pre`.

/// A pre-tokenizer and what goes with it.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    /// Applied one after the other, each to the pieces the one before left; matches and the text between them
    /// are pieces.
    pub(super) patterns: &'static [&'static str],
    /// A word that is a token is that token, whatever the merges make of it.
    pub(super) ignore_merges: bool,
    /// Text begins with the beginning-of-sequence token unless the file says otherwise.
    pub(super) add_bos: bool,
    /// Text is brought into normal form C first.
    pub(super) nfc: bool,
}

const fn plain(patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { patterns, ignore_merges: false, add_bos: false, nfc: false }
}

const fn nfc(patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { nfc: true, ..plain(patterns) }
}

const fn whole_words(patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { ignore_merges: true, add_bos: true, ..plain(patterns) }
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+";
const DEEPSEEK_CJK: &str = r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// The names this build knows, for errors: one of each kind.
pub(super) const KNOWN: &str = "default, gpt-2, llama-bpe, qwen2, qwen35, tekken, gpt-4o, deepseek-llm, \
     deepseek-coder, deepseek-v3, smollm, starcoder, command-r, falcon, glm4, stablelm2, olmo, bloom, viking, \
     bailingmoe, seed-coder and their kin are";

/// The pre-tokenizer a GGUF file names; `default` where it names none.
pub(super) fn by_name(name: &str) -> Option<PreTokenizer> {
    Some(match name {
        "default" => plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"]),
        "gpt-2" | "phi-2" | "gigachat" | "a.x-4.0" | "mellum" | "exaone4" | "jais" | "trillion"
        | "granite-docling" => plain(&[GPT2]),
        "mpt" | "olmo" => nfc(&[GPT2]),
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" => {
            whole_words(&[LLAMA3])
        }
        "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => plain(&[LLAMA3]),
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "megrez" => nfc(&[QWEN2]),
        "stablelm2" => nfc(&[QWEN2]),
        "hunyuan" | "grok-2" | "solar-open" => plain(&[QWEN2]),
        "qwen35" => nfc(&[QWEN35]),
        "tekken" => whole_words(&[TEKKEN]),
        "gpt-4o" | "llama4" | "kanana2" | "minimax-m2" => plain(&[GPT4O]),
        "deepseek-llm" => plain(&[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+",
            r"\s+$",
            DEEPSEEK_CJK,
            r"\p{N}",
        ]),
        "deepseek-coder" => plain(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"]),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => {
            plain(&[r"\p{N}{1,3}", r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+", DEEPSEEK3])
        }
        "starcoder" | "refact" | "smollm" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
            plain(&[r"\p{N}", GPT2])
        }
        "command-r" => nfc(&[r"\p{N}", GPT2]),
        "falcon" => plain(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"]),
        "bloom" | "poro-chat" | "gpt3-finnish" => plain(&[BLOOM]),
        "viking" => plain(&[BLOOM, r"\p{N}"]),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => plain(&[BAILING]),
        "seed-coder" => plain(&[SEED]),
        _ => return None,
    })
}
