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
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_CJK: &str = r"[一-龥\u{800}-一가-\u{D7FF}]+";
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
            r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
            r"\s+$",
            DEEPSEEK_CJK,
            r"\p{N}",
        ]),
        "deepseek-coder" => plain(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"]),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => {
            plain(&[r"\p{N}{1,3}", r"[一-龥\u{3040}-ゟ゠-ヿ]+", DEEPSEEK3])
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
