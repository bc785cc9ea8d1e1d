//! Exact bytes of each token, and whether it is a control token. Built once, read for every generated token.

use crate::limits::VOCAB_MAX;

/// Bytes and kind of every token, by ID.
#[derive(Debug, Default)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    /// End of each token's bytes; they start at the previous end.
    ends: Vec<u32>,
    special: Vec<bool>,
    /// Tokens that text of a request never becomes: special and reserved ones.
    control: Vec<bool>,
}

impl TokenTable {
    /// Creates the table from tokens in order of ID, each as (bytes, special). `None` if there are more than a
    /// vocabulary may have, or more than 4 GiB of bytes.
    pub(super) fn new(tokens: impl Iterator<Item = (Vec<u8>, bool)>) -> Option<Self> {
        let mut table = TokenTable::default();
        for (bytes, special) in tokens {
            if table.ends.len() == VOCAB_MAX {
                return None;
            }
            table.bytes.extend_from_slice(&bytes);
            table.ends.push(u32::try_from(table.bytes.len()).ok()?);
            table.special.push(special);
            table.control.push(special);
        }
        Some(table)
    }

    /// Highest ID plus one.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of a token; empty for an unknown ID.
    #[inline]
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Marks a shown token as one that structures prompts.
    pub(super) fn reserve(&mut self, id: u32) {
        if let Some(control) = self.control.get_mut(id as usize) {
            *control = true;
        }
    }

    /// Whether a token structures prompts: text of a request never becomes it.
    pub(super) fn is_control(&self, id: u32) -> bool {
        self.control.get(id as usize).copied().unwrap_or(false)
    }

    /// Whether a token is a control token that is not shown.
    #[inline]
    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
}
