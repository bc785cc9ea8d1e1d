//! Marlin's layout, which the tools of GPTQ and AWQ write for one device's kernel: 4-bit codes around 8 in tiles of 16
//! inputs and 16 outputs, in the order in which the threads of a warp hold them. They become affine blocks without
//! loss.

use super::made::four_bit_codes;
use super::numbers::{Numbers, Words};
use super::packed::{expect, flat, group_of};
use super::{Parts, corrupt};
use crate::error::LoadError;
use crate::tensor::Tensor;

/// Number of codes that are reordered together: four tiles.
const CODES: usize = 1024;

/// `X.B` I32 and `X.s` (AutoGPTQ), or `X.qweight` and `X.scales` (AutoAWQ): `w = scale * (code - 8)`.
pub(super) fn matrix(parts: &mut Parts, stem: &str, [codes, scales]: [&str; 2]) -> Result<Tensor, LoadError> {
    let weight = parts.take(&format!("{stem}.{codes}"))?;
    let scales = parts.take(&format!("{stem}.{scales}"))?;
    parts.take_if_there(&format!("{stem}.workspace"));
    if let Some(zeros) = parts.take_if_there(&format!("{stem}.qzeros")) {
        return Err(corrupt(&zeros, "Marlin's layout has no zero points".into()));
    }
    let ([tiles, words], [groups, rows]) = (flat(&weight)?, flat(&scales)?);
    let cols = 16 * tiles;
    if !rows.is_multiple_of(64) {
        return Err(corrupt(&scales, format!("{rows} outputs are no tiles of 64")));
    }
    expect(&weight, &[tiles, 2 * rows])?;
    let group = group_of(&weight, cols, groups)?;
    let order = places();
    let (stored, scale) = (Words::of(&weight)?, Numbers::scales(&scales, None)?);
    let sources = vec![weight.bytes.clone(), scales.bytes.clone()];
    let code = move |row: usize, col: usize| {
        let at = row / 16 * 256 + col % 16 * 16 + row % 16;
        let place = at / CODES * CODES + usize::from(order[at % CODES]);
        let word = stored.at(col / 16 * words + place / 8);
        (word >> (4 * (place % 8)) & 15) as u8
    };
    let factors = move |row, of| {
        let scale = scale.at(of * rows + place_of_scale(row, groups == 1));
        (scale, -8.0 * scale)
    };
    let affine = four_bit_codes([rows, cols], group, code, factors);
    Ok(affine.tensor(&weight, format!("{stem}.weight"), sources))
}

/// Position of each of so many codes: thread by thread, each with the pairs of two columns of four tiles, and of eight
/// codes the even ones first.
fn places() -> Vec<u16> {
    let mut places = vec![0; CODES];
    let mut next = 0;
    for thread in 0..32 {
        for tile in 0..4 {
            let mut of_tile = [0; 8];
            for (half, four) in of_tile.chunks_exact_mut(4).enumerate() {
                let pair = 2 * (thread % 4);
                for (code, row) in four.iter_mut().zip([pair, pair + 1, pair + 8, pair + 9]) {
                    *code = 16 * row + thread / 4 + 8 * half + 256 * tile;
                }
            }
            for code in [0, 2, 4, 6, 1, 3, 5, 7] {
                places[of_tile[code]] = next;
                next += 1;
            }
        }
    }
    places
}

/// Position of an output's scale among those of its group. Of eight times eight columns, those that one thread needs
/// are neighbours; if a group is a whole row, pairs of four are.
fn place_of_scale(row: usize, whole_rows: bool) -> usize {
    if !whole_rows {
        let of = row % 64;
        return row - of + of % 8 * 8 + of / 8;
    }
    // The first thread's are 0, 1, 8, 9, 16, 17, 24, 25.
    let of = row % 32;
    row - of + of % 8 / 2 * 8 + of / 8 * 2 + of % 2
}
