//! Panels that hold a file's blocks as they are: codebook and ternary types, whose weights become signed bytes times a
//! scale by table look-up. A run of blocks is decoded to such bytes before the tiles use it.

use super::gemm::DECODED_ZERO;
use super::matrix::PANEL_ROWS;
use hanzo_engine_ops::DType;
use hanzo_engine_ops::quant::decode_groups;

/// Decodes `(blocks, 16, block_bytes)` to codes plus 64, `(blocks, 64, 16, 4)`, and scales, `(blocks, 16, 16)`. The
/// lane is the last dimension in both, except for the four inputs of a vector.
pub(super) fn decode(dtype: DType, blocks: &[u8], codes: &mut [u8], scales: &mut [f32]) {
    let (mut block_codes, mut block_scales) = ([0i8; 256], [0.0f32; 16]);
    let blocks = blocks.chunks_exact(PANEL_ROWS * dtype.block_bytes());
    let outs = codes.chunks_exact_mut(256 * PANEL_ROWS).zip(scales.chunks_exact_mut(16 * PANEL_ROWS));
    for (rows, (codes, scales)) in blocks.zip(outs) {
        for (lane, block) in rows.chunks_exact(dtype.block_bytes()).enumerate() {
            decode_groups(dtype, block, &mut block_codes, &mut block_scales);
            let fours = block_codes.chunks_exact(4);
            for (four, vector) in fours.zip(codes.chunks_exact_mut(4 * PANEL_ROWS)) {
                let raised = [four[0], four[1], four[2], four[3]].map(|code| (code as u8).wrapping_add(ZERO));
                vector[4 * lane..4 * lane + 4].copy_from_slice(&raised);
            }
            for (&scale, group) in block_scales.iter().zip(scales.chunks_exact_mut(PANEL_ROWS)) {
                group[lane] = scale;
            }
        }
    }
}

/// Every code of these types is from -64 to 63.
const ZERO: u8 = DECODED_ZERO as u8;
