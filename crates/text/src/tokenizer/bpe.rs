//! Byte-pair encoding by the `tokenizers` crate. All parts are checked first, because the crate trusts its input:
//! anything that could make it panic, draw random numbers or misnumber a token is refused here.

use std::collections::HashMap;

use tokenizers::{
    AddedToken, NormalizerWrapper, PreTokenizerWrapper, Tokenizer,
    models::bpe::{BPE, Vocab},
};

use crate::limits::VOCAB_MAX;

/// Parts of a byte-pair tokenizer.
#[derive(Default)]
pub(super) struct Parts {
    /// Token texts and IDs, added tokens included.
    pub(super) vocab: HashMap<String, u32>,
    /// Pairs of token texts, best first.
    pub(super) merges: Vec<(String, String)>,
    /// Tokens found in text before any other step.
    pub(super) added: Vec<AddedToken>,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: Option<PreTokenizerWrapper>,
    /// A word that is a token becomes that token, regardless of merges.
    pub(super) ignore_merges: bool,
    /// Characters outside the vocabulary become tokens of their bytes, `<0x00>` to `<0xFF>`.
    pub(super) byte_fallback: bool,
    /// Token for other characters; without it they are dropped.
    pub(super) unknown: Option<String>,
    /// Merge consecutive unknown characters into one token.
    pub(super) fuse_unknown: bool,
    /// Suffix of the last character of each word (CLIP).
    pub(super) word_end: Option<String>,
}

/// Part that cannot be used.
pub(super) struct Unusable {
    /// Part.
    pub(super) part: Part,
    /// Reason.
    pub(super) reason: String,
}

/// Parts that an error can be about; the caller knows their names in its format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Part {
    Vocab,
    Merges,
    Added,
    Unknown,
    Normalizer,
}

impl Parts {
    /// Checks the parts and builds the tokenizer. Added tokens must be in `vocab`.
    pub(super) fn build(self) -> Result<Tokenizer, Unusable> {
        let unusable = |part, reason| Unusable { part, reason };
        if let Some((text, id)) = self.vocab.iter().find(|&(_, &id)| id as usize >= VOCAB_MAX) {
            return Err(unusable(
                Part::Vocab,
                format!("token {text:?} has id {id}, above the limit of {VOCAB_MAX}"),
            ));
        }
        let mut merged = String::new();
        for (rank, (left, right)) in self.merges.iter().enumerate() {
            merged.clear();
            merged.push_str(left);
            merged.push_str(right);
            for token in [left, right, &merged] {
                if !self.vocab.contains_key(token) {
                    let reason = format!("merge {rank} ({left:?}, {right:?}): {token:?} is not a token");
                    return Err(unusable(Part::Merges, reason));
                }
            }
        }
        if let Some(unknown) = self.unknown.as_ref().filter(|&token| !self.vocab.contains_key(token)) {
            return Err(unusable(Part::Unknown, format!("{unknown:?} is not a token")));
        }
        if let Some(token) = self.added.iter().find(|token| !self.vocab.contains_key(&token.content)) {
            return Err(unusable(Part::Added, format!("{:?} is not in the vocabulary", token.content)));
        }
        let vocab: Vocab = self.vocab.into_iter().collect();
        // No cache: the crate would keep one for every thread that ever encoded, even after the model is gone.
        let mut builder = BPE::builder()
            .vocab_and_merges(vocab, self.merges)
            .cache_capacity(0)
            .ignore_merges(self.ignore_merges)
            .byte_fallback(self.byte_fallback)
            .fuse_unk(self.fuse_unknown);
        if let Some(end) = self.word_end {
            builder = builder.end_of_word_suffix(end);
        }
        if let Some(unknown) = self.unknown {
            builder = builder.unk_token(unknown);
        }
        let model = builder.build().map_err(|error| unusable(Part::Merges, error.to_string()))?;
        let mut tokenizer = Tokenizer::new(model);
        tokenizer
            .with_normalizer(self.normalizer)
            .map_err(|error| unusable(Part::Normalizer, error.to_string()))?
            .with_pre_tokenizer(self.pre_tokenizer);
        tokenizer.add_tokens(self.added).map_err(|error| unusable(Part::Added, error.to_string()))?;
        Ok(tokenizer)
    }
}
