//! Layers with recurrent states, and attention with a gated output: tensors that hold several parts, and convolutions
//! in the shapes of libraries.

use hanzo_engine_ops::{HeadShape, StateShape};

use super::grouped::in_order;
use super::resolve::Found;
use crate::error::LoadError;
use crate::spec::{AttentionSpec, LayerPart, Part, Projection, StateSpec, StateStack};
use crate::tensor::Tensor;

/// Splits a layer's parts to where each would be if it were stored separately.
pub(super) fn unstack(
    found: &mut Found<'_>,
    layer: usize,
    attention: &AttentionSpec,
    hidden: usize,
) -> Result<(), LoadError> {
    match attention.projection {
        Projection::State(state) => {
            flatten_convolution(found, layer, &state);
            flatten_numbers(found, layer, &state);
            for &(stem, stack) in found.names().state.stacks {
                unstack_state(found, layer, stem, stack, &state, hidden)?;
            }
            Ok(())
        }
        // Unless the gate has a separate tensor.
        Projection::Heads(shape) if attention.output_gate && found.names().state.query_gate.contains('[') => {
            split_queries(found, layer, shape, hidden)
        }
        Projection::Heads(_) | Projection::Latent(_) => Ok(()),
    }
}

/// Splits rows that hold, for each head, its query and then its gate.
fn split_queries(
    found: &mut Found<'_>,
    layer: usize,
    HeadShape { heads, head_dim, .. }: HeadShape,
    hidden: usize,
) -> Result<(), LoadError> {
    let (name, width) = (found.name(Part::Layer(layer, LayerPart::Query).weight()), heads * head_dim);
    if found.lacks(&name) {
        return Ok(());
    }
    let whole = found.take(&name, &[2 * width, hidden])?;
    let whole = in_order(whole, move |row| {
        let (of_gate, within) = (row / width, row % width);
        (2 * (within / head_dim) + of_gate) * head_dim + within % head_dim
    });
    cut(found, layer, &name, &whole, &[(LayerPart::Query, width), (LayerPart::QueryGate, width)])
}

/// Flattens a convolution, which libraries keep as `(channels, 1, taps)` and GGUF files as `(channels, taps)`.
fn flatten_convolution(found: &mut Found<'_>, layer: usize, state: &StateSpec) {
    let name = found.name(Part::Layer(layer, LayerPart::StateConvolution).weight());
    let (channels, taps) = (state.shape.channels(), state.shape.taps);
    let Some(mut tensor) = found.take_any(&name) else { return };
    if tensor.shape == [channels, 1, taps] || tensor.shape == [channels, taps] {
        tensor.shape = vec![channels * taps];
    }
    found.put_as(name, tensor);
}

/// Flattens numbers: GGUF files of Mamba 2 have those of heads as columns, and the norm's factors by heads of keys.
fn flatten_numbers(found: &mut Found<'_>, layer: usize, state: &StateSpec) {
    let StateShape { key_heads, value_heads, .. } = state.shape;
    let of_heads = [value_heads, 1];
    let of_norm = [key_heads, state.norm_width() / key_heads];
    for (part, shape) in
        [(LayerPart::StateDecay, of_heads), (LayerPart::StateSkip, of_heads), (LayerPart::StateNorm, of_norm)]
    {
        let name = found.name(Part::Layer(layer, part).weight());
        let Some(mut tensor) = found.take_any(&name) else { continue };
        if tensor.shape == shape {
            tensor.shape = vec![shape[0] * shape[1]];
        }
        found.put_as(name, tensor);
    }
}

fn unstack_state(
    found: &mut Found<'_>,
    layer: usize,
    stem: &str,
    stack: StateStack,
    state: &StateSpec,
    hidden: usize,
) -> Result<(), LoadError> {
    let name = found.names().in_layer(found.prefix(), layer, stem);
    let shape = state.shape;
    // Each head of keys has so many rows of each part; the rows of a part are contiguous in the result.
    let values = shape.value_heads / shape.key_heads;
    let (sizes, parts) = match stack {
        StateStack::QueryKeyValueGate => {
            let of_values = values * shape.value_dim;
            let parts = [(LayerPart::StateInput, 3), (LayerPart::StateGate, 1)];
            (vec![shape.key_dim, shape.key_dim, of_values, of_values], parts)
        }
        StateStack::BetaStep => (vec![values; 2], [(LayerPart::StateBeta, 1), (LayerPart::StateStep, 1)]),
        StateStack::GateInputStep => {
            let parts = [
                (LayerPart::StateGate, shape.value_width()),
                (LayerPart::StateInput, shape.channels()),
                (LayerPart::StateStep, shape.value_heads),
            ];
            let rows = parts.iter().map(|&(_, rows)| rows).sum();
            return match found.take_if_there(&name, &[rows, hidden])? {
                Some(whole) => cut(found, layer, &name, &whole, &parts),
                None => Ok(()),
            };
        }
    };
    let group: usize = sizes.iter().sum();
    let Some(whole) = found.take_if_there(&name, &[shape.key_heads * group, hidden])? else { return Ok(()) };
    let (heads, of_groups) = (shape.key_heads, sizes.clone());
    let whole = in_order(whole, move |row| stored_row(heads, &of_groups, row));
    let mut next = 0;
    let parts = parts.map(|(part, count)| {
        let rows = heads * sizes[next..next + count].iter().sum::<usize>();
        next += count;
        (part, rows)
    });
    cut(found, layer, &name, &whole, &parts)
}

/// Puts parts of so many rows each, one below the other, where each would be if it were stored separately.
fn cut(
    found: &mut Found<'_>,
    layer: usize,
    name: &str,
    whole: &Tensor,
    parts: &[(LayerPart, usize)],
) -> Result<(), LoadError> {
    let mut first = 0;
    for &(part, rows) in parts {
        let mut tensor = whole.rows(first..first + rows);
        tensor.name = format!("{name}[{first}..{}]", first + rows);
        found.insert_part(Part::Layer(layer, part).weight(), tensor, name)?;
        first += rows;
    }
    Ok(())
}

/// Position in files of a row, for parts that have so many rows for each head.
fn stored_row(heads: usize, sizes: &[usize], row: usize) -> usize {
    let (mut before, mut first) = (0, 0);
    let group: usize = sizes.iter().sum();
    for &size in sizes {
        let within = row - first;
        if within < heads * size {
            return within / size * group + before + within % size;
        }
        (before, first) = (before + size, first + heads * size);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_where_heads_have_them() {
        // Two heads of keys, each with a row of the first part and two of the second.
        let stored: Vec<usize> = (0..6).map(|row| stored_row(2, &[1, 2], row)).collect();
        assert_eq!(stored, [0, 3, 1, 2, 4, 5]);
    }
}
