//! bitsandbytes' nf4 and fp4: codes that index a table of floats, with a scale for each block of weights of the whole
//! matrix. The scales may be quantised themselves.

use serde_json::Value;

use super::made::of_bf16;
use super::numbers::Numbers;
use super::{Parts, corrupt};
use crate::error::LoadError;
use crate::tensor::Tensor;

/// A number of the JSON that accompanies a matrix.
fn number(state: &Tensor, json: &Value, key: &str) -> Result<usize, LoadError> {
    let number = json.get(key).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
    number
        .filter(|&number| number > 0)
        .ok_or_else(|| corrupt(state, format!("key {key}: expected a whole number above 0")))
}

/// A part that must have so many numbers.
fn numbers(parts: &mut Parts, name: &str, count: usize) -> Result<Numbers, LoadError> {
    let tensor = parts.take(name)?;
    if tensor.elements() != count {
        return Err(corrupt(&tensor, format!("{} numbers, of {count} that belong there", tensor.elements())));
    }
    Numbers::of(&tensor)
}

/// `X.weight` of two codes a byte, the first in the high half, and the tensors that accompany it.
pub(super) fn bitsandbytes(parts: &mut Parts, stem: &str, state: Tensor) -> Result<Tensor, LoadError> {
    let weight = parts.take(&format!("{stem}.weight"))?;
    let json: Value = serde_json::from_slice(&state.bytes)
        .map_err(|error| corrupt(&state, format!("its JSON cannot be read: {error}")))?;
    let shape: Option<Vec<usize>> = json
        .get("shape")
        .and_then(Value::as_array)
        .and_then(|sides| sides.iter().map(|side| side.as_u64().map(|side| side as usize)).collect());
    let block = number(&state, &json, "blocksize")?;
    let (rows, cols) = match shape.as_deref() {
        Some(&[rows, cols])
            if rows.checked_mul(cols).is_some_and(|all| all.div_ceil(2) == weight.elements()) =>
        {
            (rows, cols)
        }
        _ => {
            return Err(corrupt(
                &weight,
                format!("{:?} is not half of the shape {shape:?} beside it", weight.shape),
            ));
        }
    };
    let blocks = (rows * cols).div_ceil(block);
    let table = numbers(parts, &format!("{stem}.weight.quant_map"), 16)?;
    let scales = numbers(parts, &format!("{stem}.weight.absmax"), blocks)?;
    let table: [f32; 16] = std::array::from_fn(|code| table.at(code));
    let scale: Box<dyn Fn(usize) -> f32 + Send + Sync> =
        match parts.take_if_there(&format!("{stem}.weight.nested_absmax")) {
            None => Box::new(move |at| scales.at(at)),
            Some(nested) => {
                let wide = number(&state, &json, "nested_blocksize")?;
                if nested.elements() != blocks.div_ceil(wide) {
                    return Err(corrupt(
                        &nested,
                        format!("{:?} scales of {blocks} in blocks of {wide}", nested.shape),
                    ));
                }
                let offset = json.get("nested_offset").and_then(Value::as_f64).unwrap_or(0.0) as f32;
                let nested = Numbers::of(&nested)?;
                let map = numbers(parts, &format!("{stem}.weight.nested_quant_map"), 256)?;
                Box::new(move |at| map.at(scales.at(at) as usize) * nested.at(at / wide) + offset)
            }
        };
    let stored = weight.bytes.clone();
    let value = move |row: usize, col: usize| {
        let at = row * cols + col;
        let code = stored[at / 2] >> (4 * (1 - at % 2)) & 15;
        table[usize::from(code)] * scale(at / block)
    };
    Ok(of_bf16(&weight, weight.name.clone(), [rows, cols], vec![weight.bytes.clone()], value))
}
