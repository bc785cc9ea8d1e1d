//! What the scripted engine answers to what asks for vectors or scores: made of the texts alone, so that a test can
//! say what must come.

use hanzo_engine_proto::v1::{self, Capability, EmbedOutput, ModelState, embed_input::Input};

/// Numbers of a whole vector.
pub(crate) const DIMENSIONS: usize = 6;

/// The `dimensions` of requests that are answered wrongly.
pub(crate) const NOT_A_NUMBER: u32 = 1001;
pub(crate) const ONE_TOO_FEW: u32 = 1002;
pub(crate) const CUT_SHORT: u32 = 1003;

/// The `dimensions` of a request that is answered with zeros: 4 MB for each input.
pub(crate) const HUGE: u32 = 1_000_000;

/// The bytes of an input: the text's, or the ids' lowest.
pub(crate) fn bytes_of(input: &v1::EmbedInput) -> Vec<u8> {
    match input.input.as_ref().unwrap() {
        Input::Text(text) => text.bytes().collect(),
        Input::Tokens(tokens) => tokens.ids.iter().map(|id| *id as u8).collect(),
        Input::Picture(picture) => picture.data.to_vec(),
        Input::Chat(chat) => vec![chat.messages.len() as u8],
    }
}

/// The vector of a text, of that many numbers, of length 1 where it is normalized.
pub(crate) fn vector(bytes: &[u8], dimensions: usize, normalize: bool) -> Vec<f32> {
    let seed = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3));
    let number = |i: usize| {
        let mixed = (seed ^ (i as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as f32 / (1_u32 << 24) as f32 - 0.5
    };
    let vector: Vec<f32> = (0..dimensions).map(number).collect();
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if normalize { vector.iter().map(|x| x / length).collect() } else { vector }
}

fn packed(vectors: &[Vec<f32>]) -> bytes::Bytes {
    vectors.iter().flatten().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().into()
}

/// A byte is a token. Models normalize unless they are told not to.
pub(crate) fn embed(request: &v1::EmbedRequest) -> v1::EmbedResponse {
    let dimensions = if request.dimensions > 0 { request.dimensions as usize } else { DIMENSIONS };
    let embedding = |input: &v1::EmbedInput| {
        let bytes = bytes_of(input);
        let tokens = bytes.len() as u32;
        match request.output() {
            EmbedOutput::Sparse => {
                let weight =
                    |b: &u8| v1::SparseWeight { token_id: u32::from(*b), weight: f32::from(*b) / 10.0 };
                v1::Embedding { sparse: bytes.iter().map(weight).collect(), tokens, ..Default::default() }
            }
            EmbedOutput::Tokens => {
                let rows: Vec<_> = bytes.iter().map(|b| vector(&[*b], dimensions, false)).collect();
                v1::Embedding { packed: packed(&rows), rows: tokens, tokens, ..Default::default() }
            }
            _ if request.dimensions == HUGE => v1::Embedding {
                packed: vec![0; dimensions * 4].into(),
                rows: 1,
                tokens,
                ..Default::default()
            },
            EmbedOutput::Unspecified | EmbedOutput::Pooled => {
                let row = vector(&bytes, dimensions, request.normalize != Some(false));
                v1::Embedding { packed: packed(&[row]), rows: 1, tokens, ..Default::default() }
            }
        }
    };
    let mut embeddings: Vec<_> = request.inputs.iter().map(embedding).collect();
    match request.dimensions {
        NOT_A_NUMBER => embeddings[1].packed = packed(&[vec![f32::NAN; dimensions]]),
        ONE_TOO_FEW => embeddings.truncate(1),
        CUT_SHORT => embeddings[0].packed.truncate(5),
        _ => {}
    }
    v1::EmbedResponse {
        prompt_tokens: embeddings.iter().map(|e| e.tokens).sum(),
        embeddings,
        model: "owner/embeds".to_owned(),
        dimensions: if request.output() == EmbedOutput::Sparse { 0 } else { dimensions as u32 },
    }
}

/// The logit of a document: the longer, the worse.
pub(crate) fn logit(document: &str) -> f32 {
    -(document.len() as f32) / 8.0
}

/// What a logit is as a probability.
pub(crate) fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

pub(crate) fn rerank(request: &v1::RerankRequest) -> v1::RerankResponse {
    let score = |document: &String| {
        if request.raw_scores { logit(document) } else { sigmoid(logit(document)) }
    };
    let result = |(i, d): (usize, &String)| v1::RerankResult { index: i as u32, score: score(d) };
    let mut results: Vec<_> = request.documents.iter().enumerate().map(result).collect();
    results.sort_by(|a, b| b.score.total_cmp(&a.score));
    let tokens = |text: &String| text.len() as u32;
    let pairs = request.documents.iter().map(|d| tokens(d) + tokens(&request.query));
    v1::RerankResponse { results, prompt_tokens: pairs.sum(), model: "owner/ranks".to_owned() }
}

/// Texts of even length are good; a pair's length is both.
pub(crate) fn classify(request: &v1::ClassifyRequest) -> v1::ClassifyResponse {
    let length = |input: &v1::ClassifyInput| input.text.len() + input.pair.as_ref().map_or(0, String::len);
    let label = |label: &str, score| v1::LabelScore { label: label.to_owned(), score };
    let classification = |input: &v1::ClassifyInput| {
        let good = if length(input) % 2 == 0 { 0.75 } else { 0.125 };
        let scale = if request.raw_scores { 10.0 } else { 1.0 };
        let labels = vec![label("bad", (1.0 - good) * scale), label("good", good * scale)];
        v1::Classification { labels }
    };
    v1::ClassifyResponse {
        classifications: request.inputs.iter().map(classification).collect(),
        prompt_tokens: request.inputs.iter().map(|i| length(i) as u32).sum(),
        model: "owner/classifies".to_owned(),
    }
}

/// Models in memory: name, state and what each can do.
pub(crate) fn stats(models: &[(&str, ModelState, &[Capability])]) -> v1::StatsResponse {
    let stats = |(name, state, capabilities): &(&str, ModelState, &[Capability])| v1::ModelStats {
        status: Some(v1::ModelStatus {
            name: (*name).to_owned(),
            state: (*state).into(),
            capabilities: capabilities.iter().map(|c| (*c).into()).collect(),
            quantization: "F32".to_owned(),
            context_tokens_max: 4096,
            embedder: Some(v1::Embedder {
                dimensions: DIMENSIONS as u32,
                pooling: "mean".to_owned(),
                normalizes: true,
                input_tokens_max: 256,
                labels: vec!["bad".to_owned(), "good".to_owned()],
                ..Default::default()
            }),
            ..Default::default()
        }),
        queue_capacity: 99,
        ..Default::default()
    };
    v1::StatsResponse { models: models.iter().map(stats).collect(), ..Default::default() }
}

/// One model of each kind, beside one that chats.
pub(crate) fn all_kinds() -> v1::StatsResponse {
    let ready = ModelState::Ready;
    stats(&[
        ("owner/chats", ready, &[Capability::Chat, Capability::Completion]),
        ("owner/embeds", ready, &[Capability::Embed]),
        ("owner/ranks", ready, &[Capability::Rerank]),
        ("owner/classifies", ready, &[Capability::Classify]),
        ("owner/sparse", ready, &[Capability::EmbedSparse]),
    ])
}
