//! Conversion of embedding, reranking and classification messages.

use std::sync::Arc;

use hanzo_engine_proto::v1;
use hanzo_engine_runtime::{EmbedResult, Embedder, Output, Prompt, Task, chat::Chat, tokenizer::CutSide};

use super::{media, request};
use crate::{
    error::Error,
    prompt::{RequestedMedia, RequestedPicture},
};

/// Request message that names a model and a task.
pub(crate) trait ModelRequest: Send + 'static {
    /// Name of the model; may be empty.
    fn model(&self) -> &str;

    /// Task that the model must support.
    fn task(&self) -> Task;

    /// Requested idle time before the model is unloaded.
    fn keep_alive(&self) -> Option<&str>;

    /// Name of the client, as the request gives it.
    fn client(&self) -> &str;
}

impl ModelRequest for v1::EmbedRequest {
    fn model(&self) -> &str {
        &self.model
    }

    fn task(&self) -> Task {
        match self.output() {
            v1::EmbedOutput::Sparse => Task::EmbedSparse,
            _ => Task::Embed,
        }
    }

    fn keep_alive(&self) -> Option<&str> {
        self.keep_alive.as_deref()
    }

    fn client(&self) -> &str {
        &self.client
    }
}

impl ModelRequest for v1::RerankRequest {
    fn model(&self) -> &str {
        &self.model
    }

    fn task(&self) -> Task {
        Task::Rerank
    }

    fn keep_alive(&self) -> Option<&str> {
        self.keep_alive.as_deref()
    }

    fn client(&self) -> &str {
        &self.client
    }
}

impl ModelRequest for v1::ClassifyRequest {
    fn model(&self) -> &str {
        &self.model
    }

    fn task(&self) -> Task {
        Task::Classify
    }

    fn keep_alive(&self) -> Option<&str> {
        self.keep_alive.as_deref()
    }

    fn client(&self) -> &str {
        &self.client
    }
}

/// Call for embeddings, scores or labels, in the engine's types.
pub(crate) struct EmbedCall {
    pub(crate) inputs: Vec<InputSource>,
    /// Name of the inputs' field on the wire.
    pub(crate) field: &'static str,
    pub(crate) encode: Encode,
    pub(crate) output: Output,
    pub(crate) priority: i32,
}

/// Input as it was received.
pub(crate) enum InputSource {
    Text(String),
    Tokens(Vec<u32>),
    /// Query and document; the query is shared by all documents.
    Pair(Arc<str>, String),
    Picture(RequestedPicture),
    Chat(Box<(Chat, RequestedMedia)>),
}

impl InputSource {
    /// Size of its texts; `None` for inputs that always count as large.
    pub(crate) fn bytes(&self) -> Option<usize> {
        match self {
            Self::Text(text) => Some(text.len()),
            Self::Tokens(tokens) => Some(size_of_val(&tokens[..])),
            // The query counts for each document, as it is tokenized with each.
            Self::Pair(query, document) => Some(query.len() + document.len()),
            Self::Picture(_) | Self::Chat(_) => None,
        }
    }
}

/// Tokenization options of the inputs.
pub(crate) struct Encode {
    pub(crate) prompt: Prompt,
    /// Instruction for a reranker about the query's purpose.
    pub(crate) task: Option<String>,
    /// Side to truncate; `None` refuses inputs that are too long.
    pub(crate) cut: Option<CutSide>,
}

/// Converts an enumeration's number, if this build knows the value.
fn known<E: TryFrom<i32>>(field: &str, value: i32) -> Result<E, Error> {
    E::try_from(value).map_err(|_| Error::field(field, format!("{value} is none of its values")))
}

/// Adds the input's index to the field of an error in a conversation.
pub(crate) fn of_chat(index: usize, error: Error) -> Error {
    match error {
        Error::Field { field, reason } if field.starts_with("chat") => {
            Error::Field { field: format!("{}.{field}", place("inputs", index)), reason }
        }
        other => other,
    }
}

/// Formats the position of an input in its request.
pub(crate) fn place(field: &str, index: usize) -> String {
    format!("{field}[{index}]")
}

pub(super) fn truncate_side(value: i32) -> Result<v1::TruncateSide, Error> {
    known("truncate_side", value)
}

fn cut(truncate: bool, side: v1::TruncateSide) -> Option<CutSide> {
    truncate.then_some(match side {
        v1::TruncateSide::Left => CutSide::Left,
        v1::TruncateSide::Right | v1::TruncateSide::Unspecified => CutSide::Right,
    })
}

/// Converts a request for embeddings.
pub(crate) fn embed(wire: v1::EmbedRequest, embedder: &Embedder) -> Result<EmbedCall, Error> {
    use v1::embed_input::Input;
    let (side, output) = (truncate_side(wire.truncate_side)?, known("output", wire.output)?);
    let prompt = match (wire.prompt_name.is_empty(), wire.instruction.is_empty()) {
        (true, true) => Prompt::Default,
        (false, true) => Prompt::Named(wire.prompt_name),
        (true, false) => Prompt::Instruction(wire.instruction),
        (false, false) => return Err(Error::field("instruction", "must be empty where prompt_name is set")),
    };
    let dimensions = wire.dimensions as usize;
    let of_vectors: bool = output == v1::EmbedOutput::Unspecified || output == v1::EmbedOutput::Pooled;
    if dimensions > embedder.dimensions() {
        let reason =
            format!("this model's vectors have {}; {dimensions} are asked for", embedder.dimensions());
        return Err(Error::field("dimensions", reason));
    }
    if !of_vectors && dimensions > 0 {
        return Err(Error::field("dimensions", "is of pooled vectors only"));
    }
    if !of_vectors && wire.normalize.is_some() {
        return Err(Error::field("normalize", "is of pooled vectors only"));
    }
    let output = match output {
        v1::EmbedOutput::Tokens => Output::Tokens,
        v1::EmbedOutput::Sparse => Output::Sparse,
        v1::EmbedOutput::Pooled | v1::EmbedOutput::Unspecified => {
            Output::Vector { dimensions: (dimensions > 0).then_some(dimensions), normalize: wire.normalize }
        }
    };
    let source = |(index, input): (usize, v1::EmbedInput)| match input.input {
        Some(Input::Text(text)) => Ok(InputSource::Text(text)),
        Some(Input::Tokens(tokens)) => Ok(InputSource::Tokens(tokens.ids)),
        Some(Input::Picture(picture)) => {
            media::picture(place("inputs", index), picture).map(InputSource::Picture)
        }
        Some(Input::Chat(chat)) => {
            let mut media = RequestedMedia::default();
            let chat = request::chat(chat, &mut media).map_err(|error| of_chat(index, error))?;
            Ok(InputSource::Chat(Box::new((chat, media))))
        }
        None => Err(Error::field(place("inputs", index), "is none of text, tokens, picture and chat")),
    };
    let inputs: Vec<InputSource> =
        wire.inputs.into_iter().enumerate().map(source).collect::<Result<_, _>>()?;
    let encode = Encode { prompt, task: None, cut: cut(wire.truncate, side) };
    checked(inputs, "inputs", encode, output, wire.priority)
}

/// Converts a request for reranking scores.
pub(crate) fn rerank(wire: v1::RerankRequest) -> Result<EmbedCall, Error> {
    let side = truncate_side(wire.truncate_side)?;
    if wire.query.is_empty() {
        return Err(Error::field("query", "must not be empty"));
    }
    if let Some(index) = wire.documents.iter().position(String::is_empty) {
        return Err(Error::field(place("documents", index), "must not be empty"));
    }
    let query: Arc<str> = wire.query.into();
    let inputs =
        wire.documents.into_iter().map(|document| InputSource::Pair(query.clone(), document)).collect();
    let task = (!wire.instruction.is_empty()).then_some(wire.instruction);
    let encode = Encode { prompt: Prompt::Default, task, cut: cut(wire.truncate, side) };
    checked(inputs, "documents", encode, Output::Scores { raw: wire.raw_scores }, wire.priority)
}

/// Converts a request for classification scores.
pub(crate) fn classify(wire: v1::ClassifyRequest) -> Result<EmbedCall, Error> {
    let side = truncate_side(wire.truncate_side)?;
    if let Some(index) = wire.inputs.iter().position(|input| input.text.is_empty()) {
        return Err(Error::field(place("inputs", index), "must not be empty"));
    }
    let source = |input: v1::ClassifyInput| match input.pair {
        Some(pair) => InputSource::Pair(input.text.into(), pair),
        None => InputSource::Text(input.text),
    };
    let inputs = wire.inputs.into_iter().map(source).collect();
    let encode = Encode { prompt: Prompt::Default, task: None, cut: cut(wire.truncate, side) };
    checked(inputs, "inputs", encode, Output::Scores { raw: wire.raw_scores }, wire.priority)
}

fn checked(
    inputs: Vec<InputSource>,
    field: &'static str,
    encode: Encode,
    output: Output,
    priority: i32,
) -> Result<EmbedCall, Error> {
    if inputs.is_empty() {
        return Err(Error::field(field, "must have at least one"));
    }
    Ok(EmbedCall { inputs, field, encode, output, priority })
}

/// Computed results of all inputs, in order.
pub(crate) struct ComputedInputs {
    pub(crate) model: String,
    pub(crate) computed: Vec<EmbedResult>,
    /// Token count of each input.
    pub(crate) tokens: Vec<u32>,
}

fn prompt_tokens(answer: &ComputedInputs) -> u32 {
    answer.tokens.iter().fold(0u32, |sum, &tokens| sum.saturating_add(tokens))
}

/// Builds the response of Embed.
pub(crate) fn embeddings(answer: ComputedInputs, packed: bool) -> v1::EmbedResponse {
    let prompt_tokens = prompt_tokens(&answer);
    let ComputedInputs { model, computed, tokens } = answer;
    let mut dimensions = 0;
    let embedding = |(computed, tokens): (EmbedResult, u32)| match computed {
        EmbedResult::Dense { values, rows } => {
            dimensions = values.len() / rows.max(1);
            let rows = rows as u32;
            if packed {
                let packed = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                v1::Embedding { packed, rows, tokens, ..Default::default() }
            } else {
                v1::Embedding { values, rows, tokens, ..Default::default() }
            }
        }
        EmbedResult::Sparse(weights) => {
            let weight = |(token_id, weight)| v1::SparseWeight { token_id, weight };
            v1::Embedding {
                sparse: weights.into_iter().map(weight).collect(),
                rows: 1,
                tokens,
                ..Default::default()
            }
        }
    };
    let embeddings = computed.into_iter().zip(tokens).map(embedding).collect();
    v1::EmbedResponse { embeddings, prompt_tokens, model, dimensions: dimensions as u32 }
}

/// Numbers of a result; a classifier's are never sparse.
fn scores(computed: EmbedResult) -> Vec<f32> {
    match computed {
        EmbedResult::Dense { values, .. } => values,
        EmbedResult::Sparse(_) => Vec::new(),
    }
}

/// Builds the response of Rerank.
pub(crate) fn ranking(answer: ComputedInputs, top_n: usize) -> v1::RerankResponse {
    let prompt_tokens = prompt_tokens(&answer);
    let score = |(index, computed): (u32, EmbedResult)| {
        let score = scores(computed).first().copied().unwrap_or_default();
        v1::RerankResult { index, score }
    };
    let mut results: Vec<v1::RerankResult> = (0..).zip(answer.computed).map(score).collect();
    // Stable sort: among equal scores the lower index stays first.
    results.sort_by(|a, b| b.score.total_cmp(&a.score));
    if top_n > 0 {
        results.truncate(top_n);
    }
    v1::RerankResponse { results, prompt_tokens, model: answer.model }
}

/// Builds the response of Classify.
pub(crate) fn classifications(answer: ComputedInputs, labels: &[String]) -> v1::ClassifyResponse {
    let prompt_tokens = prompt_tokens(&answer);
    let classification = |computed| {
        let label = |(label, score): (&String, f32)| v1::LabelScore { label: label.clone(), score };
        v1::Classification { labels: labels.iter().zip(scores(computed)).map(label).collect() }
    };
    let classifications = answer.computed.into_iter().map(classification).collect();
    v1::ClassifyResponse { classifications, prompt_tokens, model: answer.model }
}

/// Describes an embedding model or a classifier.
pub(crate) fn embedder(embedder: &Embedder) -> v1::Embedder {
    let spec = &embedder.spec;
    let labels = embedder.classifier.as_ref().map(|classifier| classifier.labels.clone());
    v1::Embedder {
        dimensions: embedder.dimensions() as u32,
        pooling: match &embedder.classifier {
            Some(classifier) => classifier.input.name().to_owned(),
            None => spec.pooling_name(),
        },
        normalizes: embedder.classifier.is_none() && spec.normalizes(),
        input_tokens_max: embedder.tokens_max as u32,
        prompt_names: spec.prompts.keys().cloned().collect(),
        default_prompt_name: spec.default_prompt.clone().unwrap_or_default(),
        labels: labels.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::InputSource;

    #[test]
    fn the_query_counts_for_each_document() {
        assert_eq!(InputSource::Pair("ab".into(), "c".to_owned()).bytes(), Some(3));
    }
}
