//! Reference implementation of norms of some columns of a row.

use super::{ReferenceBuffer, formulas};
use crate::{LayerNormParams, NormColumns};

/// `layer_norm` in place on columns from `first` on, in parts of `width` columns that are normed separately.
pub(super) fn layer_norm_columns(
    rows: usize,
    x: &mut ReferenceBuffer,
    NormColumns { first, width }: NormColumns,
    params: &LayerNormParams<&Vec<f32>>,
) {
    let count = params.weight.len();
    assert!(params.bias.is_none_or(|bias| bias.len() == count), "one weight and one bias a column");
    x.check(rows, x.cols, "x");
    assert!(first + count <= x.cols, "columns the rows have");
    assert!(width > 0 && count.is_multiple_of(width), "columns that are normed apart");
    for row in 0..rows {
        let part = &mut x.row_mut(row)[first..first + count];
        for (index, part) in part.chunks_exact_mut(width).enumerate() {
            let of_part = index * width..(index + 1) * width;
            let plain = part.to_vec();
            let bias = params.bias.map(|bias| &bias[of_part.clone()]);
            formulas::layer_norm(&plain, &params.weight[of_part], bias, params.eps, part);
        }
    }
}
