//! Gemma's tensors in other packings than one after the other: matrices of streams in one tensor, and tables with
//! fewer rows than tokens.

use super::resolve::Found;
use crate::error::LoadError;
use crate::mapped::ModelBytes;
use crate::spec::{GemmaPart, Part, TransformerSpec};
use crate::tensor::Tensor;

/// Splits the tensors that hold a matrix for each stream after the first, if a file has such.
pub(super) fn cut_streams(found: &mut Found<'_>, spec: &TransformerSpec) -> Result<(), LoadError> {
    let Some(streams) = &spec.streams else { return Ok(()) };
    for part in [GemmaPart::StreamUp as fn(usize) -> GemmaPart, GemmaPart::StreamDown] {
        let first = found.name(Part::Gemma(part(0)).weight());
        let Some(stack) = first.strip_suffix("[0]") else { continue };
        let whole = found.take(stack, &[streams.count - 1, spec.hidden, spec.hidden])?;
        for (stream, tensor) in whole.parts().enumerate() {
            found.insert_part(Part::Gemma(part(stream)).weight(), tensor, stack)?;
        }
    }
    Ok(())
}

/// Pads the table of layer inputs: tokens past its end, those of images and sound, get the first row, like padding.
pub(super) fn pad_inputs(found: &mut Found<'_>, spec: &TransformerSpec) -> Result<(), LoadError> {
    let name = found.name(Part::Gemma(GemmaPart::InputEmbedding).weight());
    let rows_of = |tensor: &&Tensor| tensor.shape.len() == 2 && (1..spec.vocab).contains(&tensor.shape[0]);
    if spec.layer_inputs.is_none() || spec.streams.is_none() || found.get(&name).filter(rows_of).is_none() {
        return Ok(());
    }
    let Some(table) = found.take_any(&name) else { return Ok(()) };
    let (rows, row_bytes) = (table.shape[0], table.bytes.len() / table.shape[0]);
    let source = table.bytes.clone();
    let make = move |range: std::ops::Range<usize>, out: &mut [u8]| {
        let own = range.start.min(rows)..range.end.min(rows);
        let (have, padding) = out.split_at_mut(own.len() * row_bytes);
        if let Some(bytes) = source.slice(own.start * row_bytes..own.end * row_bytes) {
            have.copy_from_slice(&bytes.read());
        }
        let Some(first) = source.slice(0..row_bytes) else { return };
        let first = first.read();
        padding.chunks_exact_mut(row_bytes).for_each(|out| out.copy_from_slice(&first));
    };
    let bytes = ModelBytes::of_rows(spec.vocab, row_bytes, vec![table.bytes.clone()], make);
    found.put_back(Tensor { shape: vec![spec.vocab, table.shape[1]], bytes, ..table });
    Ok(())
}
