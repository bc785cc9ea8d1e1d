//! Codes of a few bits in 32-bit words, with a scale for each group: MLX, GPTQ and compressed-tensors'
//! `pack-quantized`. All become affine blocks without loss.

use std::ops::Range;

use hanzo_engine_ops::DType;

use super::made::Affine;
use super::numbers::{Numbers, Words};
use super::settings::Settings;
use super::{Parts, corrupt, refused, scaled};
use crate::error::LoadError;
use crate::tensor::Tensor;

/// Rows and columns of a tensor, with all dimensions but the last combined.
pub(super) fn flat(tensor: &Tensor) -> Result<[usize; 2], LoadError> {
    match tensor.shape.split_last() {
        Some((&cols, rows)) if !rows.is_empty() => Ok([rows.iter().product(), cols]),
        _ => Err(corrupt(tensor, format!("expected a matrix, found {:?}", tensor.shape))),
    }
}

/// Checks the shape of a tensor.
pub(super) fn expect(tensor: &Tensor, shape: &[usize]) -> Result<(), LoadError> {
    tensor.check_shape(shape)
}

/// `X.weight` U32 of words, `X.scales`, `X.biases`: MLX's affine mode. Without biases and with bytes for scales: its
/// modes of small floats.
pub(super) fn mlx(settings: &Settings, parts: &mut Parts, stem: &str) -> Result<Tensor, LoadError> {
    let weight = parts.take(&format!("{stem}.weight"))?;
    let scales = parts.take(&format!("{stem}.scales"))?;
    if matches!(scales.dtype, DType::U8 | DType::F8_E8M0 | DType::F8_E4M3) {
        return mlx_floats(settings, &weight, &scales);
    }
    let biases = parts.take(&format!("{stem}.biases"))?;
    let (bits, group) = settings.mlx_of(stem, &weight)?;
    let [rows, words] = flat(&weight)?;
    if !(words * 32).is_multiple_of(bits as usize) {
        return Err(corrupt(&weight, format!("rows of {words} words are no codes of {bits} bits")));
    }
    let cols = words * 32 / bits as usize;
    if group == 0 || !cols.is_multiple_of(group) {
        return Err(corrupt(&weight, format!("rows of {cols} weights are no groups of {group}")));
    }
    let groups = cols / group;
    let shape = weight.shape.clone();
    let mut expected = shape.clone();
    expected[shape.len() - 1] = groups;
    expect(&scales, &expected)?;
    expect(&biases, &expected)?;
    let (scale, bias) = (Numbers::scales(&scales, None)?, Numbers::of(&biases)?);
    let bytes = weight.bytes.clone();
    let affine = Affine {
        bits,
        rows,
        cols,
        group,
        group_of: None,
        codes: move |range: Range<usize>, out: &mut [u8]| {
            let packed = &bytes[4 * words * range.start..4 * words * range.end];
            hanzo_engine_ops::quant::affine_codes(bits, packed, out);
        },
        factors: move |row, of| (scale.at(row * groups + of), bias.at(row * groups + of)),
    };
    let sources = vec![weight.bytes.clone(), scales.bytes, biases.bytes];
    let mut tensor = affine.tensor(&weight, weight.name.clone(), sources);
    tensor.shape = shape;
    *tensor.shape.last_mut().expect("a matrix") = cols;
    Ok(tensor)
}

/// MLX's modes of small floats, distinguished by their groups: 8 words a group are 32 floats of 8 bits (mxfp8), 4
/// words are 32 floats of 4 bits (mxfp4), 2 words are 16 floats of 4 bits (nvfp4).
fn mlx_floats(settings: &Settings, weight: &Tensor, scales: &Tensor) -> Result<Tensor, LoadError> {
    let ([rows, words], [_, groups]) = (flat(weight)?, flat(scales)?);
    let of_bytes = |dtype: DType| {
        let mut shape = weight.shape.clone();
        *shape.last_mut().expect("a matrix") = 4 * words;
        Tensor { dtype, shape, ..weight.clone() }
    };
    match words.checked_div(groups).filter(|each| each * groups == words) {
        Some(8) => scaled::floats(settings, of_bytes(DType::F8_E4M3), scales),
        Some(4) => {
            let made = scaled::mxfp4(weight, weight.name.clone(), scales, [rows, 8 * words])?;
            let mut shape = weight.shape.clone();
            *shape.last_mut().expect("a matrix") = 8 * words;
            Ok(Tensor { shape, ..made })
        }
        Some(2) => scaled::nvfp4(&of_bytes(DType::U8), weight.name.clone(), scales, 1.0),
        _ => Err(corrupt(scales, format!("{groups} groups for rows of {words} words"))),
    }
}

/// `X.qweight`, `X.qzeros`, `X.scales` and, if columns were reordered, `X.g_idx`.
pub(super) fn gptq(settings: &Settings, parts: &mut Parts, stem: &str) -> Result<Tensor, LoadError> {
    let weight = parts.take(&format!("{stem}.qweight"))?;
    let zeros = parts.take(&format!("{stem}.qzeros"))?;
    let scales = parts.take(&format!("{stem}.scales"))?;
    let order = parts.take_if_there(&format!("{stem}.g_idx"));
    let ([words, rows], [groups, _]) = (flat(&weight)?, flat(&scales)?);
    // Some makers change the number of bits from module to module by name patterns; the tensors' shapes give it too.
    let bits = match (&order, zeros.shape.as_slice()) {
        (Some(order), _) => 32 * words / order.elements().max(1),
        (None, &[_, across]) if across > 0 && (32 * across).is_multiple_of(rows) => 32 * across / rows,
        _ => settings.bits.ok_or_else(|| settings.missing("bits"))? as usize,
    } as u32;
    if !matches!(bits, 2 | 3 | 4 | 8) || !(32 * words).is_multiple_of(bits as usize) {
        return Err(refused(&weight, format!("codes of {bits} bits; 2, 3, 4 and 8 are read")));
    }
    let cols = 32 * words / bits as usize;
    let group = group_of(&weight, cols, groups)?;
    if !cols.is_multiple_of(32) || !(rows * bits as usize).is_multiple_of(32) {
        return Err(corrupt(&weight, format!("[{rows}, {cols}] are not whole words of {bits} bits")));
    }
    expect(&scales, &[groups, rows])?;
    expect(&zeros, &[groups, rows * bits as usize / 32])?;
    let group_of = match &order {
        Some(order) => groups_of_inputs(order, [cols, groups])?,
        None => None,
    };
    let (codes, zero, scale) = (Words::of(&weight)?, Words::of(&zeros)?, Numbers::scales(&scales, None)?);
    let zero_words = rows * bits as usize / 32;
    let less_one = settings.zeros_less_one;
    let affine = Affine {
        bits,
        rows,
        cols,
        group,
        group_of,
        codes: move |range: Range<usize>, out: &mut [u8]| {
            // 32 codes of a row take as many words as they have bits, one below the other.
            let mut packed = [0; 32];
            for unit in 0..cols / 32 {
                for (at, row) in range.clone().enumerate() {
                    for word in 0..bits as usize {
                        let code = codes.at((unit * bits as usize + word) * rows + row);
                        packed[4 * word..4 * word + 4].copy_from_slice(&code.to_le_bytes());
                    }
                    let out = &mut out[at * cols + 32 * unit..][..32];
                    hanzo_engine_ops::quant::affine_codes(bits, &packed[..4 * bits as usize], out);
                }
            }
        },
        factors: move |row, of| {
            let zero = zero.code(bits, of * zero_words, 1, row);
            let zero = if less_one { (zero + 1) & ((1 << bits) - 1) } else { zero };
            let scale = scale.at(of * rows + row);
            (scale, -(scale * zero as f32))
        },
    };
    let sources = vec![weight.bytes.clone(), zeros.bytes, scales.bytes];
    Ok(affine.tensor(&weight, format!("{stem}.weight"), sources))
}

/// Number of inputs that share a scale.
pub(super) fn group_of(weight: &Tensor, cols: usize, groups: usize) -> Result<usize, LoadError> {
    match cols.checked_div(groups) {
        Some(group) if group > 0 && cols == group * groups => Ok(group),
        _ => Err(corrupt(weight, format!("{cols} inputs are not {groups} groups"))),
    }
}

/// Group of each input, if inputs are not in the order of their groups (`desc_act`).
fn groups_of_inputs(order: &Tensor, [cols, groups]: [usize; 2]) -> Result<Option<Vec<u32>>, LoadError> {
    expect(order, &[cols])?;
    let words = Words::of(order)?;
    let of: Vec<u32> = (0..cols).map(|at| words.at(at)).collect();
    if let Some(at) = of.iter().position(|&of| of as usize >= groups) {
        return Err(corrupt(order, format!("input {at} is of group {}, of {groups}", of[at] as i32)));
    }
    let ordered = of.iter().enumerate().all(|(at, &of)| of as usize == at / (cols / groups));
    Ok((!ordered).then_some(of))
}

/// `X.weight_packed` I32, `X.weight_scale`, `X.weight_shape` and optional tensors: compressed-tensors'
/// `pack-quantized`. Codes of 3, 5 and 6 bits span words; until version 0.12 of the library they left some bits of
/// each word empty.
pub(super) fn pack_quantized(
    settings: &Settings,
    parts: &mut Parts,
    stem: &str,
) -> Result<Tensor, LoadError> {
    let weight = parts.take(&format!("{stem}.weight_packed"))?;
    let scales = parts.take(&format!("{stem}.weight_scale"))?;
    let zeros = parts.take_if_there(&format!("{stem}.weight_zero_point"));
    let order = parts.take_if_there(&format!("{stem}.weight_g_idx"));
    let [rows, words] = flat(&weight)?;
    let cols = match parts.take_if_there(&format!("{stem}.weight_shape")) {
        Some(shape) => shape_of(&shape, rows)?,
        None => 0,
    };
    let whole = |&&bits: &&u32| layout_of(bits, cols, words).is_some();
    let Some(&bits) = settings.bits_of_groups.iter().find(whole) else {
        let reason = format!("{:?} are codes of no number of bits that config.json has", weight.shape);
        return Err(corrupt(&weight, reason));
    };
    // Layout: so many codes in so many words.
    let (in_words, per) = layout_of(bits, cols, words).expect("found above");
    let [_, groups] = flat(&scales)?;
    let group = group_of(&weight, cols, groups)?;
    expect(&scales, &[rows, groups])?;
    let group_of = match &order {
        Some(order) => groups_of_inputs(order, [cols, groups])?,
        None => None,
    };
    let mut sources = vec![weight.bytes.clone(), scales.bytes.clone()];
    sources.extend(zeros.as_ref().map(|zeros| zeros.bytes.clone()));
    let zero = zero_points(zeros.as_ref(), [rows, groups], bits, in_words, per)?;
    let (codes, scale) = (Words::of(&weight)?, Numbers::scales(&scales, None)?);
    let affine = Affine {
        bits,
        rows,
        cols,
        group,
        group_of,
        codes: move |range: Range<usize>, out: &mut [u8]| {
            for (row, out) in range.zip(out.chunks_exact_mut(cols)) {
                for (unit, out) in out.chunks_mut(per).enumerate() {
                    for (at, out) in out.iter_mut().enumerate() {
                        *out = codes.code(bits, row * words + unit * in_words, 1, at) as u8;
                    }
                }
            }
        },
        factors: move |row, of| {
            let scale = scale.at(row * groups + of);
            (scale, -(scale * zero(row, of)))
        },
    };
    Ok(affine.tensor(&weight, format!("{stem}.weight"), sources))
}

/// Zero point of a row and group.
type ZeroPoint = Box<dyn Fn(usize, usize) -> f32 + Send + Sync>;

/// Zero points for `rows` of `groups`: the middle of the codes where there are none, packed like codes along the
/// rows, with `per` codes in `in_words` words, or numbers relative to the middle.
fn zero_points(
    zeros: Option<&Tensor>,
    [rows, groups]: [usize; 2],
    bits: u32,
    in_words: usize,
    per: usize,
) -> Result<ZeroPoint, LoadError> {
    let middle = (1u32 << (bits - 1)) as f32;
    let Some(zeros) = zeros else { return Ok(Box::new(move |_, _| middle)) };
    if zeros.shape == [rows.div_ceil(per) * in_words, groups]
        || zeros.shape == [(rows * bits as usize).div_ceil(32), groups]
    {
        let words = Words::of(zeros)?;
        return Ok(Box::new(move |row, of| {
            words.code(bits, row / per * in_words * groups + of, groups, row % per) as f32
        }));
    }
    expect(zeros, &[rows, groups])?;
    let numbers = Numbers::of(zeros)?;
    Ok(Box::new(move |row, of| middle + numbers.at(row * groups + of)))
}

/// Number of words and of codes in them, for rows of `cols` codes in `words` words; none if neither layout fits.
fn layout_of(bits: u32, cols: usize, words: usize) -> Option<(usize, usize)> {
    let bits = bits as usize;
    if (cols * bits).div_ceil(32) == words {
        return Some((bits, 32));
    }
    (cols.div_ceil(32 / bits) == words).then_some((1, 32 / bits))
}

/// Number of columns in `weight_shape`.
fn shape_of(shape: &Tensor, rows: usize) -> Result<usize, LoadError> {
    let number = |i: usize| {
        let bytes = shape.bytes.get(8 * i..8 * i + 8)?.first_chunk()?;
        usize::try_from(i64::from_le_bytes(*bytes)).ok()
    };
    match (shape.shape.as_slice(), number(0), number(1)) {
        ([2], Some(found), Some(cols)) if found == rows && cols > 0 && cols <= 1 << 24 => Ok(cols),
        _ => Err(corrupt(shape, format!("no shape of {rows} rows"))),
    }
}
