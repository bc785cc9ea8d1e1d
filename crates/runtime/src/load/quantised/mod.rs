//! Quantised checkpoints whose matrices are stored as several tensors each: codes, scales, zero points. They are
//! assembled before anything else sees them, so that a quantised matrix is one weight with a type, as in a GGUF file;
//! its blocks are made when they are read.
//!
//! Conversion is without loss where possible. Integer codes become affine blocks ([`DType::affine`]), 8-bit floats
//! become blocks with their scales ([`DType::is_fp8`]), and MXFP4 becomes GGML's. 8-bit floats with 5 bits of exponent
//! or in rows of no whole blocks, NVFP4, nf4 and fp4 become BF16. If neighbours have different scales (GPTQ's inputs
//! in the order of their activations, HQQ's groups across rows) they become F16, which is reported.
//!
//! A matrix that is stored in floats stays as it is, so lists of unconverted modules need not be read.

mod awq;
mod codebook;
mod hqq;
mod made;
mod marlin;
mod numbers;
mod packed;
mod quanto;
mod scaled;
mod settings;
#[cfg(test)]
mod tests;
mod torchao;

use std::collections::BTreeMap;

use hanzo_engine_ops::DType;

use crate::error::LoadError;
use crate::tensor::Tensor;
use settings::Method;
pub(crate) use settings::Settings;

/// Suffixes of tensors about activations or a library's storage, which change no weight.
const IGNORED: [&str; 7] = [
    ".input_scale",
    ".output_scale",
    ".input_global_scale",
    ".k_scale",
    ".v_scale",
    ".weight_format",
    ".activation_scale",
];

/// Names of the scales of 8-bit floats.
const SCALES: [&str; 4] = ["weight_scale_inv", "weight_scale", "scales", "scale"];

/// Tensors by name; those that have been used are removed.
struct Parts {
    by_name: BTreeMap<String, Tensor>,
    file: String,
}

impl Parts {
    fn take(&mut self, name: &str) -> Result<Tensor, LoadError> {
        self.take_if_there(name).ok_or_else(|| LoadError::Missing {
            file: self.file.clone(),
            what: format!("tensor {name}"),
            hint: ", and others of its matrix are there".into(),
        })
    }

    fn take_if_there(&mut self, name: &str) -> Option<Tensor> {
        self.by_name.remove(name)
    }

    /// The type of a tensor.
    fn dtype(&self, name: &str) -> Option<DType> {
        self.by_name.get(name).map(|tensor| tensor.dtype)
    }
}

/// Assembles quantised matrices. If some are converted to a type that rounds their numbers, the second result says so,
/// for people.
///
/// # Errors
/// `Missing`, `Corrupt` or `Unsupported`, naming the tensor.
pub(crate) fn assemble(
    settings: &Settings,
    tensors: Vec<Tensor>,
) -> Result<(Vec<Tensor>, Option<String>), LoadError> {
    let file = tensors.first().map(|tensor| tensor.file.to_string()).unwrap_or_default();
    let mut parts = Parts { by_name: BTreeMap::new(), file };
    for tensor in tensors {
        if IGNORED.iter().any(|end| tensor.name.ends_with(end)) {
            continue;
        }
        if let Some(twice) = parts.by_name.insert(tensor.name.clone(), tensor) {
            return Err(corrupt(&twice, "it is there twice".into()));
        }
    }
    let names: Vec<String> = parts.by_name.keys().cloned().collect();
    let (mut made, mut rounded) = (Vec::new(), None);
    for name in names {
        if !parts.by_name.contains_key(&name) {
            continue;
        }
        let halves = parts.dtype(&name) == Some(DType::U8);
        if let Some(tensor) = matrix(settings, &mut parts, &name)? {
            // Half of the last place.
            let share = match tensor.dtype {
                DType::BF16 => Some("0.2 %"),
                DType::F16 => Some("0.05 %"),
                _ => None,
            };
            if let Some(share) = share {
                let kind = match settings.method {
                    Method::Floats if halves => "NVFP4",
                    // MLX's integers lose nothing.
                    Method::Mlx => "NVFP4",
                    method => method.name(),
                };
                rounded = Some(format!("{kind} as {}, each weight within {share}", tensor.dtype));
            }
            made.push(tensor);
        }
    }
    made.extend(parts.by_name.into_values());
    Ok((unstacked(made), rounded))
}

/// The matrix whose first tensor is `name`, if that belongs to a quantised one.
fn matrix(settings: &Settings, parts: &mut Parts, name: &str) -> Result<Option<Tensor>, LoadError> {
    if let Some(stem) = name.strip_suffix(".qweight") {
        return match settings.method {
            Method::AwqGemm | Method::AwqGemv | Method::AwqGemvFast => awq::matrix(settings, parts, stem),
            Method::Marlin => marlin::matrix(parts, stem, ["qweight", "scales"]),
            _ => packed::gptq(settings, parts, stem),
        }
        .map(Some);
    }
    if let Some(stem) = name.strip_suffix(".B").filter(|_| settings.method == Method::Marlin) {
        return marlin::matrix(parts, stem, ["B", "s"]).map(Some);
    }
    if let Some(stem) = name.strip_suffix(torchao::CODES) {
        return torchao::matrix(settings, parts, stem).map(Some);
    }
    if let Some(weight) = name.strip_suffix("._data._data") {
        return quanto::groups(parts, weight).map(Some);
    }
    if let Some(weight) = name.strip_suffix("._data") {
        return quanto::bytes(settings, parts, weight).map(Some);
    }
    if let Some(stem) = name.strip_suffix(".W_q") {
        return hqq::matrix(parts, stem).map(Some);
    }
    if let Some(stem) = name.strip_suffix(".weight_packed") {
        return match parts.dtype(name) {
            Some(DType::U8) => packed_floats(parts, name, stem),
            _ => packed::pack_quantized(settings, parts, stem),
        }
        .map(Some);
    }
    if let Some(stem) = name.strip_suffix("_blocks") {
        let weight = parts.take(name)?;
        let scales = parts.take(&format!("{stem}_scales"))?;
        return stacked(&weight, stem, &scales).map(Some);
    }
    let Some(stem) = name.strip_suffix(".weight") else { return Ok(None) };
    let state = ["nf4", "fp4"]
        .iter()
        .find_map(|kind| parts.take_if_there(&format!("{stem}.weight.quant_state.bitsandbytes__{kind}")));
    if let Some(state) = state {
        return codebook::bitsandbytes(parts, stem, state).map(Some);
    }
    by_element_type(settings, parts, name, stem)
}

/// The matrix in `X.weight`, whose element type says how it is quantised; `None` if it is not.
fn by_element_type(
    settings: &Settings,
    parts: &mut Parts,
    name: &str,
    stem: &str,
) -> Result<Option<Tensor>, LoadError> {
    match parts.dtype(name) {
        Some(DType::U32) => packed::mlx(settings, parts, stem).map(Some),
        Some(DType::I8) => {
            let weight = parts.take(name)?;
            if let Some(scales) = parts.take_if_there(&format!("{stem}.SCB")) {
                return scaled::bytes(settings, weight, &scales, None, 127.0).map(Some);
            }
            let scales = parts.take(&format!("{stem}.weight_scale"))?;
            let zeros = parts.take_if_there(&format!("{stem}.weight_zero_point"));
            scaled::bytes(settings, weight, &scales, zeros.as_ref(), 1.0).map(Some)
        }
        Some(DType::F8_E4M3 | DType::F8_E5M2) => {
            let weight = parts.take(name)?;
            let named = SCALES.iter().find_map(|end| parts.take_if_there(&format!("{stem}.{end}")));
            let scales = match named {
                Some(scales) => scales,
                None => parts.take(&format!("{stem}.weight_scale"))?,
            };
            scaled::floats(settings, weight, &scales).map(Some)
        }
        Some(DType::U8) => {
            let weight = parts.take(name)?;
            let scales = parts.take(&format!("{stem}.weight_scale"))?;
            let all = parts.take(&format!("{stem}.weight_scale_2"))?;
            scaled::nvfp4(&weight, weight.name.clone(), &scales, scaled::factor(&all)?).map(Some)
        }
        _ => Ok(None),
    }
}

/// `X.weight_packed` U8: compressed-tensors' NVFP4, or MXFP4 where there is no scale of the whole matrix.
fn packed_floats(parts: &mut Parts, name: &str, stem: &str) -> Result<Tensor, LoadError> {
    let weight = parts.take(name)?;
    let scales = parts.take(&format!("{stem}.weight_scale"))?;
    let whole = format!("{stem}.weight");
    if let Some(all) = parts.take_if_there(&format!("{stem}.weight_global_scale")) {
        return scaled::nvfp4(&weight, whole, &scales, 1.0 / scaled::factor(&all)?);
    }
    let sides = match weight.shape.as_slice() {
        &[rows, half] => [rows, 2 * half],
        shape => return Err(corrupt(&weight, format!("expected a matrix, found {shape:?}"))),
    };
    scaled::mxfp4(&weight, whole, &scales, sides)
}

/// Stacks of matrices in MXFP4: `(experts, rows, groups, 16)` bytes and `(experts, rows, groups)` scales.
fn stacked(weight: &Tensor, name: &str, scales: &Tensor) -> Result<Tensor, LoadError> {
    let [experts, rows, groups, 16] = *weight.shape.as_slice() else {
        return Err(corrupt(
            weight,
            format!("expected blocks of 16 bytes in four dimensions, found {:?}", weight.shape),
        ));
    };
    scales.check_shape(&[experts, rows, groups])?;
    let mut tensor = scaled::mxfp4(weight, name.to_owned(), scales, [experts * rows, 32 * groups])?;
    tensor.shape = vec![experts, rows, 32 * groups];
    Ok(tensor)
}

/// Splits MLX's stacks of experts, and gives each expert's matrix its usual name.
fn unstacked(tensors: Vec<Tensor>) -> Vec<Tensor> {
    const STACK: &str = ".switch_mlp.";
    let mut all = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        match tensor.name.split_once(STACK) {
            Some((before, after)) if tensor.shape.len() == 3 => {
                let (before, after) = (before.to_owned(), after.to_owned());
                all.extend(tensor.parts().enumerate().map(|(expert, part)| Tensor {
                    name: format!("{before}.experts.{expert}.{after}"),
                    ..part
                }));
            }
            _ => all.push(tensor),
        }
    }
    all
}

/// Tensors of a GGUF file, with those of NVFP4 converted to BF16: exactly, unless an accompanying tensor has a factor
/// for the whole matrix.
///
/// # Errors
/// `Corrupt` if that factor is not one number.
pub(crate) fn of_gguf(tensors: Vec<Tensor>) -> Result<Vec<Tensor>, LoadError> {
    if tensors.iter().all(|tensor| tensor.dtype != DType::NVFP4) {
        return Ok(tensors);
    }
    let file = tensors[0].file.to_string();
    let by_name = tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let mut parts = Parts { by_name, file };
    let quantised = parts.by_name.values().filter(|tensor| tensor.dtype == DType::NVFP4);
    let names: Vec<String> = quantised.map(|tensor| tensor.name.clone()).collect();
    let mut all = Vec::with_capacity(parts.by_name.len());
    for name in names {
        let tensor = parts.take(&name)?;
        let stem = name.strip_suffix(".weight").unwrap_or(&name);
        parts.take_if_there(&format!("{stem}.input_scale"));
        let scale = parts.take_if_there(&format!("{stem}.scale"));
        all.push(scaled::ggml_nvfp4(tensor, scale.as_ref())?);
    }
    all.extend(parts.by_name.into_values());
    Ok(all)
}

fn corrupt(tensor: &Tensor, reason: String) -> LoadError {
    LoadError::Corrupt { file: tensor.file.to_string(), what: format!("tensor {}", tensor.name), reason }
}

fn refused(tensor: &Tensor, reason: impl Into<String>) -> LoadError {
    LoadError::Unsupported {
        file: tensor.file.to_string(),
        key: format!("tensor {}", tensor.name),
        value: format!("{:?} of {}", tensor.shape, tensor.dtype),
        reason: reason.into(),
    }
}
