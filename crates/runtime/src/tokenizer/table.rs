//! What each token writes: its exact bytes, and whether it is a control token. Built once, read for every token
//! that is generated.

use crate::limits::VOCAB_MAX;

/// Bytes and kind of every token, by id.
#[derive(Debug, Default)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    /// Where each token's bytes end; they begin where the one before ends.
    ends: Vec<u32>,
    special: Vec<bool>,
    /// Tokens that only a model's own words spell: the special ones and those reserved.
    control: Vec<bool>,
}

impl TokenTable {
    /// The table of tokens in order of id, each as (bytes, special). `None` if there are more of them than a
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

    /// The highest id plus one.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token; none for an unknown id.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Takes a token for one that structures prompts, though it is shown.
    pub(super) fn reserve(&mut self, id: u32) {
        if let Some(control) = self.control.get_mut(id as usize) {
            *control = true;
        }
    }

    /// Whether a token structures prompts: what a request writes never becomes it.
    pub(super) fn is_control(&self, id: u32) -> bool {
        self.control.get(id as usize).copied().unwrap_or(false)
    }

    /// Whether a token is a control token that is not shown.
    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
}
