//! Tensors under transformers' names, also for files with other names: Piper uses those of the original
//! implementation (github.com/jaywalnut310/vits).

use std::borrow::Cow;

use hanzo_engine_ops::KernelUse;
use hanzo_engine_runtime::{LoadError, VoiceKind};

use crate::nn::{ChannelAffine, DenseWeights, Device, KernelWeights, NormWeights};
use crate::weights::Weights;

/// Tensors under transformers' names.
pub(super) struct NamedWeights<'a> {
    weights: &'a Weights,
    kind: VoiceKind,
}

/// Parts of names, replaced in order: transformers' and the original implementation's.
const PARTS: [(&str, &str); 22] = [
    ("text_encoder.embed_tokens.", "enc_p.emb."),
    ("text_encoder.project.", "enc_p.proj."),
    ("text_encoder.encoder.", "enc_p.encoder."),
    ("duration_predictor.", "dp."),
    ("decoder.upsampler.", "dec.ups."),
    ("decoder.", "dec."),
    ("embed_speaker.", "emb_g."),
    ("conv_dds.", "convs."),
    ("convs_dilated.", "convs_sep."),
    ("convs_pointwise.", "convs_1x1."),
    ("wavenet.", "enc."),
    (".q_proj.", ".conv_q."),
    (".k_proj.", ".conv_k."),
    (".v_proj.", ".conv_v."),
    (".out_proj.", ".conv_o."),
    (".translate", ".m"),
    (".log_scale", ".logs"),
    ("flow.flows.", "flow.flows."),
    // The vocoder's names are the same in both.
    ("dp.conv_pre.", "dp.pre."),
    ("dp.conv_proj.", "dp.proj."),
    ("dp.conv_1.", "dp.conv_1."),
    ("dp.conv_2.", "dp.conv_2."),
];

/// Name in the original implementation.
fn original(name: &str) -> String {
    let mut name = name.to_owned();
    for (from, to) in PARTS {
        name = name.replace(from, to);
    }
    // There, layers are lists of parts.
    if let Some((layer, part)) =
        name.strip_prefix("enc_p.encoder.layers.").and_then(|rest| rest.split_once('.'))
    {
        let lists = [
            ("attention.", "attn_layers"),
            ("layer_norm.", "norm_layers_1"),
            ("feed_forward.", "ffn_layers"),
            ("final_layer_norm.", "norm_layers_2"),
        ];
        let list = lists.iter().find_map(|(own, list)| Some((list, part.strip_prefix(own)?)));
        if let Some((list, part)) = list {
            name = format!("enc_p.encoder.{list}.{layer}.{part}");
        }
    }
    // There, steps that reverse the channels have their own positions in the lists.
    for (list, place) in
        [("dp.flows.", (|at| 2 * at - 1) as fn(usize) -> usize), ("flow.flows.", |at| 2 * at)]
    {
        let Some((at, part)) = name.strip_prefix(list).and_then(|rest| rest.split_once('.')) else {
            continue;
        };
        let Ok(at) = at.parse::<usize>() else { continue };
        let part = ["pre", "proj", "post"]
            .iter()
            .find_map(|own| Some(format!("{own}.{}", part.strip_prefix(&format!("conv_{own}."))?)))
            .unwrap_or_else(|| part.to_owned());
        let at = if list == "dp.flows." && at == 0 { 0 } else { place(at) };
        name = format!("{list}{at}.{part}");
    }
    // There, norms use other names.
    if name.contains("norm") {
        name = name.replace(".weight", ".gamma").replace(".bias", ".beta");
    }
    name
}

impl<'a> NamedWeights<'a> {
    pub(super) fn new(weights: &'a Weights, kind: VoiceKind) -> NamedWeights<'a> {
        NamedWeights { weights, kind }
    }

    fn name<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self.kind {
            VoiceKind::Piper => Cow::Owned(original(name)),
            VoiceKind::Vits | VoiceKind::Kokoro => Cow::Borrowed(name),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.weights.shape(&self.name(name)).is_ok()
    }

    pub(super) fn shape(&self, name: &str) -> Result<Vec<usize>, LoadError> {
        self.weights.shape(&self.name(name))
    }

    pub(super) fn corrupt(&self, name: &str, reason: impl Into<String>) -> LoadError {
        self.weights.corrupt(format!("tensor {}", self.name(name)), reason)
    }

    pub(super) fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>, LoadError> {
        self.weights.vector(&self.name(name), length)
    }

    /// Values of any shape. A matrix may be stored as a convolution with kernel 1.
    pub(super) fn numbers(&self, name: &str) -> Result<Vec<f32>, LoadError> {
        Ok(self.weights.numbers(&self.name(name))?.data)
    }

    pub(super) fn shaped<const N: usize>(
        &self,
        name: &str,
        expected: [usize; N],
    ) -> Result<([usize; N], Vec<f32>), LoadError> {
        self.weights.shaped(&self.name(name), expected)
    }

    /// Inverse scales of a flow. Some exporters store the computed scales instead of the logarithms.
    pub(super) fn inverse_scales(&self, name: &str, length: usize) -> Result<Vec<f32>, LoadError> {
        let logs = format!("{name}.log_scale");
        if self.kind == VoiceKind::Piper && !self.has(&logs) {
            return self.weights.vector("/dp/flows.0/Exp_output_0", length);
        }
        Ok(self.vector(&logs, length)?.into_iter().map(|log| (-log).exp()).collect())
    }

    /// Embeddings of symbols: `(signs, hidden)`.
    pub(super) fn embedding(&self, hidden: usize) -> Result<Vec<f32>, LoadError> {
        let name = "text_encoder.embed_tokens.weight";
        if self.kind == VoiceKind::Piper && !self.has(name) {
            // One version of the exporter stored it under the name of a missing input.
            return Ok(self.weights.shaped("sid", [0, hidden])?.1);
        }
        Ok(self.shaped(name, [0, hidden])?.1)
    }

    /// Convolution that keeps the length, with any kernel size.
    pub(super) fn conv(
        &self,
        device: &Device,
        name: &str,
        [outputs, inputs]: [usize; 2],
        of: impl FnOnce(usize) -> KernelUse,
    ) -> Result<KernelWeights, LoadError> {
        let (sizes, numbers) = self.shaped(&format!("{name}.weight"), [outputs, inputs, 0])?;
        let wrong = |reason: String| Err(self.corrupt(&format!("{name}.weight"), reason));
        if sizes[2] == 0 {
            return wrong("a kernel of nothing".to_owned());
        }
        let of = of(sizes[2]);
        if of.params.padding[2].iter().sum::<usize>() != of.params.dilation[2] * (sizes[2] - 1) {
            return wrong(format!("a kernel of {} changes the length", sizes[2]));
        }
        let bias_name = format!("{name}.bias");
        let bias = if self.has(&bias_name) { Some(self.vector(&bias_name, sizes[0])?) } else { None };
        Ok(device.kernel(name, sizes, &numbers, bias.as_deref(), of)?)
    }

    /// Matrix of this shape and its bias, stored as a matrix or as a convolution with kernel 1.
    pub(super) fn matrix(
        &self,
        name: &str,
        [outputs, inputs]: [usize; 2],
    ) -> Result<(Vec<f32>, Vec<f32>), LoadError> {
        let weight = format!("{name}.weight");
        let shape = self.shape(&weight)?;
        if shape[..] != [outputs, inputs] && shape[..] != [outputs, inputs, 1] {
            return Err(self.corrupt(&weight, format!("expected [{outputs}, {inputs}], file has {shape:?}")));
        }
        let bias = format!("{name}.bias");
        let bias = if self.has(&bias) { self.vector(&bias, outputs)? } else { vec![0.0; outputs] };
        Ok((self.numbers(&weight)?, bias))
    }

    pub(super) fn linear(
        &self,
        device: &Device,
        name: &str,
        shape: [usize; 2],
    ) -> Result<DenseWeights, LoadError> {
        let (numbers, bias) = self.matrix(name, shape)?;
        Ok(device.dense(name, [shape[0], shape[1]], &numbers, Some(&bias))?)
    }

    pub(super) fn norm(
        &self,
        device: &Device,
        name: &str,
        width: usize,
        eps: f32,
    ) -> Result<NormWeights, LoadError> {
        let affine = ChannelAffine {
            scale: self.vector(&format!("{name}.weight"), width)?,
            shift: self.vector(&format!("{name}.bias"), width)?,
        };
        Ok(device.norm(&affine, eps)?)
    }
}

/// Speaker conditioning: a linear map from the speaker's embedding to a value for each channel.
pub(super) struct SpeakerConditioning {
    numbers: Vec<f32>,
    bias: Vec<f32>,
}

impl SpeakerConditioning {
    /// Loads the conditioning of that name, if the model has it.
    pub(super) fn load(
        named: &NamedWeights<'_>,
        name: &str,
        outputs: usize,
        speaker: usize,
    ) -> Result<Option<SpeakerConditioning>, LoadError> {
        if speaker == 0 {
            return Ok(None);
        }
        let (numbers, bias) = named.matrix(name, [outputs, speaker])?;
        Ok(Some(SpeakerConditioning { numbers, bias }))
    }

    pub(super) fn of(&self, speaker: &[f32]) -> Vec<f32> {
        let rows = self.numbers.chunks_exact(speaker.len().max(1)).zip(&self.bias);
        rows.map(|(row, bias)| row.iter().zip(speaker).map(|(a, b)| a * b).sum::<f32>() + bias).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::original;

    #[test]
    fn names_are_the_first_codes() {
        for (name, own) in [
            ("text_encoder.embed_tokens.weight", "enc_p.emb.weight"),
            (
                "text_encoder.encoder.layers.3.attention.q_proj.weight",
                "enc_p.encoder.attn_layers.3.conv_q.weight",
            ),
            ("text_encoder.encoder.layers.3.attention.emb_rel_k", "enc_p.encoder.attn_layers.3.emb_rel_k"),
            ("text_encoder.encoder.layers.0.layer_norm.weight", "enc_p.encoder.norm_layers_1.0.gamma"),
            (
                "text_encoder.encoder.layers.0.feed_forward.conv_1.bias",
                "enc_p.encoder.ffn_layers.0.conv_1.bias",
            ),
            ("text_encoder.encoder.layers.0.final_layer_norm.bias", "enc_p.encoder.norm_layers_2.0.beta"),
            ("duration_predictor.conv_pre.weight", "dp.pre.weight"),
            ("duration_predictor.conv_dds.convs_dilated.2.weight", "dp.convs.convs_sep.2.weight"),
            ("duration_predictor.conv_dds.norms_1.2.weight", "dp.convs.norms_1.2.gamma"),
            ("duration_predictor.flows.0.translate", "dp.flows.0.m"),
            ("duration_predictor.flows.2.conv_proj.bias", "dp.flows.3.proj.bias"),
            (
                "duration_predictor.flows.4.conv_dds.convs_pointwise.0.bias",
                "dp.flows.7.convs.convs_1x1.0.bias",
            ),
            ("flow.flows.3.conv_post.weight", "flow.flows.6.post.weight"),
            ("flow.flows.1.wavenet.in_layers.0.weight", "flow.flows.2.enc.in_layers.0.weight"),
            ("decoder.conv_pre.weight", "dec.conv_pre.weight"),
            ("decoder.upsampler.1.weight", "dec.ups.1.weight"),
            ("decoder.resblocks.4.convs1.2.bias", "dec.resblocks.4.convs1.2.bias"),
            ("decoder.cond.weight", "dec.cond.weight"),
        ] {
            assert_eq!(original(name), own);
        }
    }
}
