//! What Gemma 3n's and 4's layers are made of beside those of other families: which weights, their shapes, and what files call them.

use super::weights::{LayerPart, List, Part};
use super::{ExpertNames, ExpertPack, LayerSpec, MlpSpec, Names, TransformerSpec};

/// A part of a network whose layers each read a vector of their own for each token, or that have experts beside an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GemmaPart {
    /// (vocab, layers * inputs): what each layer reads of a token.
    InputEmbedding,
    /// (layers * inputs, hidden): what each layer reads of a token's embedding.
    InputProjection,
    /// (inputs): of what the projection gives for one layer.
    InputProjectionNorm,
    /// (inputs, hidden), of a layer: what its vector is multiplied with.
    InputGate,
    /// (hidden, inputs), of a layer.
    InputUp,
    /// (hidden), of what a layer's vector adds.
    InputNorm,
    /// (1): a factor on what a layer gives.
    OutputScale,
    /// (hidden): factors on what the router reads, which is normed.
    RouterScale,
    /// (experts): factors on what experts count for.
    ExpertScale,
    /// (hidden): of what experts read.
    ExpertsNorm,
    /// (hidden): of what experts add together.
    ExpertsPostNorm,
    /// (hidden): of what the MLP beside them adds.
    SharedPostNorm,
    /// (hidden, hidden): makes a stream behind the first of the embedding.
    StreamUp(usize),
    /// (hidden, hidden): what such a stream adds in the end.
    StreamDown(usize),
    /// (streams, hidden), of a layer: tells how streams mix.
    StreamRouter,
    /// (hidden), of what that reads.
    StreamRouterNorm,
    /// (streams * streams, streams): how each stream is predicted of all.
    StreamPrediction,
    /// (streams, streams): how far each stream follows what the layer has computed.
    StreamCorrection,
    /// (hidden): factors on what is multiplied with the layer's vector.
    StreamScale,
    /// (rank, hidden): of the narrow way beside attention (LAuReL).
    LaurelDown,
    /// (hidden, rank)
    LaurelUp,
    /// (hidden)
    LaurelNorm,
}

impl GemmaPart {
    /// Its matrix is small and of everything that follows, and stays as it is where others are quantised.
    pub(crate) fn is_small(self) -> bool {
        !matches!(self, InputEmbedding | InputGate | InputUp)
    }
}

/// Streams beside each other, of which each layer computes one and mixes all (AltUp, arxiv.org/abs/2301.13310), as Gemma 3n has them.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamsSpec {
    /// How many.
    pub count: usize,
    /// The one that layers compute.
    pub active: usize,
    /// What is multiplied with a layer's vector has factors.
    pub scaled: bool,
    /// Elements of the narrow way beside attention.
    pub laurel_rank: usize,
    /// Of each layer, how many standard deviations above its mean a gate's number must be to count, if not all do.
    pub outliers: Vec<Option<f32>>, // (layers)
}

use GemmaPart::*;

/// In full, within a layer or without one.
pub(crate) type GemmaNames = &'static [(GemmaPart, &'static str)];

impl Names {
    /// A tensor's name.
    pub(super) fn of_gemma(&self, part: GemmaPart) -> String {
        let (any, number) = match part {
            StreamUp(number) => (StreamUp(0), number),
            StreamDown(number) => (StreamDown(0), number),
            part => (part, 0),
        };
        let named = self.gemma.iter().find(|(named, _)| *named == any);
        named.map_or_else(String::new, |(_, name)| name.replace("{}", &number.to_string()))
    }

    /// The transformers library's Gemma4 class.
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

    /// The transformers library's Gemma3n class.
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

    /// GGUF files of the same.
    pub(crate) const GGUF_GEMMA3N: Names = Names {
        gemma: &[
            (InputEmbedding, "per_layer_token_embd.weight"),
            (InputProjection, "per_layer_model_proj.weight"),
            (InputProjectionNorm, "per_layer_proj_norm.weight"),
            (InputGate, "inp_gate.weight"),
            (InputUp, "proj.weight"),
            (InputNorm, "post_norm.weight"),
            // One of a stack.
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

    /// GGUF files of Gemma 4.
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
    /// What files may have of layers that share another's keys and values: those that they would have had.
    pub(crate) fn shared_names(&self, names: &Names) -> Vec<String> {
        let sharing = self.layers.iter().enumerate().filter(|(_, layer)| layer.attention.shares.is_some());
        let parts = [LayerPart::Key, LayerPart::Value, LayerPart::KeyNorm];
        sharing
            .flat_map(|(layer, _)| parts.map(|part| names.of("", Part::Layer(layer, part).weight())))
            .collect()
    }

    /// What is before the layers.
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

    /// What a layer has.
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
