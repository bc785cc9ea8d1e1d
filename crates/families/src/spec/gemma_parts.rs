//! Additional parts of Gemma 3n's and 4's layers: their weights and shapes.

use super::weights::{LayerPart, List, Part};
use super::{LayerSpec, MlpSpec, Names, TransformerSpec};

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
    pub fn is_small(self) -> bool {
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
}

impl TransformerSpec {
    /// Tensors that files may have for layers that share another's keys and values, although they are not used.
    pub fn shared_names(&self, names: &Names) -> Vec<String> {
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
