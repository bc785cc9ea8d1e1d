//! Matrices and vectors of a Whisper model, their packed types, and packing.

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{AnyBackend, DType, KernelError, MatrixShape, MatrixSource};

use super::files::WhisperFiles;
use super::network::{Cross, Layer, Linear, WhisperWeights};
use super::spec::{Stack, WhisperSpec};
use crate::error::LoadError;
use crate::network::WeightType;
use crate::network::{Norm, Quantiser, stored_as};
use crate::tensor::Tensor;

/// Name of a head that is not tied to the embedding.
pub(super) const HEAD: &str = "proj_out";

/// Packed type of a matrix that is not quantised at load: floats in products may become 8-bit integers.
pub(super) fn packed_type(tensor: &Tensor, weight_type: WeightType) -> DType {
    let float = matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16);
    let whole = tensor.shape[1].is_multiple_of(DType::Q8_0.block_weights());
    if weight_type == WeightType::Q8_0 && float && whole { DType::Q8_0 } else { tensor.dtype }
}

/// Matrices of a layer; each is a list of parts that are stacked.
pub(super) fn layer_matrices(side: &str, layer: usize) -> Vec<Vec<String>> {
    let of = |part: &str| format!("{side}.layers.{layer}.{part}");
    let mut all = vec![
        vec![of("self_attn.q_proj"), of("self_attn.k_proj"), of("self_attn.v_proj")],
        vec![of("self_attn.out_proj")],
        vec![of("fc1")],
        vec![of("fc2")],
    ];
    if side == "decoder" {
        all.push(vec![of("encoder_attn.q_proj")]);
        all.push(vec![of("encoder_attn.k_proj"), of("encoder_attn.v_proj")]);
        all.push(vec![of("encoder_attn.out_proj")]);
    }
    all
}

/// Every matrix of a model, and whether it is used in products rather than looked up.
pub(super) fn matrices(spec: &WhisperSpec) -> Vec<(Vec<String>, bool)> {
    let mut all = vec![
        (vec!["encoder.conv1".to_owned()], true),
        (vec!["encoder.conv2".to_owned()], true),
        (vec!["encoder.embed_positions".to_owned()], false),
        (vec!["decoder.embed_tokens".to_owned()], false),
        (vec!["decoder.embed_positions".to_owned()], false),
    ];
    all.extend(spec.own_head.then(|| (vec![HEAD.to_owned()], true)));
    for (side, stack) in [("encoder", spec.encoder), ("decoder", spec.decoder)] {
        let layers = (0..stack.layers).flat_map(|layer| layer_matrices(side, layer));
        all.extend(layers.map(|parts| (parts, true)));
    }
    all
}

/// Names of the matrices that can be quantised at load, with their layers; the embedding and the head have none.
pub(super) fn quantisable(spec: &WhisperSpec) -> Vec<(String, Option<usize>)> {
    let mut all = vec![("decoder.embed_tokens.weight".to_owned(), None)];
    all.extend(spec.own_head.then(|| (format!("{HEAD}.weight"), None)));
    for (side, stack) in [("encoder", spec.encoder), ("decoder", spec.decoder)] {
        for layer in 0..stack.layers {
            let parts = layer_matrices(side, layer).into_iter().flatten();
            all.extend(parts.map(|part| (format!("{part}.weight"), Some(layer))));
        }
    }
    all
}

/// Lengths of all vectors.
pub(super) fn vector_lengths(spec: &WhisperSpec) -> Vec<usize> {
    let hidden = spec.hidden;
    let layer = |stack: Stack| [hidden, hidden, 3 * hidden, hidden, hidden, hidden, stack.ffn, hidden];
    let cross = [hidden, hidden, hidden, 2 * hidden, hidden];
    let mut all = vec![hidden; 6];
    for (stack, cross) in [(spec.encoder, &cross[..0]), (spec.decoder, &cross)] {
        (0..stack.layers).for_each(|_| all.extend(layer(stack).iter().chain(cross)));
    }
    all
}

pub(super) fn shapes_of(
    files: &WhisperFiles,
    parts: &[String],
    multiplied: bool,
    weight_type: WeightType,
) -> Vec<MatrixShape> {
    let shape = |part: &String| {
        let name = format!("{part}.weight");
        let tensor = files.tensor(&name);
        let own = || if multiplied { packed_type(tensor, weight_type) } else { tensor.dtype };
        let dtype = files.quantised_to(&name).map_or_else(own, |target| target.dtype);
        MatrixShape { dtype, rows: tensor.shape[0], cols: tensor.shape[1] }
    };
    parts.iter().map(shape).collect()
}

/// Packs tensors as weights on a backend.
pub(super) struct Loader<'a> {
    pub(super) backend: &'a AnyBackend,
    pub(super) files: &'a WhisperFiles,
    pub(super) weight_type: WeightType,
    pub(super) packed: &'a mut dyn FnMut(),
}

impl Loader<'_> {
    /// All weights.
    pub(super) fn weights(&mut self) -> Result<WhisperWeights, LoadError> {
        let WhisperSpec { encoder, decoder, .. } = self.files.spec;
        Ok(WhisperWeights {
            first: self.linear(&["encoder.conv1".to_owned()])?,
            second: self.linear(&["encoder.conv2".to_owned()])?,
            moments: self.table("encoder.embed_positions")?,
            embedding: self.table("decoder.embed_tokens")?,
            own_head: self.own_head()?,
            positions: self.table("decoder.embed_positions")?,
            encoder: (0..encoder.layers)
                .map(|layer| self.layer("encoder", layer))
                .collect::<Result<_, _>>()?,
            decoder: (0..decoder.layers)
                .map(|layer| Ok((self.layer("decoder", layer)?, self.cross(layer)?)))
                .collect::<Result<_, LoadError>>()?,
            encoder_norm: self.norm("encoder.layer_norm")?,
            decoder_norm: self.norm("decoder.layer_norm")?,
        })
    }

    fn layer(&mut self, side: &str, index: usize) -> Result<Layer, LoadError> {
        let of = |part: &str| format!("{side}.layers.{index}.{part}");
        let mut matrices = layer_matrices(side, index).into_iter();
        let mut next = || self.linear(&matrices.next().expect("a layer has these matrices"));
        let (qkv, out, up, down) = (next()?, next()?, next()?, next()?);
        let (norm, last_norm) =
            (self.norm(&of("self_attn_layer_norm"))?, self.norm(&of("final_layer_norm"))?);
        Ok(Layer { norm, qkv, out, last_norm, up, down })
    }

    /// Cross-attention of a decoder's layer.
    fn cross(&mut self, index: usize) -> Result<Cross, LoadError> {
        let mut matrices = layer_matrices("decoder", index).into_iter().skip(4);
        let mut next = || self.linear(&matrices.next().expect("a decoder's layer has these matrices"));
        let (query, memory, out) = (next()?, next()?, next()?);
        let norm = self.norm(&format!("decoder.layers.{index}.encoder_attn_layer_norm"))?;
        Ok(Cross { norm, query, memory, out })
    }

    fn pack(&mut self, parts: &[String], multiplied: bool) -> Result<ops::Matrix, LoadError> {
        let shapes = shapes_of(self.files, parts, multiplied, self.weight_type);
        let tensors: Vec<&Tensor> =
            parts.iter().map(|part| self.files.tensor(&format!("{part}.weight"))).collect();
        for (tensor, shape) in tensors.iter().zip(&shapes) {
            if !self.backend.supports(shape.dtype) {
                let (tensor, dtype, device) =
                    (tensor.name.clone(), shape.dtype, self.backend.facts().device.clone());
                return Err(KernelError::UnsupportedType { tensor, dtype, device }.into());
            }
        }
        let stored = tensors
            .iter()
            .zip(&shapes)
            .map(|(tensor, shape)| {
                let by_hqq = self.files.quantised_to(&tensor.name).is_some_and(|target| target.hqq);
                let quantiser = if by_hqq { Quantiser::Hqq } else { Quantiser::Own(None) };
                stored_as(self.backend, tensor, shape.dtype, quantiser)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let sources: Vec<MatrixSource<'_>> = tensors
            .iter()
            .zip(shapes)
            .zip(&stored)
            .map(|((tensor, shape), bytes)| MatrixSource { name: &tensor.name, shape, bytes })
            .collect();
        let packed = self.backend.pack(&sources)?;
        tensors.iter().for_each(|tensor| tensor.bytes.release());
        (self.packed)();
        Ok(packed)
    }

    fn table(&mut self, name: &str) -> Result<ops::Matrix, LoadError> {
        self.pack(&[name.to_owned()], false)
    }

    /// Output head, if it is not tied to the embedding.
    fn own_head(&mut self) -> Result<Option<ops::Matrix>, LoadError> {
        let has_one = self.files.spec.own_head;
        has_one.then(|| self.pack(&[HEAD.to_owned()], true)).transpose()
    }

    fn linear(&mut self, parts: &[String]) -> Result<Linear, LoadError> {
        let mut bias = Vec::new();
        for part in parts {
            bias.extend(self.files.tensor(&format!("{part}.bias")).to_f32()?);
        }
        Ok(Linear { weight: self.pack(parts, true)?, bias: self.backend.vector(&bias)? })
    }

    fn norm(&mut self, name: &str) -> Result<Norm, LoadError> {
        let vector = |part: &str| -> Result<ops::Vector, LoadError> {
            Ok(self.backend.vector(&self.files.tensor(&format!("{name}.{part}")).to_f32()?)?)
        };
        Ok(Norm::new(vector("weight")?, Some(vector("bias")?)))
    }
}
