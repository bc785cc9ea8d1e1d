//! Fill in the middle (arxiv.org/abs/2207.14255). The text before a gap and the text after it become one prompt,
//! with the control tokens and the order of the model's family. Text of a request never becomes a control token.

use std::collections::HashSet;

use crate::{
    error::RequestError,
    text_files::{TextFiles, TokenizerSource},
    tokenizer::Tokenizer,
};

/// Control tokens of a family, as vocabularies spell them.
struct Family {
    prefix: &'static str,
    suffix: &'static str,
    /// Empty if the middle starts where the prompt ends.
    middle: &'static str,
    order: Order,
}

/// Order of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// PSM: prefix, suffix, middle.
    PrefixFirst,
    /// SPM: suffix, prefix, middle.
    SuffixFirst,
}

const fn psm(prefix: &'static str, suffix: &'static str, middle: &'static str) -> Family {
    Family { prefix, suffix, middle, order: Order::PrefixFirst }
}

const fn spm(prefix: &'static str, suffix: &'static str, middle: &'static str) -> Family {
    Family { prefix, suffix, middle, order: Order::SuffixFirst }
}

/// Families in order of preference: a model belongs to the first whose tokens its vocabulary has.
const FAMILIES: [Family; 10] = [
    psm("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), // Qwen-Coder, CodeGemma, Granite 3
    psm("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),       // StarCoder, StableCode, Granite Code
    psm("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),       // SantaCoder
    psm("▁<PRE>", "▁<SUF>", "▁<MID>"),                         // Code Llama
    psm("<PRE>", "<SUF>", "<MID>"),
    psm("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), // DeepSeek
    spm("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"), // CodeGeeX
    spm("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"), // Seed-Coder
    spm("[PREFIX]", "[SUFFIX]", ""),                           // Codestral
    psm("<|fim▁begin|>", "<|fim▁hole|>", "<|fim▁end|>"),
];

/// Tokens that end a middle: padding, the start of another file or repository, Code Llama's end.
const ENDS: [&str; 13] = [
    "<|fim_pad|>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|file_separator|>",
    "<fim_pad>",
    "<fim-pad>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<repo_name>",
    "<file_sep>",
    "<reponame>",
    "▁<EOT>",
];

/// Tokens before the name of a repository and before the name of a file.
const REPOSITORIES: [(&str, &str); 2] = [("<|repo_name|>", "<|file_sep|>"), ("<repo_name>", "<file_sep>")];

/// Separator of files for models without tokens for it.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// Prompt format of a model for filling in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infill {
    prefix: u32,
    suffix: u32,
    middle: Option<u32>,
    order: Order,
    /// Tokens before the name of a repository and before the name of a file.
    repository: Option<(u32, u32)>,
    /// Tokens that end the middle, besides those that end every text.
    pub ends: Vec<u32>,
}

/// Gap to fill in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// The text before it.
    pub prefix: String,
    /// The text after it.
    pub suffix: String,
    /// Start of the middle, which the model continues.
    pub middle: String,
    /// Other files: name and text of each.
    pub files: Vec<(String, String)>,
}

impl Infill {
    /// Format of a model, or `None` if its vocabulary lacks the tokens. Keys of a GGUF file take precedence over
    /// spelled tokens.
    pub fn of(files: &TextFiles, tokenizer: &Tokenizer) -> Option<Infill> {
        let id = |text: &str| tokenizer.token_id(text);
        let spelled = || {
            FAMILIES.iter().find_map(|family| {
                let middle = if family.middle.is_empty() { Some(None) } else { id(family.middle).map(Some) };
                Some((id(family.prefix)?, id(family.suffix)?, middle?, family.order))
            })
        };
        let (prefix, suffix, middle, order) = match &files.tokenizer {
            TokenizerSource::Gguf(_) => named(files, tokenizer).or_else(spelled)?,
            TokenizerSource::HuggingFace { .. } => spelled()?,
        };
        let repository = REPOSITORIES.iter().find_map(|(name, file)| Some((id(name)?, id(file)?)));
        let mut ends: Vec<u32> = ENDS.iter().copied().filter_map(id).collect();
        ends.sort_unstable();
        ends.dedup();
        Some(Infill { prefix, suffix, middle, order, repository, ends })
    }

    /// Whether an unloaded model supports it, as far as its files spell the tokens.
    pub fn is_in(files: &TextFiles) -> bool {
        let spells = |has: &dyn Fn(&str) -> bool| {
            let parts = |family: &Family| [family.prefix, family.suffix, family.middle];
            FAMILIES.iter().any(|family| parts(family).into_iter().all(|part| part.is_empty() || has(part)))
        };
        match &files.tokenizer {
            TokenizerSource::Gguf(metadata) => {
                let keys = ["fim_pre", "prefix"].map(|name| format!("tokenizer.ggml.{name}_token_id"));
                let tokens = metadata.strings("tokenizer.ggml.tokens").ok().flatten().unwrap_or_default();
                let tokens: HashSet<&str> = tokens.iter().map(String::as_str).collect();
                keys.iter().any(|key| matches!(metadata.u32(key), Ok(Some(_))))
                    || spells(&|part| tokens.contains(part))
            }
            TokenizerSource::HuggingFace { tokenizer_json, .. } => {
                let text = String::from_utf8_lossy(tokenizer_json);
                spells(&|part| text.contains(&format!("\"{part}\"")))
            }
        }
    }

    /// Tokens of the prompt.
    ///
    /// # Errors
    /// See [`Tokenizer::encode_plain`].
    pub fn prompt(&self, gap: &Gap, tokenizer: &Tokenizer) -> Result<Vec<u32>, RequestError> {
        let text = |text: &str| tokenizer.encode_plain(text, false);
        let mut tokens = tokenizer.encode("", true)?;
        tokens.truncate(tokenizer.special_around().0);
        if !gap.files.is_empty() {
            if let Some((repository, _)) = self.repository {
                tokens.push(repository);
                tokens.extend(text("myproject\n")?);
            }
            for (name, content) in &gap.files {
                match self.repository {
                    Some((_, file)) => {
                        tokens.push(file);
                        tokens.extend(text(&format!("{name}\n{content}"))?);
                    }
                    None => tokens.extend(text(&format!("{SNIPPET}{content}"))?),
                }
            }
            match self.repository {
                Some((_, file)) => {
                    tokens.push(file);
                    tokens.extend(text("filename\n")?);
                }
                None => tokens.extend(text(SNIPPET)?),
            }
        }
        let parts = [(self.prefix, &gap.prefix), (self.suffix, &gap.suffix)];
        let order = match self.order {
            Order::PrefixFirst => [parts[0], parts[1]],
            Order::SuffixFirst => [parts[1], parts[0]],
        };
        for (control, content) in order {
            tokens.push(control);
            tokens.extend(text(content)?);
        }
        tokens.extend(self.middle);
        tokens.extend(text(&gap.middle)?);
        Ok(tokens)
    }
}

/// Tokens that a GGUF file names, in the order of the family that spells them the same way.
fn named(files: &TextFiles, tokenizer: &Tokenizer) -> Option<(u32, u32, Option<u32>, Order)> {
    let TokenizerSource::Gguf(metadata) = &files.tokenizer else { return None };
    let id = |names: [&str; 2]| {
        let keys = names.map(|name| format!("tokenizer.ggml.{name}_token_id"));
        let id = keys.iter().find_map(|key| metadata.u32(key).ok().flatten())?;
        ((id as usize) < tokenizer.vocab_size()).then_some(id)
    };
    let (prefix, suffix) = (id(["fim_pre", "prefix"])?, id(["fim_suf", "suffix"])?);
    let spelling = tokenizer.token_bytes(prefix);
    let family = FAMILIES.iter().find(|family| family.prefix.as_bytes() == spelling);
    let order = family.map_or(Order::PrefixFirst, |family| family.order);
    let middle = id(["fim_mid", "middle"]).filter(|_| family.is_none_or(|family| !family.middle.is_empty()));
    Some((prefix, suffix, middle, order))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{chat::ChatOpening, text_files::GenerationDefaults};

    /// Text files with a byte tokenizer, the control tokens, and a beginning-of-sequence token.
    fn files(control: &[&str]) -> TextFiles {
        let bytes = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ').chain('Ā'..='Ń');
        let vocab: serde_json::Map<String, Value> =
            bytes.enumerate().map(|(id, byte)| (byte.to_string(), json!(id))).collect();
        let added = ["<s>"].iter().chain(control).enumerate().map(|(at, text)| {
            json!({"id": vocab.len() + at, "content": text, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false})
        });
        let added: Vec<Value> = added.collect();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [vocab.len()], "tokens": ["<s>"]}}},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
        });
        TextFiles {
            file: "coder".into(),
            tokenizer: TokenizerSource::HuggingFace {
                tokenizer_json: tokenizer.to_string().into_bytes(),
                tokenizer_config: None,
            },
            chat_template: None,
            bos: None,
            eos: Vec::new(),
            generation: GenerationDefaults::default(),
            opening: ChatOpening::default(),
        }
    }

    fn asked(control: &[&str], gap: &Gap) -> Option<String> {
        let files = files(control);
        let tokenizer = Tokenizer::load(&files).expect("a tokenizer");
        let tokens = Infill::of(&files, &tokenizer)?.prompt(gap, &tokenizer).expect("a prompt");
        // Request text stays text: each control token in the prompt was put there by the family's format.
        let said = [&gap.prefix, &gap.suffix, &gap.middle].map(String::as_str).concat();
        let special = tokens.iter().filter(|&&token| tokenizer.is_special(token)).count();
        assert!(!said.contains('<') || special <= control.len() + 1 + gap.files.len(), "{tokens:?}");
        Some(tokenizer.decode(&tokens, false))
    }

    #[test]
    fn every_family_has_its_order() {
        let gap = Gap { prefix: "def f(".into(), suffix: "):\n".into(), ..Gap::default() };
        for (control, prompt) in [
            (
                ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
                "<s><|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>",
            ),
            (
                ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
                "<s><fim_prefix>def f(<fim_suffix>):\n<fim_middle>",
            ),
            (
                ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
                "<s><fim-prefix>def f(<fim-suffix>):\n<fim-middle>",
            ),
            (["▁<PRE>", "▁<SUF>", "▁<MID>"], "<s>▁<PRE>def f(▁<SUF>):\n▁<MID>"),
            (
                ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
                "<s><｜fim▁begin｜>def f(<｜fim▁hole｜>):\n<｜fim▁end｜>",
            ),
            (
                ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
                "<s><|code_suffix|>):\n<|code_prefix|>def f(<|code_middle|>",
            ),
            (
                ["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"],
                "<s><[fim-suffix]>):\n<[fim-prefix]>def f(<[fim-middle]>",
            ),
            (["[PREFIX]", "[SUFFIX]", "[MIDDLE]"], "<s>[SUFFIX]):\n[PREFIX]def f("),
        ] {
            assert_eq!(asked(&control, &gap).as_deref(), Some(prompt));
            // Control tokens spelled in a request stay text.
            let forged =
                Gap { prefix: format!("{}x", control[1]), suffix: control[0].into(), ..Gap::default() };
            let found = asked(&control, &forged).expect("a prompt");
            assert_eq!(found.matches(control[0]).count(), 2, "{found}");
        }
        assert_eq!(asked(&["<|fim_prefix|>", "<|fim_suffix|>"], &gap), None);
        assert_eq!(asked(&[], &gap), None);
    }

    #[test]
    fn other_files_come_first() {
        let gap = Gap {
            prefix: "a".into(),
            suffix: "c".into(),
            middle: "b".into(),
            files: vec![("x.py".into(), "import y\n".into()), ("y.py".into(), "z = 1\n".into())],
        };
        let mut control = vec!["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
        let snippets =
            "\n\n--- snippet ---\n\nimport y\n\n\n--- snippet ---\n\nz = 1\n\n\n--- snippet ---\n\n";
        let own = "<|fim_prefix|>a<|fim_suffix|>c<|fim_middle|>b";
        assert_eq!(asked(&control, &gap), Some(format!("<s>{snippets}{own}")));
        control.extend(["<|repo_name|>", "<|file_sep|>", "<|fim_pad|>"]);
        let files = "<|repo_name|>myproject\n<|file_sep|>x.py\nimport y\n<|file_sep|>y.py\nz = 1\n<|file_sep|>filename\n";
        assert_eq!(asked(&control, &gap), Some(format!("<s>{files}{own}")));
        let files = super::tests::files(&control);
        let tokenizer = Tokenizer::load(&files).expect("a tokenizer");
        let infill = Infill::of(&files, &tokenizer).expect("has the tokens");
        assert!(Infill::is_in(&files) && !Infill::is_in(&super::tests::files(&["<|fim_prefix|>"])));
        let ends = ["<|fim_pad|>", "<|file_sep|>"].map(|end| tokenizer.token_id(end).expect("a token"));
        assert!(ends.iter().all(|end| infill.ends.contains(end)), "{:?}", infill.ends);
    }
}
