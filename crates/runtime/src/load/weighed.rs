//! Lookup of importance matrix entries for the columns of a load's matrices: by their names or, for a folder, by the
//! names that GGUF files have for them or for matrices with the same input.

use std::iter::once;
use std::sync::Arc;

use super::Tensors;
use crate::error::LoadError;
use crate::importance::Importance;
use crate::spec::{LayerPart, Part, TransformerSpec, Weight};

impl Tensors {
    /// Weights the errors of columns when matrices are quantised.
    ///
    /// # Errors
    /// `Corrupt` if it is of another model, with entries for none of the matrices.
    pub(crate) fn weigh(
        &mut self,
        importance: Arc<Importance>,
        spec: &TransformerSpec,
    ) -> Result<(), LoadError> {
        let mut known = 0;
        for &weight in self.packed.keys() {
            let tensor = self.get(weight);
            let width = if spec.is_transposed(weight.part) { tensor.shape[0] } else { tensor.shape[1] };
            known += usize::from(columns(&importance, weight, &tensor.name, width)?.is_some());
        }
        if known == 0 && !self.packed.is_empty() {
            return Err(LoadError::Corrupt {
                file: importance.file().to_owned(),
                what: "importance matrix".to_owned(),
                reason: "it knows none of the matrices that are quantised".to_owned(),
            });
        }
        self.importance = Some(importance);
        Ok(())
    }

    /// Importance of each of so many columns of a matrix, if known.
    pub(crate) fn importance(&self, weight: Weight, width: usize) -> Option<&[f32]> {
        let known = columns(self.importance.as_deref()?, weight, &self.get(weight).name, width);
        known.expect("of this many columns, because `weigh` refuses others")
    }
}

/// Known importance of a matrix of so many columns.
///
/// # Errors
/// `Corrupt` if it is of another model.
fn columns<'i>(
    importance: &'i Importance,
    weight: Weight,
    name: &str,
    columns: usize,
) -> Result<Option<&'i [f32]>, LoadError> {
    for name in once(name.to_owned()).chain(others(weight)) {
        if let Some(found) = importance.of_matrix(&name, columns)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Names in GGUF files of a matrix, and of others with the same input.
fn others(weight: Weight) -> Vec<String> {
    use LayerPart::{
        AttentionOutput, Down, ExpertDown, ExpertGate, ExpertUp, Gate, Key, LatentDown, Query, QueryDown,
        SharedDown, SharedGate, SharedUp, Up, Value,
    };
    let Part::Layer(layer, part) = weight.part else { return Vec::new() };
    let (stems, expert): (&[&str], Option<usize>) = match part {
        Query => (&["attn_q", "attn_q_b", "attn_qkv"], None),
        Key | Value => (&["attn_k", "attn_v", "attn_qkv"], None),
        QueryDown | LatentDown => (&["attn_q_a", "attn_kv_a_mqa"], None),
        AttentionOutput => (&["attn_output"], None),
        Gate | Up => (&["ffn_gate", "ffn_up"], None),
        Down => (&["ffn_down"], None),
        SharedGate | SharedUp => (&["ffn_gate_shexp", "ffn_up_shexp"], None),
        SharedDown => (&["ffn_down_shexp"], None),
        ExpertGate(expert) | ExpertUp(expert) => {
            (&["ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps"], Some(expert))
        }
        ExpertDown(expert) => (&["ffn_down_exps"], Some(expert)),
        _ => (&[], None),
    };
    let place = expert.map_or_else(String::new, |expert| format!("[{expert}]"));
    stems.iter().map(|stem| format!("blk.{layer}.{stem}.weight{place}")).collect()
}
