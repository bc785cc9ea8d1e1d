//! WordPiece (`bert`) and Unigram (`t5`) tokenizers from GGUF metadata, as llama.cpp's converter writes them:
//! pieces at the start of a word begin with `▁`, those inside a word have no mark.

use std::collections::HashMap;

use hanzo_engine_model_files::{error::LoadError, gguf::Metadata};
use tokenizers::{
    AddedToken, NormalizerWrapper, PreTokenizerWrapper,
    normalizers::{self, BertNormalizer, Precompiled, Prepend, Replace, replace::ReplacePattern},
    pre_tokenizers::{
        bert::BertPreTokenizer,
        metaspace::{Metaspace, PrependScheme},
        sequence::Sequence,
        whitespace::WhitespaceSplit,
    },
};

use super::{
    Tokenizer,
    affixes::Affixes,
    chars_map,
    gguf::{
        ADD_SPACE, Kind, LOWERCASE, SCORES, SEPARATOR, TOKENS, Vocabulary, affixes, ids, table, vocabulary,
        words,
    },
    pieces::{Model, Parts, Unusable},
};

const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const CLS: &str = "tokenizer.ggml.cls_token_id";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const CHARS_MAP: &str = "tokenizer.ggml.precompiled_charsmap";
pub(super) const REMOVE_EXTRA: &str = "tokenizer.ggml.remove_extra_whitespaces";
/// Internal key, absent from files: whether special tokens stand around a text, as for encoders. Unset for a
/// decoder's `tokenizer.model`, which is read as such metadata.
pub(crate) const AROUND_TEXTS: &str = "tokenizer.ggml.around_texts";
const WORD: char = '▁';
const CONTINUING: &str = "##";
/// BERT's limit.
const WORD_CHARS_MAX: usize = 100;

/// Loads a tokenizer whose `tokenizer.ggml.model` is `bert`.
pub(super) fn word_piece(metadata: &Metadata) -> Result<Tokenizer, LoadError> {
    let vocabulary = vocabulary(metadata)?;
    let spelled = |text: &str, kind: Kind| match text.strip_prefix(WORD) {
        Some(word) => word.to_owned(),
        None if kind != Kind::Normal || text.starts_with('[') && text.ends_with(']') => text.to_owned(),
        None => format!("{CONTINUING}{text}"),
    };
    let mut vocab = HashMap::with_capacity(vocabulary.texts.len());
    for (id, text) in vocabulary.texts.iter().enumerate() {
        // If pieces are equal, the first is found; the others only take up IDs.
        vocab.entry(spelled(text, vocabulary.kinds[id])).or_insert(id as u32);
    }
    let lowercase = match metadata.bool(LOWERCASE)? {
        Some(stated) => stated,
        // Older files do not say; a vocabulary with capital letters belongs to a cased model.
        None => !has_capitals(&vocabulary),
    };
    let unknown = token(metadata, &vocabulary, UNKNOWN)?.ok_or_else(|| metadata.missing(UNKNOWN))?;
    let parts = Parts {
        model: Model::WordPiece {
            vocab,
            unknown: vocabulary.texts[unknown as usize].clone(),
            continuing: CONTINUING.to_owned(),
            word_chars_max: WORD_CHARS_MAX,
        },
        added: added(&vocabulary),
        normalizer: Some(NormalizerWrapper::BertNormalizer(BertNormalizer::new(true, true, None, lowercase))),
        pre_tokenizer: Some(PreTokenizerWrapper::BertPreTokenizer(BertPreTokenizer)),
    };
    let affixes = match (
        boundary(metadata, &vocabulary, [CLS, BOS])?,
        boundary(metadata, &vocabulary, [SEPARATOR, EOS])?,
    ) {
        (Some(cls), Some(sep)) => Affixes::of_bert(cls, sep, 1, 1),
        (None, _) => return Err(metadata.missing(CLS)),
        (_, None) => return Err(metadata.missing(SEPARATOR)),
    };
    finish(metadata, parts, &vocabulary, affixes)
}

/// Loads a tokenizer whose `tokenizer.ggml.model` is `t5`: a SentencePiece Unigram, XLM-RoBERTa's included.
pub(super) fn unigram(metadata: &Metadata) -> Result<Tokenizer, LoadError> {
    let vocabulary = vocabulary(metadata)?;
    let scores = metadata.floats(SCORES)?.ok_or_else(|| metadata.missing(SCORES))?;
    if scores.len() != vocabulary.texts.len() {
        let reason = format!("{} scores for {} tokens", scores.len(), vocabulary.texts.len());
        return Err(metadata.corrupt(SCORES, reason));
    }
    let unknown = token(metadata, &vocabulary, UNKNOWN)?.ok_or_else(|| metadata.missing(UNKNOWN))?;
    ids(metadata, &vocabulary)?;
    let pieces = vocabulary.texts.iter().cloned().zip(scores.iter().map(|&score| f64::from(score))).collect();
    let byte_fallback = vocabulary.kinds.contains(&Kind::Byte);
    let map = chars_map(metadata)?.map(NormalizerWrapper::Precompiled);
    // A decoder's texts begin and end as its settings say, and keep their white space; an encoder's input is a
    // single sentence.
    let (normalizer, pre_tokenizer, affixes, strips_space) = match metadata.bool(AROUND_TEXTS)? {
        None | Some(true) => {
            let affixes = match (
                boundary(metadata, &vocabulary, [CLS, BOS])?,
                boundary(metadata, &vocabulary, [SEPARATOR, EOS])?,
            ) {
                (Some(cls), Some(sep)) => Affixes::of_bert(cls, sep, 2, 0),
                (None, _) => return Err(metadata.missing(BOS)),
                (_, None) => return Err(metadata.missing(EOS)),
            };
            let metaspace = PreTokenizerWrapper::Metaspace(Metaspace::new(WORD, PrependScheme::Always, true));
            let pre_tokenizer = match metadata.bool(REMOVE_EXTRA)?.unwrap_or(true) {
                true => PreTokenizerWrapper::Sequence(Sequence::new(vec![
                    PreTokenizerWrapper::WhitespaceSplit(WhitespaceSplit),
                    metaspace,
                ])),
                false => metaspace,
            };
            (map, Some(pre_tokenizer), affixes, true)
        }
        Some(false) => {
            let prefixed = metadata.bool(ADD_SPACE)?.unwrap_or(true);
            let spaces = spaces(metadata, map, prefixed)?;
            (Some(spaces), None, affixes(metadata, &vocabulary, true)?, prefixed)
        }
    };
    let parts = Parts {
        model: Model::Unigram { pieces, unknown: Some(unknown as usize), byte_fallback },
        added: added(&vocabulary),
        normalizer,
        pre_tokenizer,
    };
    Ok(Tokenizer { strips_space, ..finish(metadata, parts, &vocabulary, affixes)? })
}

/// SentencePiece's handling of white space: a space is put before a text, and spaces are written `▁`.
fn spaces(
    metadata: &Metadata,
    map: Option<NormalizerWrapper>,
    prefixed: bool,
) -> Result<NormalizerWrapper, LoadError> {
    let replace = |pattern: ReplacePattern, content: &str| {
        let replace = Replace::new(pattern, content);
        replace.map(NormalizerWrapper::Replace).map_err(|error| metadata.corrupt(TOKENS, error.to_string()))
    };
    let mut steps: Vec<NormalizerWrapper> = map.into_iter().collect();
    if metadata.bool(REMOVE_EXTRA)?.unwrap_or(true) {
        for (pattern, content) in [("^ +", ""), (" +$", ""), (" {2,}", " ")] {
            steps.push(replace(ReplacePattern::Regex(pattern.into()), content)?);
        }
    }
    if prefixed {
        steps.push(NormalizerWrapper::Prepend(Prepend::new(WORD.to_string())));
    }
    steps.push(replace(ReplacePattern::String(" ".into()), &WORD.to_string())?);
    Ok(NormalizerWrapper::Sequence(normalizers::Sequence::new(steps)))
}

/// Map of characters to their normal forms.
pub(super) fn chars_map(metadata: &Metadata) -> Result<Option<Precompiled>, LoadError> {
    let Some(numbers) = metadata.integers(CHARS_MAP)? else { return Ok(None) };
    // Some files store signed bytes.
    let bytes: Vec<u8> = numbers.iter().map(|&number| number as u8).collect();
    chars_map::check(&bytes).map_err(|reason| metadata.corrupt(CHARS_MAP, reason))?;
    Precompiled::from(&bytes).map(Some).map_err(|error| metadata.corrupt(CHARS_MAP, error.to_string()))
}

fn has_capitals(vocabulary: &Vocabulary) -> bool {
    let word = |text: &str| {
        text.strip_prefix(WORD).is_some_and(|word| word.contains(|c: char| c.is_ascii_uppercase()))
    };
    vocabulary.texts.iter().zip(&vocabulary.kinds).any(|(text, &kind)| kind == Kind::Normal && word(text))
}

fn added(vocabulary: &Vocabulary) -> Vec<AddedToken> {
    let token = |id: u32| {
        let text = vocabulary.texts[id as usize].clone();
        // XLM-RoBERTa's mask token takes the space before it; files do not say so.
        let is_mask = text == "<mask>";
        AddedToken::from(text, true).normalized(false).lstrip(is_mask)
    };
    vocabulary.added().map(token).collect()
}

fn finish(
    metadata: &Metadata,
    parts: Parts,
    vocabulary: &Vocabulary,
    affixes: Affixes,
) -> Result<Tokenizer, LoadError> {
    let unknown = match &parts.model {
        Model::Unigram { unknown, .. } => *unknown,
        Model::WordPiece { .. } => None,
    };
    let tokenizer = parts
        .build()
        .map_err(|Unusable { part, reason }| metadata.corrupt(TOKENS, format!("{part}: {reason}")))?;
    let table =
        table(metadata, vocabulary, |text, out| out.extend_from_slice(text.replace(WORD, " ").as_bytes()))?;
    let encoder = words(metadata, tokenizer, &table, unknown)?;
    Ok(Tokenizer { encoder, affixes, table, strips_space: true })
}

/// First of the two keys' tokens that the file has.
fn boundary(
    metadata: &Metadata,
    vocabulary: &Vocabulary,
    keys: [&'static str; 2],
) -> Result<Option<u32>, LoadError> {
    match token(metadata, vocabulary, keys[0])? {
        Some(id) => Ok(Some(id)),
        None => token(metadata, vocabulary, keys[1]),
    }
}

fn token(metadata: &Metadata, vocabulary: &Vocabulary, key: &'static str) -> Result<Option<u32>, LoadError> {
    match metadata.u32(key)? {
        Some(id) if id as usize >= vocabulary.texts.len() => {
            let reason = format!("token {id} is not among the {} tokens", vocabulary.texts.len());
            Err(metadata.corrupt(key, reason))
        }
        id => Ok(id),
    }
}
