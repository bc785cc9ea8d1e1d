//! Queries, keys and values whose rows files have grouped by head of keys: its queries, its key and its value. Rows
//! are reordered when they are read.

use hanzo_engine_ops::HeadShape;

use super::resolve::Found;
use crate::error::LoadError;
use crate::mapped::ModelBytes;
use crate::tensor::Tensor;

/// Reorders the rows of a layer's tensor to queries, keys and values; a bias if `shape` has one dimension.
pub(super) fn ungroup(
    found: &mut Found<'_>,
    layer: usize,
    stem: &str,
    heads: HeadShape,
    shape: &[usize],
) -> Result<(), LoadError> {
    let suffix = if shape.len() == 1 { "bias" } else { "weight" };
    let name = found.names().in_layer(found.prefix(), layer, &format!("{stem}.{suffix}"));
    if found.lacks(&name) {
        return Ok(());
    }
    let whole = found.take(&name, shape)?;
    found.put_as(name, in_order(whole, move |row| stored_row(heads, row)));
    Ok(())
}

/// A tensor each of whose rows is the row `stored_row` of another.
pub(super) fn in_order(whole: Tensor, stored_row: impl Fn(usize) -> usize + Send + Sync + 'static) -> Tensor {
    let rows = whole.shape[0];
    let row_bytes = whole.bytes.len() / rows;
    let source = whole.bytes.clone();
    let make = move |range: std::ops::Range<usize>, out: &mut [u8]| {
        let bytes = source.read();
        for (row, out) in range.zip(out.chunks_exact_mut(row_bytes)) {
            out.copy_from_slice(&bytes[stored_row(row) * row_bytes..][..row_bytes]);
        }
    };
    let bytes = ModelBytes::of_rows(rows, row_bytes, vec![whole.bytes.clone()], make);
    Tensor { bytes, ..whole }
}

/// Position in files of a row of queries, keys and values.
fn stored_row(HeadShape { heads, kv_heads, head_dim }: HeadShape, row: usize) -> usize {
    let (queries, group) = (heads / kv_heads, heads / kv_heads + 2);
    let (head, within) = (row / head_dim, row % head_dim);
    let stored = match head.checked_sub(heads) {
        None => head / queries * group + head % queries,
        Some(key) if key < kv_heads => key * group + queries,
        Some(past) => (past - kv_heads) * group + queries + 1,
    };
    stored * head_dim + within
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_where_groups_have_them() {
        // Two groups of three queries, a key and a value, of two elements each.
        let heads = HeadShape { heads: 6, kv_heads: 2, head_dim: 2 };
        let stored: Vec<usize> = (0..20).map(|row| stored_row(heads, row)).collect();
        let expected = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15, 6, 7, 16, 17, 8, 9, 18, 19];
        assert_eq!(stored, expected);
    }
}
