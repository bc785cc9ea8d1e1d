//! Additional parts of Gemma 3n's and 4's layers: their weights, shapes and names in files.

use super::weights::{LayerPart, List, Part};
use super::{ExpertNames, ExpertPack, LayerSpec, MlpSpec, Names, TransformerSpec};

/// Part of a network with a separate input vector for each layer and token, or with experts beside an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GemmaPart {
    /// (vocab, layers * inputs): input of each layer, by token.
    InputEmbedding,
    /// (layers * inputs, hidden): projection of a token's embedding to each layer's input.
    InputProjection,
    /// (inputs): norm of the projection for one layer.
    InputProjectionNorm,
    /// (inputs, hidden), of a layer: gate that is multiplied with its input.
    InputGate,
    /// (hidden, inputs), of a layer.
    InputUp,
    /// (hidden): norm of the addition by a layer's input.
    InputNorm,
    /// (1): factor on a layer's output.
    OutputScale,
    /// (hidden): factors on the router's normed input.
    RouterScale,
    /// (experts): factors on the experts' weights.
    ExpertScale,
    /// (hidden): norm of the experts' input.
    ExpertsNorm,
    /// (hidden): norm of the experts' summed output.
    ExpertsPostNorm,
    /// (hidden): norm of the output of the MLP beside them.
    SharedPostNorm,
    /// (hidden, hidden): makes an additional stream from the embedding.
    StreamUp(usize),
    /// (hidden, hidden): final projection of an additional stream, which is added to the others.
    StreamDown(usize),
    /// (streams, hidden), of a layer: router that computes how streams mix.
    StreamRouter,
    /// (hidden): norm of the router's input.
    StreamRouterNorm,
    /// (streams * streams, streams): prediction of each stream from all streams.
    StreamPrediction,
    /// (streams, streams): degree to which each stream follows the layer's result.
    StreamCorrection,
    /// (hidden): factors on the vector that is multiplied with the layer's input.
    StreamScale,
    /// (rank, hidden): low-rank path beside attention (LAuReL).
    LaurelDown,
    /// (hidden, rank)
    LaurelUp,
    /// (hidden)
    LaurelNorm,
}

impl GemmaPart {
    /// Whether its matrix is small and affects everything after it, so that it is not quantised.
    pub(crate) fn is_small(self) -> bool {
        !matches!(self, InputEmbedding | InputGate | InputUp)
    }
}

/// Parallel streams, of which each layer computes one and mixes all (AltUp, arxiv.org/abs/2301.13310), in Gemma 3n.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamsSpec {
    /// Number of streams.
    pub count: usize,
    /// Index of the stream that layers compute.
    pub active: usize,
    /// Whether the vector that is multiplied with a layer's input has factors.
    pub scaled: bool,
    /// Rank of the low-rank path beside attention.
    pub laurel_rank: usize,
    /// Threshold of each layer's gate above its mean, in standard deviations; none: all numbers count.
    pub outliers: Vec<Option<f32>>, // (layers)
}

use GemmaPart::*;

/// Names in full, within a layer or outside of layers.
pub(crate) type GemmaNames = &'static [(GemmaPart, &'static str)];

impl Names {
    /// Name of a tensor.
    pub(super) fn of_gemma(&self, part: GemmaPart) -> String {
        let (any, number) = match part {
            StreamUp(number) => (StreamUp(0), number),
            StreamDown(number) => (StreamDown(0), number),
            part => (part, 0),
        };
        let named = self.gemma.iter().find(|(named, _)| *named == any);
        named.map_or_else(String::new, |(_, name)| name.replace("{}", &number.to_string()))
    }

    /// Names in the transformers library's Gemma4 class.
    pub(crate) const GEMMA4: Names = Names {
        router: "router.proj",
        experts: ExpertNames {
            gate: "experts.{}.gate_proj.weight",
            up: "experts.{}.up_proj.weight",
            down: "experts.{}.down_proj.weight",
            pack: Some(ExpertPack {
                gate_up: "experts.gate_up_proj",
                down: "experts.down_proj",
                bias_suffix: "_bias",
                in_turns: false,
                inputs_first: false,
            }),
            ..ExpertNames::NONE
        },
        shared_gate: "mlp.gate_proj",
        shared_up: "mlp.up_proj",
        shared_down: "mlp.down_proj",
        gemma: &[
            (InputEmbedding, "embed_tokens_per_layer.weight"),
            (InputProjection, "per_layer_model_projection.weight"),
            (InputProjectionNorm, "per_layer_projection_norm.weight"),
            (InputGate, "per_layer_input_gate.weight"),
            (InputUp, "per_layer_projection.weight"),
            (InputNorm, "post_per_layer_input_norm.weight"),
            (OutputScale, "layer_scalar"),
            (RouterScale, "router.scale"),
            (ExpertScale, "router.per_expert_scale"),
            (ExpertsNorm, "pre_feedforward_layernorm_2.weight"),
            (ExpertsPostNorm, "post_feedforward_layernorm_2.weight"),
            (SharedPostNorm, "post_feedforward_layernorm_1.weight"),
        ],
        ..Names::GEMMA
    };

    /// Names in the transformers library's Gemma3n class.
    pub(crate) const GEMMA3N: Names = Names {
        gemma: &[
            (InputEmbedding, "embed_tokens_per_layer.weight"),
            (InputProjection, "per_layer_model_projection.weight"),
            (InputProjectionNorm, "per_layer_projection_norm.weight"),
            (InputGate, "per_layer_input_gate.weight"),
            (InputUp, "per_layer_projection.weight"),
            (InputNorm, "post_per_layer_input_norm.weight"),
            (StreamUp(0), "altup_projections.{}.weight"),
            (StreamDown(0), "altup_unembed_projections.{}.weight"),
            (StreamRouter, "altup.modality_router.weight"),
            (StreamRouterNorm, "altup.router_norm.weight"),
            (StreamPrediction, "altup.prediction_coefs.weight"),
            (StreamCorrection, "altup.correction_coefs.weight"),
            (StreamScale, "altup.correct_output_scale"),
            (LaurelDown, "laurel.linear_left.weight"),
            (LaurelUp, "laurel.linear_right.weight"),
            (LaurelNorm, "laurel.post_laurel_norm.weight"),
        ],
        ..Names::GEMMA
    };

    /// Names in GGUF files of Gemma 3n.
    pub(crate) const GGUF_GEMMA3N: Names = Names {
        gemma: &[
            (InputEmbedding, "per_layer_token_embd.weight"),
            (InputProjection, "per_layer_model_proj.weight"),
            (InputProjectionNorm, "per_layer_proj_norm.weight"),
            (InputGate, "inp_gate.weight"),
            (InputUp, "proj.weight"),
            (InputNorm, "post_norm.weight"),
            // One matrix of a stack.
            (StreamUp(0), "altup_proj.weight[{}]"),
            (StreamDown(0), "altup_unembd_proj.weight[{}]"),
            (StreamRouter, "altup_router.weight"),
            (StreamRouterNorm, "altup_router_norm.weight"),
            (StreamPrediction, "altup_predict_coef.weight"),
            (StreamCorrection, "altup_correct_coef.weight"),
            (StreamScale, "altup_correct_scale.weight"),
            (LaurelDown, "laurel_l.weight"),
            (LaurelUp, "laurel_r.weight"),
            (LaurelNorm, "laurel_post_norm.weight"),
        ],
        ..Names::GGUF
    };

    /// Names in GGUF files of Gemma 4.
    pub(crate) const GGUF_GEMMA4: Names = Names {
        experts: ExpertNames {
            pack: Some(ExpertPack {
                gate_up: "ffn_gate_up_exps.weight",
                down: "",
                bias_suffix: "_bias",
                in_turns: false,
                inputs_first: false,
            }),
            ..Names::GGUF.experts
        },
        shared_gate: "ffn_gate",
        shared_up: "ffn_up",
        shared_down: "ffn_down",
        gemma: &[
            (InputEmbedding, "per_layer_token_embd.weight"),
            (InputProjection, "per_layer_model_proj.weight"),
            (InputProjectionNorm, "per_layer_proj_norm.weight"),
            (InputGate, "inp_gate.weight"),
            (InputUp, "proj.weight"),
            (InputNorm, "post_norm.weight"),
            (OutputScale, "layer_output_scale.weight"),
            (RouterScale, "ffn_gate_inp.scale"),
            (ExpertScale, "ffn_down_exps.scale"),
            (ExpertsNorm, "pre_ffw_norm_2.weight"),
            (ExpertsPostNorm, "post_ffw_norm_2.weight"),
            (SharedPostNorm, "post_ffw_norm_1.weight"),
        ],
        ..Names::GGUF
    };
}

impl TransformerSpec {
    /// Tensors that files may have for layers that share another's keys and values, although they are not used.
    pub(crate) fn shared_names(&self, names: &Names) -> Vec<String> {
        let sharing = self.layers.iter().enumerate().filter(|(_, layer)| layer.attention.shares.is_some());
        let parts = [LayerPart::Key, LayerPart::Value, LayerPart::KeyNorm];
        sharing
            .flat_map(|(layer, _)| parts.map(|part| names.of("", Part::Layer(layer, part).weight())))
            .collect()
    }

    /// Weights before the layers.
    pub(super) fn input_weights(&self, list: &mut List) {
        for stream in 0..self.streams.as_ref().map_or(0, |streams| streams.count - 1) {
            list.matrix(Part::Gemma(StreamUp(stream)), self.hidden, self.hidden, false);
            list.matrix(Part::Gemma(StreamDown(stream)), self.hidden, self.hidden, false);
        }
        let Some(inputs) = self.layer_inputs else { return };
        let all = self.layers.len() * inputs;
        list.matrix(Part::Gemma(InputEmbedding), self.vocab, all, false);
        list.matrix(Part::Gemma(InputProjection), all, self.hidden, false);
        list.vector(Part::Gemma(InputProjectionNorm), inputs, false);
    }

    /// Weights of a layer.
    pub(super) fn gemma_weights(&self, index: usize, layer: &LayerSpec, list: &mut List) {
        let hidden = self.hidden;
        let part = |part| Part::Layer(index, LayerPart::Gemma(part));
        if let MlpSpec::Experts(experts) = &layer.mlp
            && experts.apart
        {
            list.vector(part(RouterScale), hidden, false);
            list.vector(part(ExpertScale), experts.count, false);
            for norm in [ExpertsNorm, ExpertsPostNorm, SharedPostNorm] {
                list.vector(part(norm), hidden, false);
            }
        }
        if let Some(streams) = &self.streams {
            let count = streams.count;
            list.matrix(part(StreamRouter), count, hidden, false);
            list.vector(part(StreamRouterNorm), hidden, false);
            list.matrix(part(StreamPrediction), count * count, count, false);
            list.matrix(part(StreamCorrection), count, count, false);
            if streams.scaled {
                list.vector(part(StreamScale), hidden, false);
            }
            list.matrix(part(LaurelDown), streams.laurel_rank, hidden, false);
            list.matrix(part(LaurelUp), hidden, streams.laurel_rank, false);
            list.vector(part(LaurelNorm), hidden, false);
        }
        if let Some(inputs) = self.layer_inputs {
            list.matrix(part(InputGate), inputs, hidden, false);
            list.matrix(part(InputUp), hidden, inputs, false);
            list.vector(part(InputNorm), hidden, false);
        }
        if self.layers_scaled {
            list.vector(part(OutputScale), 1, false);
        }
    }
}
