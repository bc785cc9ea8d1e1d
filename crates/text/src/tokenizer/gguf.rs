//! Tokenizers from GGUF metadata: `gpt2` (byte-level BPE), `gemma4` and `whitespace` (BPE of plain text) and
//! `llama` (SentencePiece BPE). Those of encoders are in [`super::gguf_pieces`]. The meaning of the keys follows
//! GGUF's specification and existing files.

use std::collections::HashMap;

use hanzo_engine_model_files::{error::LoadError, gguf::Metadata};
use tokenizers::{
    AddedToken, NormalizerWrapper, PreTokenizerWrapper,
    normalizers::{Lowercase, NFC, Replace},
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
        whitespace::Whitespace,
    },
    tokenizer::SplitDelimiterBehavior,
};

use super::{
    Encoder, Tokenizer,
    affixes::{Affixes, PairAffixes},
    bpe::{Part, Parts},
    byte_level::ByteChars,
    gguf_pieces,
    pre::{self, ByteSpelling, PreTokenizer},
    sentencepiece::{SentencePiece, Settings, byte_token},
    table::TokenTable,
    words::Words,
};

use crate::limits::{ADDED_TOKEN_BYTES_MAX, ADDED_TOKENS_MAX, ONE_ADDED_TOKEN_BYTES_MAX, VOCAB_MAX};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const ADD_SEPARATOR: &str = "tokenizer.ggml.add_sep_token";
/// The misspelling belongs to the format.
pub(super) const SEPARATOR: &str = "tokenizer.ggml.seperator_token_id";
pub(super) const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
pub(super) const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";

const KNOWN_MODELS: &str =
    "gpt2, gemma4, whitespace, llama, bert and t5 are; rwkv, plamo2 and hybriddna are not";

/// Type of a token: the values of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Normal,
    /// Stands for text without a token.
    Unknown,
    /// Structures the text and is not part of it.
    Control,
    /// Added to the vocabulary: found in text before merging, and shown.
    UserDefined,
    /// Never written.
    Unused,
    /// A single byte, spelled `<0x00>`.
    Byte,
}

/// Tokens in order of ID.
pub(super) struct Vocabulary<'a> {
    pub(super) texts: &'a [String],
    pub(super) kinds: Vec<Kind>,
}

impl Vocabulary<'_> {
    /// IDs of tokens that are found in text before merging.
    pub(super) fn added(&self) -> impl Iterator<Item = u32> {
        let is_added = |kind: Kind| matches!(kind, Kind::Control | Kind::UserDefined | Kind::Unknown);
        (0..self.texts.len())
            .filter(move |&id| is_added(self.kinds[id]) && !self.texts[id].is_empty())
            .map(|id| id as u32)
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        matches!(self.kinds[id as usize], Kind::Control | Kind::Unknown)
    }
}

/// Loads the tokenizer of a file's `tokenizer.ggml` keys; `ends` are the tokens that end its texts.
pub(super) fn load(metadata: &Metadata, ends: &[u32]) -> Result<Tokenizer, LoadError> {
    match metadata.string(MODEL)?.ok_or_else(|| metadata.missing(MODEL))? {
        "gpt2" | "whitespace" => byte_pairs(metadata, None),
        "gemma4" => byte_pairs(metadata, Some("gemma4")),
        "llama" => sentence_piece(metadata, ends),
        "bert" => gguf_pieces::word_piece(metadata),
        "t5" => gguf_pieces::unigram(metadata),
        other => Err(unsupported(metadata, MODEL, other, KNOWN_MODELS)),
    }
}

/// Loads a byte-pair tokenizer; `pre_name` overrides the file's key.
fn byte_pairs(metadata: &Metadata, pre_name: Option<&'static str>) -> Result<Tokenizer, LoadError> {
    let vocabulary = vocabulary(metadata)?;
    let pre_name = match pre_name {
        Some(name) => name,
        None => metadata.string(PRE)?.unwrap_or("default"),
    };
    let pre = pre::by_name(pre_name).ok_or_else(|| {
        let known: Vec<&str> = pre::names().collect();
        unsupported(metadata, PRE, pre_name, &format!("{} are", known.join(", ")))
    })?;
    if metadata.bool(ADD_SPACE)? == Some(true) {
        return Err(unsupported(metadata, ADD_SPACE, "true", "with byte pairs only false is"));
    }
    let mut affixes = affixes(metadata, &vocabulary, pre.add_bos)?;
    affixes.pair = pair(metadata, &vocabulary, &affixes)?;
    let (vocab, mut merges) = (ids(metadata, &vocabulary)?, merges(metadata)?);
    // Drops merges of two tokens whose union is no token: files with a reduced vocabulary still have such merges.
    let known = |text: &str| vocab.contains_key(text);
    merges.retain(|(left, right)| !(known(left) && known(right)) || known(&[left.as_str(), right].concat()));
    let of_kind = |kind: Kind| vocabulary.kinds.iter().position(|&other| other == kind);
    let unknown = of_kind(Kind::Unknown).filter(|_| pre.spelling != ByteSpelling::Bytes);
    let parts = Parts {
        vocab,
        merges,
        added: vocabulary
            .added()
            .map(|id| {
                let text = &vocabulary.texts[id as usize];
                AddedToken::from(text.clone(), vocabulary.is_special(id))
                    .normalized(false)
                    .lstrip(pre.mask == Some(text.as_str()))
            })
            .collect(),
        normalizer: normalizer(metadata, &pre)?,
        pre_tokenizer: Some(
            pre_tokenizer(&pre).map_err(|reason| unsupported(metadata, PRE, pre_name, &reason))?,
        ),
        ignore_merges: pre.ignore_merges,
        byte_fallback: pre.spelling == ByteSpelling::Spaces && of_kind(Kind::Byte).is_some(),
        unknown: unknown.map(|id| vocabulary.texts[id].clone()),
        fuse_unknown: true,
        word_end: None,
    };
    let tokenizer = parts.build().map_err(|unusable| {
        let key = match unusable.part {
            Part::Merges => MERGES,
            Part::Vocab | Part::Added | Part::Unknown | Part::Normalizer => TOKENS,
        };
        metadata.corrupt(key, unusable.reason)
    })?;
    let chars = ByteChars::new();
    let table = table(metadata, &vocabulary, |text, out| match pre.spelling {
        ByteSpelling::Bytes => chars.decode(text, out),
        ByteSpelling::Spaces => out.extend_from_slice(text.replace('▁', " ").as_bytes()),
        ByteSpelling::Words => out.extend_from_slice(text.as_bytes()),
    })?;
    let words = Words::new(tokenizer, &table).and_then(|words| words.with_threes(pre.threes));
    let words = words.map_err(|reason| metadata.corrupt(TOKENS, reason))?;
    Ok(Tokenizer { encoder: Encoder::Words(Box::new(words)), affixes, table, strips_space: false })
}

/// Normalizer of the text before it is split.
fn normalizer(metadata: &Metadata, pre: &PreTokenizer) -> Result<Option<NormalizerWrapper>, LoadError> {
    Ok(match pre.spelling {
        ByteSpelling::Bytes => pre.nfc.then_some(NormalizerWrapper::NFC(NFC)),
        ByteSpelling::Spaces => {
            let replace =
                Replace::new(" ", "▁").map_err(|error| metadata.corrupt(MODEL, error.to_string()))?;
            Some(NormalizerWrapper::Replace(replace))
        }
        ByteSpelling::Words => {
            metadata.bool(LOWERCASE)?.unwrap_or(false).then_some(NormalizerWrapper::Lowercase(Lowercase))
        }
    })
}

/// Pair format of RoBERTa and ModernBERT, for models with a token on each side of a text. A second separator stands
/// between the texts if the file says so.
fn pair(
    metadata: &Metadata,
    vocabulary: &Vocabulary,
    affixes: &Affixes,
) -> Result<Option<PairAffixes>, LoadError> {
    let (&[first], &[last]) = (&affixes.prefix[..], &affixes.suffix[..]) else { return Ok(None) };
    let mut between = vec![(last, 0)];
    if metadata.bool(ADD_SEPARATOR)? == Some(true) {
        let separator = metadata.u32(SEPARATOR)?.unwrap_or(last);
        if separator as usize >= vocabulary.texts.len() {
            let reason = format!("token {separator} is not among the {} tokens", vocabulary.texts.len());
            return Err(metadata.corrupt(SEPARATOR, reason));
        }
        between.push((separator, 0));
    }
    Ok(Some(PairAffixes { before: vec![(first, 0)], between, after: vec![(last, 0)], types: [0, 0] }))
}

/// Encoder of the crate's tokenizer; `unknown` is the unknown token of a Unigram model.
pub(super) fn words(
    metadata: &Metadata,
    tokenizer: tokenizers::Tokenizer,
    table: &TokenTable,
    unknown: Option<usize>,
) -> Result<Encoder, LoadError> {
    let words = Words::new(tokenizer, table).map_err(|reason| metadata.corrupt(TOKENS, reason))?;
    Ok(Encoder::Words(Box::new(words.with_unknown(unknown))))
}

pub(super) fn pre_tokenizer(pre: &PreTokenizer) -> Result<PreTokenizerWrapper, String> {
    let mut steps = Vec::new();
    for &pattern in pre.patterns {
        let pattern = SplitPattern::Regex(pattern.to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
            .map_err(|error| error.to_string())?;
        steps.push(PreTokenizerWrapper::Split(split));
    }
    match pre.spelling {
        ByteSpelling::Bytes => steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false))),
        ByteSpelling::Spaces => {}
        ByteSpelling::Words => steps.push(PreTokenizerWrapper::Whitespace(Whitespace)),
    }
    Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
}

fn sentence_piece(metadata: &Metadata, ends: &[u32]) -> Result<Tokenizer, LoadError> {
    let vocabulary = vocabulary(metadata)?;
    let count = vocabulary.texts.len();
    let scores = metadata.floats(SCORES)?.ok_or_else(|| metadata.missing(SCORES))?;
    if scores.len() != count {
        return Err(metadata.corrupt(SCORES, format!("{} scores for {count} tokens", scores.len())));
    }
    if let Some(id) = scores.iter().position(|score| score.is_nan()) {
        return Err(metadata.corrupt(SCORES, format!("the score of token {id} is not a number")));
    }
    let add_space = metadata.bool(ADD_SPACE)?.unwrap_or(true);
    let affixes = affixes(metadata, &vocabulary, true)?;
    let ids = ids(metadata, &vocabulary)?;
    let table =
        table(metadata, &vocabulary, |text, out| out.extend_from_slice(text.replace('▁', " ").as_bytes()))?;
    // Phi-3's added tokens drop the white space after them; its files do not say so.
    let name = metadata.string("general.name")?.unwrap_or_default().to_lowercase();
    let settings = Settings {
        add_space,
        strip_after_added: name.contains("phi-3") || name.contains("phi3"),
        normal: gguf_pieces::chars_map(metadata)?,
        remove_extra_spaces: metadata.bool(gguf_pieces::REMOVE_EXTRA)?.unwrap_or(false),
    };
    let count = count as u32;
    let ends: Vec<u32> = ends.iter().copied().filter(|&id| id < count).collect();
    let encoder = SentencePiece::new(&vocabulary, &scores, ids, settings, &ends)
        .map_err(|reason| metadata.corrupt(TOKENS, reason))?;
    Ok(Tokenizer { encoder: Encoder::SentencePiece(encoder), affixes, table, strips_space: add_space })
}

pub(super) fn vocabulary(metadata: &Metadata) -> Result<Vocabulary<'_>, LoadError> {
    let texts = metadata.strings(TOKENS)?.ok_or_else(|| metadata.missing(TOKENS))?;
    if texts.is_empty() || texts.len() > VOCAB_MAX {
        return Err(
            metadata.corrupt(TOKENS, format!("{} tokens; 1 to {VOCAB_MAX} are possible", texts.len()))
        );
    }
    let kinds = match metadata.integers(TYPES)? {
        None => vec![Kind::Normal; texts.len()],
        Some(types) if types.len() != texts.len() => {
            return Err(metadata.corrupt(TYPES, format!("{} types for {} tokens", types.len(), texts.len())));
        }
        Some(types) => {
            let mut kinds = Vec::with_capacity(types.len());
            for (id, number) in types.into_iter().enumerate() {
                kinds.push(match number {
                    // 0 is undefined: files with it mean an ordinary token.
                    0 | 1 => Kind::Normal,
                    2 => Kind::Unknown,
                    3 => Kind::Control,
                    4 => Kind::UserDefined,
                    5 => Kind::Unused,
                    6 => Kind::Byte,
                    _ => {
                        return Err(metadata
                            .corrupt(TYPES, format!("token {id} has type {number}; 0 to 6 are known")));
                    }
                });
            }
            kinds
        }
    };
    let vocabulary = Vocabulary { texts, kinds };
    let (mut added, mut bytes) = (0, 0);
    for id in vocabulary.added() {
        let length = texts[id as usize].len();
        if length > ONE_ADDED_TOKEN_BYTES_MAX {
            let reason = format!(
                "token {id} has {length} bytes; at most {ONE_ADDED_TOKEN_BYTES_MAX} are possible for one that is \
                 looked for before texts are split"
            );
            return Err(metadata.corrupt(TYPES, reason));
        }
        added += 1;
        bytes += texts[id as usize].len();
    }
    if added > ADDED_TOKENS_MAX || bytes > ADDED_TOKEN_BYTES_MAX {
        let reason = format!(
            "{added} tokens of {bytes} bytes are looked for before texts are split; at most {ADDED_TOKENS_MAX} of \
             {ADDED_TOKEN_BYTES_MAX} are possible"
        );
        return Err(metadata.corrupt(TYPES, reason));
    }
    Ok(vocabulary)
}

/// IDs by text; empty texts, which pad some files, have none.
pub(super) fn ids(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<HashMap<String, u32>, LoadError> {
    let mut ids = HashMap::with_capacity(vocabulary.texts.len());
    for (id, text) in vocabulary.texts.iter().enumerate() {
        if text.is_empty() {
            continue;
        }
        if let Some(first) = ids.insert(text.clone(), id as u32) {
            return Err(metadata.corrupt(TOKENS, format!("{text:?} is both token {first} and token {id}")));
        }
    }
    Ok(ids)
}

fn merges(metadata: &Metadata) -> Result<Vec<(String, String)>, LoadError> {
    let lines = metadata.strings(MERGES)?.ok_or_else(|| metadata.missing(MERGES))?;
    let mut merges = Vec::with_capacity(lines.len());
    for (rank, line) in lines.iter().enumerate() {
        let Some((left, right)) = line.split_once(' ') else {
            return Err(
                metadata.corrupt(MERGES, format!("merge {rank} is {line:?}, not two tokens and a space"))
            );
        };
        merges.push((left.to_owned(), right.to_owned()));
    }
    Ok(merges)
}

pub(super) fn table(
    metadata: &Metadata,
    vocabulary: &Vocabulary,
    decode: impl Fn(&str, &mut Vec<u8>),
) -> Result<TokenTable, LoadError> {
    let tokens = vocabulary.texts.iter().enumerate().map(|(id, text)| {
        let mut bytes = Vec::new();
        match vocabulary.kinds[id] {
            Kind::Normal => decode(text, &mut bytes),
            Kind::Byte => match byte_token(text) {
                Some(byte) => bytes.push(byte),
                None => decode(text, &mut bytes),
            },
            Kind::Control | Kind::Unknown | Kind::UserDefined => bytes.extend_from_slice(text.as_bytes()),
            Kind::Unused => {}
        }
        (bytes, vocabulary.is_special(id as u32))
    });
    TokenTable::new(tokens).ok_or_else(|| metadata.corrupt(TOKENS, "the tokens' texts are over 4 GiB"))
}

/// Tokens before and after a text.
pub(super) fn affixes(
    metadata: &Metadata,
    vocabulary: &Vocabulary,
    bos_by_default: bool,
) -> Result<Affixes, LoadError> {
    let one = |flag: &'static str, by_default: bool, key: &'static str| {
        let wanted = metadata.bool(flag)?;
        if !wanted.unwrap_or(by_default) {
            return Ok(Vec::new());
        }
        match metadata.u32(key)? {
            Some(id) if (id as usize) < vocabulary.texts.len() => Ok(vec![id]),
            Some(id) => Err(metadata
                .corrupt(key, format!("token {id} is not among the {} tokens", vocabulary.texts.len()))),
            None if wanted == Some(true) => Err(metadata.missing(key)),
            None => Ok(Vec::new()),
        }
    };
    Ok(Affixes { prefix: one(ADD_BOS, bos_by_default, BOS)?, suffix: one(ADD_EOS, false, EOS)?, pair: None })
}

fn unsupported(metadata: &Metadata, key: &str, value: &str, reason: &str) -> LoadError {
    LoadError::Unsupported {
        file: metadata.file().to_owned(),
        key: key.to_owned(),
        value: value.to_owned(),
        reason: reason.to_owned(),
    }
}
