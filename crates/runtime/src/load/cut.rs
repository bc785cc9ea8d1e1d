//! Splitting of tensors that hold several parts of a layer: queries, keys and values, or gate and up, as one.

use super::resolve::Found;
use super::{grouped, states};
use crate::error::LoadError;
use crate::spec::{ExpertsSpec, GateUp, LayerPart, LayerSpec, Part, Projection, Weight};

impl Found<'_> {
    /// Splits the rows of a layer's attention or state, whose columns are `cols`.
    pub(super) fn cut_attention(
        &mut self,
        index: usize,
        layer: &LayerSpec,
        cols: usize,
    ) -> Result<(), LoadError> {
        // Files of Phi-2 have queries, keys and values either as one tensor or separately.
        let apart = self.names().qkv_or_apart
            && self.get(&self.name(Part::Layer(index, LayerPart::Query).weight())).is_some();
        let fused = self.names().qkv.filter(|_| !apart);
        if let (Some(stem), Projection::Heads(shape)) = (fused, layer.attention.projection) {
            let (q, kv) = (shape.q_width(), shape.kv_heads * shape.head_dim);
            let parts = [(LayerPart::Query, q), (LayerPart::Key, kv), (LayerPart::Value, kv)];
            if self.names().qkv_by_group {
                grouped::ungroup(self, index, stem, shape, &[q + 2 * kv, cols])?;
                if layer.attention.qkv_bias {
                    grouped::ungroup(self, index, stem, shape, &[q + 2 * kv])?;
                }
            }
            self.cut(index, stem, false, &[q + 2 * kv, cols], &parts)?;
            if layer.attention.qkv_bias {
                self.cut(index, stem, true, &[q + 2 * kv], &parts)?;
            }
        }
        states::unstack(self, index, &layer.attention, cols)
    }

    /// Splits the tensor of an MLP's gate and up, whose columns are `cols`, if there is one.
    pub(super) fn cut_gate_up(&mut self, index: usize, ffn: usize, cols: usize) -> Result<(), LoadError> {
        let Some(GateUp { name, gate_first }) = self.names().gate_up else { return Ok(()) };
        let mut parts = [(LayerPart::Gate, ffn), (LayerPart::Up, ffn)];
        if !gate_first {
            parts.reverse();
        }
        self.cut(index, name, false, &[2 * ffn, cols], &parts)
    }

    /// Splits the tensor of gate and up of the shared expert, if there is one.
    pub(super) fn cut_shared_gate_up(
        &mut self,
        index: usize,
        experts: &ExpertsSpec,
        cols: usize,
    ) -> Result<(), LoadError> {
        let (Some(name), Some(shared)) = (self.names().shared_gate_up, experts.shared) else { return Ok(()) };
        let parts = [(LayerPart::SharedGate, shared.ffn), (LayerPart::SharedUp, shared.ffn)];
        self.cut(index, name, false, &[2 * shared.ffn, cols], &parts)
    }

    /// Renames the matrix that makes queries from a latent to the usual name of queries.
    pub(super) fn name_queries(&mut self, index: usize, layer: &LayerSpec) -> Result<(), LoadError> {
        if let Projection::Latent(latent) = layer.attention.projection
            && latent.query_rank.is_some()
            && !self.names().query_up.is_empty()
        {
            let stem = format!("{}.weight", self.names().query_up);
            let up = self.names().in_layer(self.prefix(), index, &stem);
            if let Some(tensor) = self.take_any(&up) {
                self.insert_part(Part::Layer(index, LayerPart::Query).weight(), tensor, &up)?;
            }
        }
        Ok(())
    }

    fn cut(
        &mut self,
        layer: usize,
        stem: &str,
        bias: bool,
        shape: &[usize],
        parts: &[(LayerPart, usize)],
    ) -> Result<(), LoadError> {
        let suffix = if bias { "bias" } else { "weight" };
        let name = self.names().in_layer(self.prefix(), layer, &format!("{stem}.{suffix}"));
        if self.lacks(&name) {
            return Ok(());
        }
        let whole = self.take(&name, shape)?;
        let mut first = 0;
        for &(part, rows) in parts {
            let mut tensor = whole.rows(first..first + rows);
            tensor.name = format!("{}[{first}..{}]", whole.name, first + rows);
            self.insert_part(Weight { part: Part::Layer(layer, part), bias }, tensor, &name)?;
            first += rows;
        }
        Ok(())
    }
}
