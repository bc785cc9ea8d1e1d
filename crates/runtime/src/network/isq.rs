//! In-situ quantisation: the type that each matrix is packed as when a load asks for fewer bits than its files have. Made
//! from names and shapes alone, so that the memory is known before any weight is read.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use hanzo_engine_kernels::{DType, quant};

use super::packing::{Group, expert_groups, groups, is_transposed};
use crate::error::shorten;
use crate::load::Tensors;
use crate::spec::{LayerPart, Part, TransformerSpec, Weight};

/// A type that a load quantises a model's matrices to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isq {
    dtype: DType,
    /// By the name of a type rather than by bits: what is quantised already is then quantised again where that makes it smaller.
    named: bool,
}

impl Isq {
    /// The type of most matrices.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// Every type that can be asked for by its name.
    pub fn known() -> impl Iterator<Item = DType> {
        let blocks = |dtype: &DType| dtype.block_weights() > 1 && quant::can_quantize(*dtype);
        DType::ALL.iter().copied().filter(blocks)
    }
}

impl fmt::Display for Isq {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dtype.fmt(to)
    }
}

impl FromStr for Isq {
    type Err = String;

    /// Bits (2, 3, 4, 5, 6, 8), or a type's name, in which case and `_` do not count. Q8_1, whose sums serve activations
    /// alone, is Q8_0.
    fn from_str(text: &str) -> Result<Self, String> {
        let of_bits = |dtype| Ok(Isq { dtype, named: false });
        match text {
            "2" => return of_bits(DType::Q2_K),
            "3" => return of_bits(DType::Q3_K),
            "4" => return of_bits(DType::Q4_K),
            "5" => return of_bits(DType::Q5_K),
            "6" => return of_bits(DType::Q6_K),
            "8" => return of_bits(DType::Q8_0),
            _ => {}
        }
        let plain = |name: &str| name.replace('_', "").to_ascii_uppercase();
        // Longer than any name.
        let wanted = if text.len() > 32 { String::new() } else { plain(text) };
        if wanted == plain(DType::Q8_1.label()) {
            return Ok(Isq { dtype: DType::Q8_0, named: true });
        }
        let found = Self::known().find(|dtype| plain(dtype.label()) == wanted);
        found.map(|dtype| Isq { dtype, named: true }).ok_or_else(|| {
            let names: Vec<&str> = Self::known().map(DType::label).collect();
            format!(
                "there is no type {:?} to quantise to; there are 2, 3, 4, 5, 6 and 8 (bits), and {}",
                shorten(text.into()),
                names.join(", ")
            )
        })
    }
}

/// The types of the matrices that are packed as another than they are stored in.
pub(crate) fn types(spec: &TransformerSpec, tensors: &Tensors, isq: Isq) -> BTreeMap<Weight, DType> {
    let of_experts = (0..spec.layers.len()).flat_map(|layer| expert_groups(spec, layer));
    let of_experts = of_experts.flat_map(|expert| expert.gate_up.into_iter().chain(expert.down));
    let parts = groups(spec).into_iter().flat_map(|Group { parts, .. }| parts).chain(of_experts);
    let typed = |part: Part| {
        let wanted = match part {
            Part::TokenEmbedding | Part::Head => finer(isq.dtype),
            // Small, and read by position or by type; and routers decide, so they keep their digits.
            Part::PositionEmbedding | Part::TypeEmbedding | Part::Convolution => return None,
            Part::Layer(_, LayerPart::Router) => return None,
            _ => isq.dtype,
        };
        let tensor = tensors.get(part.weight());
        let stored = tensor.dtype;
        let float = matches!(stored, DType::F32 | DType::F16 | DType::BF16);
        if !(float || isq.named && quant::can_dequantize(stored)) {
            return None;
        }
        let cols = if is_transposed(spec, part) { tensor.shape[0] } else { tensor.shape[1] };
        let dtype = fitting(wanted, cols)?;
        is_smaller(dtype, stored).then_some((part.weight(), dtype))
    };
    parts.filter_map(typed).collect()
}

/// What the embedding and the head are quantised to: each token's numbers and scores come from them alone.
fn finer(dtype: DType) -> DType {
    match dtype.affine() {
        Some((bits, group)) if bits < 6 => DType::of_affine(6, group).unwrap_or(dtype),
        None if is_smaller(dtype, DType::Q6_K) => DType::Q6_K,
        _ => dtype,
    }
}

/// The type itself, or of those beside it the first whose blocks rows of so many columns fill.
fn fitting(mut dtype: DType, cols: usize) -> Option<DType> {
    while !cols.is_multiple_of(dtype.block_weights()) {
        dtype = match dtype {
            DType::Q2_K | DType::Q3_K | DType::IQ4_XS => DType::IQ4_NL,
            DType::TQ1_0 | DType::TQ2_0 | DType::Q1_0 | DType::Q2_0 => DType::Q4_0,
            DType::Q4_K => DType::Q5_0,
            DType::Q5_K => DType::Q5_1,
            DType::Q6_K => DType::Q8_0,
            _ => {
                let (bits, group) = dtype.affine()?;
                DType::of_affine(bits, group / 2)?
            }
        };
    }
    Some(dtype)
}

/// Whether a weight takes less in `one` than in `other`.
fn is_smaller(one: DType, other: DType) -> bool {
    one.block_bytes() * other.block_weights() < other.block_bytes() * one.block_weights()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_and_names_are_types() {
        for (text, dtype) in [
            ("2", DType::Q2_K),
            ("4", DType::Q4_K),
            ("8", DType::Q8_0),
            ("Q4K", DType::Q4_K),
            ("q4_k", DType::Q4_K),
            ("Q8_1", DType::Q8_0),
            ("iq4_xs", DType::IQ4_XS),
            ("MXFP4", DType::MXFP4),
            ("AFQ4", DType::AFQ4_G64),
            ("AFQ4_G32", DType::AFQ4_G32),
        ] {
            assert_eq!(text.parse::<Isq>().unwrap().dtype(), dtype, "{text}");
        }
        for text in ["", "7", "F16", "Q4_K_M", "IQ2_XXS", &"Q".repeat(1 << 20)] {
            let error = text.parse::<Isq>().unwrap_err();
            assert!(error.contains("Q4_K, ") && error.contains("AFQ8") && error.len() < 2000, "{error}");
        }
    }

    #[test]
    fn rows_that_are_no_whole_blocks_take_the_type_beside() {
        assert_eq!(fitting(DType::Q4_K, 512), Some(DType::Q4_K));
        assert_eq!(fitting(DType::Q4_K, 96), Some(DType::Q5_0));
        assert_eq!(fitting(DType::Q3_K, 96), Some(DType::IQ4_NL));
        assert_eq!(fitting(DType::AFQ4_G128, 96), Some(DType::AFQ4_G32));
        assert_eq!(fitting(DType::Q6_K, 40), None);
        assert_eq!(fitting(DType::AFQ4_G64, 40), None);
        assert_eq!(finer(DType::Q4_K), DType::Q6_K);
        assert_eq!(finer(DType::Q8_0), DType::Q8_0);
        assert_eq!(finer(DType::AFQ3_G64), DType::AFQ6_G64);
    }
}
