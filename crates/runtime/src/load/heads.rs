//! Decision whether a network's head is its embedding. A configuration says so, but the stored matrices decide, as in
//! the transformers library: two matrices with different numbers are both used, and a head without an embedding serves
//! as the embedding too.

use super::Found;
use crate::error::LoadError;
use crate::spec::{Part, TransformerSpec};
use crate::tensor::Tensor;

/// Bytes of two matrices that are compared at a time. Some are made as they are read.
const COMPARED_BYTES: usize = 1 << 20;

impl Found<'_> {
    /// Decides, by the stored matrices, about a head that the configuration ties to the embedding.
    ///
    /// # Errors
    /// `Corrupt` if a stored head has another shape than the embedding.
    pub(crate) fn settle_head(&mut self, spec: &mut TransformerSpec) -> Result<(), LoadError> {
        if !spec.head.tied() || self.names().head.is_empty() {
            return Ok(());
        }
        let (embedding, head) = (self.name(Part::TokenEmbedding.weight()), self.name(Part::Head.weight()));
        let shape = [spec.vocab, spec.hidden];
        let Some(mut stored) = self.take_if_there(&head, &shape)? else { return Ok(()) };
        match self.get(&embedding) {
            None => {
                stored.name = embedding;
                self.put_back(stored);
            }
            Some(embedding) if has_same_numbers(embedding, &stored) => {}
            Some(_) => {
                self.put_back(stored);
                spec.head.untie();
            }
        }
        Ok(())
    }
}

/// Whether two matrices have the same numbers in the same type.
pub(crate) fn has_same_numbers(one: &Tensor, other: &Tensor) -> bool {
    if one.dtype != other.dtype || one.elements() != other.elements() || one.bytes.len() != other.bytes.len()
    {
        return false;
    }
    // PyTorch's files have both names for the same bytes.
    if one.bytes.is_same_view(&other.bytes) {
        return true;
    }
    let length = one.bytes.len();
    let same = (0..length).step_by(COMPARED_BYTES).all(|start| {
        let range = start..length.min(start + COMPARED_BYTES);
        match (one.bytes.slice(range.clone()), other.bytes.slice(range)) {
            (Some(one), Some(other)) => one.read() == other.read(),
            _ => false,
        }
    });
    one.bytes.release();
    other.bytes.release();
    same
}
