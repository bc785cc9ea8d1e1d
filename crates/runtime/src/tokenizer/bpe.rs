//! Byte-pair encoding by the `tokenizers` crate, from parts that have been checked first: the crate trusts its
//! input, so whatever could make it panic, draw random numbers or misnumber a token is refused here.

use std::collections::HashMap;

use tokenizers::{
    AddedToken, NormalizerWrapper, PreTokenizerWrapper, Tokenizer,
    models::bpe::{BPE, Vocab},
};

use crate::limits::VOCAB_MAX;

/// Everything a byte-pair tokenizer is made of.
#[derive(Default)]
pub(super) struct Parts {
    /// Token texts and ids, added tokens included.
    pub(super) vocab: HashMap<String, u32>,
    /// Pairs of token texts, best first.
    pub(super) merges: Vec<(String, String)>,
    /// Tokens found in text before anything else happens to it.
    pub(super) added: Vec<AddedToken>,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: Option<PreTokenizerWrapper>,
    /// A word that is a token is that token, whatever the merges make of it.
    pub(super) ignore_merges: bool,
    /// Characters outside the vocabulary become tokens of their bytes, `<0x00>` to `<0xFF>`.
    pub(super) byte_fallback: bool,
    /// What other characters become; they vanish without it.
    pub(super) unknown: Option<String>,
    /// Neighbouring unknown characters become one token.
    pub(super) fuse_unknown: bool,
    /// Behind the last character of each word (CLIP).
    pub(super) word_end: Option<String>,
}

/// A part that cannot be used.
pub(super) struct Unusable {
    /// Which part.
    pub(super) part: Part,
    /// Why.
    pub(super) reason: String,
}

/// The parts an error can be about; the caller knows what its format calls them.
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
        // No cache: it would be one per thread that ever encoded, kept after the model is gone.
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
