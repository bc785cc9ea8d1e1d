//! In-situ quantisation: the type that each matrix is packed as when a load asks for fewer bits than its files have. Made
//! from names and shapes alone, so that the memory is known before any weight is read.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use hanzo_engine_ops::{DType, quant};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::packing::{Group, expert_groups, groups};
use crate::error::{LoadError, shorten};
use crate::limits::TOPOLOGY_PATTERN_BYTES_MAX;
use crate::load::{PackedType, Tensors};
use crate::spec::{LayerPart, Part, TransformerSpec, Weight};
use crate::tensor::Tensor;

/// A type that a load quantises a model's matrices to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isq {
    target: PackedType,
    /// By the name of a type rather than by bits: what is quantised already is then quantised again where that makes it smaller.
    named: bool,
}

impl Isq {
    /// The type of most matrices.
    pub fn dtype(self) -> DType {
        self.target.dtype
    }

    /// Every type that can be asked for by its name.
    pub fn known() -> impl Iterator<Item = DType> {
        let blocks = |dtype: &DType| dtype.block_weights() > 1 && quant::can_quantize(*dtype);
        DType::ALL.iter().copied().filter(blocks)
    }
}

/// As the type's name and whether it was asked for by that.
impl Serialize for Isq {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (self.target.dtype.label(), self.target.hqq, self.named).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Isq {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Isq, D::Error> {
        let (label, hqq, named) = <(String, bool, bool)>::deserialize(from)?;
        let found = Self::known().find(|dtype| dtype.label() == label && (!hqq || dtype.affine().is_some()));
        let dtype = found.ok_or_else(|| D::Error::custom(format!("no type {label:?} to quantise to")))?;
        Ok(Isq { target: PackedType { dtype, hqq }, named })
    }
}

impl fmt::Display for Isq {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(to)
    }
}

impl FromStr for Isq {
    type Err = String;

    /// Bits (2, 3, 4, 5, 6, 8), or a type's name, in which case and `_` do not count. Q8_1, whose sums serve activations
    /// alone, is Q8_0.
    fn from_str(text: &str) -> Result<Self, String> {
        let of_bits = |dtype: DType| Ok(Isq { target: dtype.into(), named: false });
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
            return Ok(Isq { target: DType::Q8_0.into(), named: true });
        }
        // Floats that other engines have on other devices, and what has as many bits here.
        if matches!(wanted.as_str(), "F8Q8" | "MXFP8") {
            return Err(format!(
                "nothing is quantised to {text}; take FP8 or Q8_0, as many bits as floats or as integers"
            ));
        }
        let wanted = if wanted == "F8E4M3" { DType::FP8.label().to_owned() } else { wanted };
        // The affine type of as many bits, its codes chosen otherwise.
        let (label, hqq) = match wanted.strip_prefix("HQQ") {
            Some(bits) => (format!("AFQ{bits}"), true),
            None => (wanted, false),
        };
        let known = |dtype: &DType| plain(dtype.label()) == label && (!hqq || dtype.affine().is_some());
        let found = Self::known().find(known);
        found.map(|dtype| Isq { target: PackedType { dtype, hqq }, named: true }).ok_or_else(|| {
            let names: Vec<&str> = Self::known().map(DType::label).collect();
            format!(
                "there is no type {:?} to quantise to; there are 2, 3, 4, 5, 6 and 8 (bits), and {}, and HQQ2 to HQQ8 in AFQ's layout",
                shorten(text.into()),
                names.join(", ")
            )
        })
    }
}

/// Some of a network's matrices, and what they are packed as: a line of a topology. Of several that match the last counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsqRule {
    /// First and last layer; without, what lies outside of layers matches too.
    pub layers: Option<(u32, u32)>,
    /// Names of tensors in the files, whole, where `*` stands for any text; without, all match.
    pub tensors: Option<String>,
    /// What they are quantised to; `None`: nothing, they are packed as stored.
    pub isq: Option<Isq>,
}

impl IsqRule {
    /// Whether it is in its bounds.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), String> {
        match (self.layers, &self.tensors) {
            (None, None) => Err("needs layers, tensors or both".into()),
            (Some((first, last)), _) if first > last => {
                Err(format!("layers {first}-{last} end before they begin"))
            }
            (_, Some(pattern)) if pattern.is_empty() || pattern.len() > TOPOLOGY_PATTERN_BYTES_MAX => {
                Err(format!(
                    "tensors has {} bytes; from 1 to {TOPOLOGY_PATTERN_BYTES_MAX} are possible",
                    pattern.len()
                ))
            }
            _ => Ok(()),
        }
    }

    /// Whether it is about a tensor, of a layer or outside of them.
    fn matches(&self, layer: Option<usize>, name: &str) -> bool {
        let in_layers = match (self.layers, layer) {
            (None, _) => true,
            (Some((first, last)), Some(layer)) => (first as usize..=last as usize).contains(&layer),
            (Some(_), None) => false,
        };
        // One of a stack of experts has its place in it after the name.
        let name = name.split('[').next().unwrap_or(name);
        in_layers && self.tensors.as_ref().is_none_or(|pattern| is_like(name.as_bytes(), pattern.as_bytes()))
    }
}

impl fmt::Display for IsqRule {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((first, last)) = self.layers {
            write!(to, "layers {first}-{last} ")?;
        }
        if let Some(pattern) = &self.tensors {
            write!(to, "tensors {} ", shorten(pattern.clone()))?;
        }
        match self.isq {
            Some(isq) => isq.fmt(to),
            None => to.write_str("stored"),
        }
    }
}

/// Whether a name is a pattern's, whose `*` stand for any text.
fn is_like(name: &[u8], pattern: &[u8]) -> bool {
    let (mut at, mut in_pattern) = (0, 0);
    // Where the last `*` stands, and where what follows it was last tried.
    let mut retry = None;
    while at < name.len() {
        match pattern.get(in_pattern) {
            Some(b'*') => {
                in_pattern += 1;
                retry = Some((in_pattern, at));
            }
            Some(byte) if *byte == name[at] => (at, in_pattern) = (at + 1, in_pattern + 1),
            _ => match &mut retry {
                None => return false,
                Some((after, tried)) => {
                    *tried += 1;
                    (at, in_pattern) = (*tried, *after);
                }
            },
        }
    }
    pattern[in_pattern..].iter().all(|byte| *byte == b'*')
}

/// Chooses the types of a load's matrices, and records which rules applied to any.
struct IsqChooser<'a> {
    isq: Option<Isq>,
    rules: &'a [IsqRule],
    used: Vec<bool>,
    /// Whether the matrices are a tower's. Rules apply to these by name alone, because layers are the text's. A tower's
    /// matrix without a rule gets 8 bits: a tower is a small part of a model, and fewer bits cost it more accuracy.
    sees: bool,
}

impl<'a> IsqChooser<'a> {
    fn new(isq: Option<Isq>, rules: &'a [IsqRule]) -> IsqChooser<'a> {
        IsqChooser { isq, rules, used: vec![false; rules.len()], sees: false }
    }

    /// What a matrix with rows of so many columns is packed as, where that is another type than it is stored in. `fine`: its
    /// numbers count more than others.
    fn of(&mut self, tensor: &Tensor, layer: Option<usize>, fine: bool, cols: usize) -> Option<PackedType> {
        let (used, sees) = (&mut self.used, self.sees);
        let matching = |(at, rule): (usize, &IsqRule)| {
            let matches = (!sees || rule.tensors.is_some()) && rule.matches(layer, &tensor.name);
            used[at] |= matches;
            matches.then_some(rule.isq)
        };
        let said = self.rules.iter().enumerate().filter_map(matching).fold(None, |_, said| Some(said));
        let (isq, wanted) = match said {
            Some(said) => said.map(|isq| (isq, isq.target))?,
            None if sees => self.isq.map(|isq| (isq, isq.target.map(eight_bits)))?,
            None if fine => self.isq.map(|isq| (isq, isq.target.map(finer)))?,
            None => self.isq.map(|isq| (isq, isq.target))?,
        };
        let stored = tensor.dtype;
        let float = matches!(stored, DType::F32 | DType::F16 | DType::BF16) || stored.is_fp8();
        if !(float || isq.named && quant::can_dequantize(stored)) {
            return None;
        }
        let dtype = fitting(wanted.dtype, cols)?;
        // Floats of 8 bits are what 8 bits asks for, blocks of 32 with their longer scales too.
        if stored.is_fp8() && !isq.named && dtype == DType::Q8_0 {
            return None;
        }
        is_smaller(dtype, stored).then_some(wanted.map(|_| dtype))
    }

    /// That every rule was about some matrix.
    fn check(&self, layers: usize, such_as: impl FnOnce() -> Option<Tensor>) -> Result<(), LoadError> {
        let Some(unused) = self.used.iter().position(|used| !used) else { return Ok(()) };
        let (file, such_as) =
            such_as().map_or_else(Default::default, |tensor| (tensor.file.to_string(), tensor.name));
        Err(LoadError::Unsupported {
            file,
            key: "topology".into(),
            value: format!("rule {}: {}", unused + 1, self.rules[unused]),
            reason: format!(
                "it is about no matrix that can be quantised; the model has layers 0-{} and tensors such as {such_as}",
                layers.saturating_sub(1)
            ),
        })
    }
}

/// The types of matrices, by the names that they come with, that are packed as another than they are stored in. Each comes with its
/// layer too, and with whether its numbers count more than others'.
///
/// # Errors
/// As [`types`].
pub(crate) fn types_by_name<'t>(
    matrices: impl Iterator<Item = (String, &'t Tensor, Option<usize>, bool)>,
    layers: usize,
    isq: Option<Isq>,
    rules: &[IsqRule],
) -> Result<BTreeMap<String, PackedType>, LoadError> {
    let (mut wanted, mut types, mut last) = (IsqChooser::new(isq, rules), BTreeMap::new(), None);
    for (name, tensor, layer, fine) in matrices {
        last = Some(tensor);
        if let Some(target) = wanted.of(tensor, layer, fine, tensor.shape[1]) {
            types.insert(name, target);
        }
    }
    wanted.check(layers, || last.cloned()).map(|()| types)
}

/// The types of the matrices that are packed as another than they are stored in: a network's, and those of the tower that sees or hears for it.
///
/// # Errors
/// `Unsupported` with a rule that is about none of the matrices.
pub(crate) fn types(
    spec: &TransformerSpec,
    tensors: &Tensors,
    tower: Option<(&TransformerSpec, &Tensors)>,
    isq: Option<Isq>,
    rules: &[IsqRule],
) -> Result<[BTreeMap<Weight, PackedType>; 2], LoadError> {
    let mut wanted = IsqChooser::new(isq, rules);
    let own = wanted.types_of(spec, tensors);
    wanted.sees = true;
    let of_tower = tower.map(|(spec, tensors)| wanted.types_of(spec, tensors)).unwrap_or_default();
    let such_as = || Some(tensors.get(Part::Layer(0, LayerPart::AttentionOutput).weight()).clone());
    wanted.check(spec.layers.len(), such_as)?;
    Ok([own, of_tower])
}

impl IsqChooser<'_> {
    /// Of a network's matrices, those that are packed as another type than they are stored in.
    fn types_of(&mut self, spec: &TransformerSpec, tensors: &Tensors) -> BTreeMap<Weight, PackedType> {
        let of_experts = (0..spec.layers.len()).flat_map(|layer| expert_groups(spec, layer));
        let of_experts = of_experts.flat_map(|expert| expert.gate_up.into_iter().chain(expert.down));
        let parts = groups(spec).into_iter().flat_map(|Group { parts, .. }| parts).chain(of_experts);
        let mut typed = |part: Part| {
            let tensor = tensors.get(part.weight());
            match part {
                // Small, and read by position or by type; and routers decide, and steps are exponents, so they keep their digits.
                Part::PositionEmbedding | Part::TypeEmbedding | Part::Convolution => return None,
                Part::Layer(_, LayerPart::Router | LayerPart::StateBeta | LayerPart::StateStep) => {
                    return None;
                }
                Part::Gemma(part) | Part::Layer(_, LayerPart::Gemma(part)) if part.is_small() => return None,
                // A tower has no tokens.
                Part::TokenEmbedding if self.sees => return None,
                _ => {}
            }
            let layer = match part {
                Part::Layer(layer, _) => Some(layer),
                _ => None,
            };
            let fine = matches!(part, Part::TokenEmbedding | Part::Head | Part::Gemma(_));
            let cols = if spec.is_transposed(part) { tensor.shape[0] } else { tensor.shape[1] };
            self.of(tensor, layer, fine, cols).map(|target| (part.weight(), target))
        };
        parts.filter_map(&mut typed).collect()
    }
}

/// As many bits as a tower's matrices have where nothing else is said of them.
fn eight_bits(dtype: DType) -> DType {
    dtype.affine().and_then(|(_, group)| DType::of_affine(8, group)).unwrap_or(DType::Q8_0)
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
            DType::FP8 => DType::FP8_G32,
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
            ("FP8", DType::FP8),
            ("f8_e4m3", DType::FP8),
            ("AFQ4", DType::AFQ4_G64),
            ("AFQ4_G32", DType::AFQ4_G32),
        ] {
            assert_eq!(text.parse::<Isq>().unwrap().dtype(), dtype, "{text}");
        }
        for text in ["", "7", "F16", "Q4_K_M", "IQ2_XXS", &"Q".repeat(1 << 20)] {
            let error = text.parse::<Isq>().unwrap_err();
            assert!(
                error.contains("Q4_K, ")
                    && error.contains(" FP8")
                    && error.contains("AFQ8")
                    && error.len() < 2000,
                "{error}"
            );
        }
    }

    #[test]
    fn hqq_is_a_way_to_affine_types() {
        for (text, dtype, shown) in [
            ("HQQ4", DType::AFQ4_G64, "HQQ4"),
            ("hqq_8", DType::AFQ8_G64, "HQQ8"),
            ("HQQ3_G128", DType::AFQ3_G128, "HQQ3_G128"),
        ] {
            let isq: Isq = text.parse().unwrap();
            assert_eq!(
                (isq.target, isq.to_string().as_str()),
                (PackedType { dtype, hqq: true }, shown),
                "{text}"
            );
            let sent = serde_json::to_string(&isq).unwrap();
            assert_eq!(serde_json::from_str::<Isq>(&sent).unwrap(), isq);
        }
        for text in ["HQQ", "HQQ7", "HQQ4_K"] {
            assert!(text.parse::<Isq>().unwrap_err().contains("HQQ2 to HQQ8"), "{text}");
        }
        assert!(serde_json::from_str::<Isq>("[\"Q4_K\", true, true]").is_err());
    }

    #[test]
    fn other_engines_types_have_another_beside_them() {
        for (text, instead) in [("F8Q8", "FP8"), ("MXFP8", "Q8_0")] {
            let error = text.parse::<Isq>().unwrap_err();
            assert!(error.contains(instead) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn patterns_are_of_whole_names() {
        for (name, pattern, like) in [
            ("blk.1.ffn_down.weight", "*", true),
            ("blk.1.ffn_down.weight", "blk.1.ffn_down.weight", true),
            ("blk.1.ffn_down.weight", "*ffn_down*", true),
            ("blk.1.ffn_down.weight", "blk.*.weight", true),
            ("blk.1.ffn_down.weight", "*n*n*.weight*", true),
            ("blk.1.ffn_down.weight", "ffn_down", false),
            ("blk.1.ffn_down.weight", "blk.*.bias", false),
            ("blk.1.ffn_down.weight", "blk.1.ffn_down.weight.*x", false),
            ("", "*", true),
        ] {
            assert_eq!(is_like(name.as_bytes(), pattern.as_bytes()), like, "{name} {pattern}");
        }
        let slow = "*a".repeat(TOPOLOGY_PATTERN_BYTES_MAX / 2);
        assert!(!is_like("a".repeat(200).as_bytes(), format!("{slow}b").as_bytes()));
    }

    #[test]
    fn rows_that_are_no_whole_blocks_take_the_type_beside() {
        assert_eq!(fitting(DType::Q4_K, 512), Some(DType::Q4_K));
        assert_eq!(fitting(DType::Q4_K, 96), Some(DType::Q5_0));
        assert_eq!(fitting(DType::Q3_K, 96), Some(DType::IQ4_NL));
        assert_eq!(fitting(DType::AFQ4_G128, 96), Some(DType::AFQ4_G32));
        assert_eq!(fitting(DType::FP8, 96), Some(DType::FP8_G32));
        assert_eq!(fitting(DType::FP8, 40), None);
        assert_eq!(fitting(DType::Q6_K, 40), None);
        assert_eq!(fitting(DType::AFQ4_G64, 40), None);
        assert_eq!(finer(DType::Q4_K), DType::Q6_K);
        assert_eq!(finer(DType::Q8_0), DType::Q8_0);
        assert_eq!(finer(DType::FP8), DType::FP8);
        assert_eq!(finer(DType::AFQ3_G64), DType::AFQ6_G64);
    }
}
