//! Parsers of requests in TEI's format, and the answer of `/info`.

use hanzo_engine_proto::v1::{self, Capability, EmbedOutput, Embedder};
use serde_json::{Map, Value, json};

use crate::{
    config::Config,
    declare::{Declaration as _, Raw, Read, fields},
    error::ApiError,
    fields::{Field, Fields},
    request::{FILLED, ScoringFields, TruncationFields, elements, filled, model_name},
    scores::tasks::ClassifyTask,
    vectors::{
        inputs::{EmbeddingFields, INPUTS, Inputs, inputs},
        json::VectorFormat,
    },
};

fields! {
    /// Body of `POST /embed`, `/embed_all` and `/embed_sparse`.
    pub(crate) struct EmbedRequest<'a> {
        ..embedding: EmbeddingFields<'a>,
        /// Text or its tokens, or several.
        inputs: Field<'a> = Raw(INPUTS),
        /// Object that huggingface_hub sends, which must be empty.
        #[expect(dead_code, reason = "only checked")]
        parameters?: NoParameters,
    }
}

fields! {
    /// Empty object.
    pub(crate) struct NoParameters {}
}

/// Parses a request of `/embed`, `/embed_all` or `/embed_sparse`, except its model, which has been selected.
/// Returns the request without inputs and id, and the inputs.
pub(crate) fn embedding(
    mut fields: Fields<'_>,
    config: &Config,
    shape: &VectorFormat,
) -> Result<(v1::EmbedRequest, Inputs), ApiError> {
    let given = EmbedRequest::read(&mut fields)?;
    fields.finish()?;
    let inputs = inputs(given.inputs, config.embedding_inputs_max)?;
    let options = given.embedding.options()?;
    let pooled = matches!(
        shape,
        VectorFormat::OpenAi { .. }
            | VectorFormat::Vectors
            | VectorFormat::Ollama { .. }
            | VectorFormat::LlamaCpp
    );
    let refused = [("dimensions", options.dimensions > 0), ("normalize", options.normalize.is_some())];
    if let Some((name, _)) = refused.iter().find(|(_, given)| !pooled && *given) {
        return Err(ApiError::field(name, "only of /embed: nothing is pooled here"));
    }
    let output = match shape {
        VectorFormat::OpenAi { .. }
        | VectorFormat::Vectors
        | VectorFormat::Ollama { .. }
        | VectorFormat::LlamaCpp => EmbedOutput::Pooled,
        VectorFormat::TokenVectors => EmbedOutput::Tokens,
        VectorFormat::SparseVectors => EmbedOutput::Sparse,
    };
    // TEI's default, also for models whose files do not specify it.
    let normalize = if pooled { Some(options.normalize.unwrap_or(true)) } else { None };
    Ok((v1::EmbedRequest { output: output.into(), normalize, ..options }, inputs))
}

fields! {
    /// Body of `POST /rerank` with texts.
    pub(crate) struct TextsRequest<'a> {
        ..scoring: ScoringFields<'a>,
        /// Query that the texts are to answer.
        query: String = FILLED,
        /// Texts to rank.
        texts: Field<'a> = Raw("string[1..]"),
        /// Whether results have their text.
        return_text: bool,
    }
}

/// Parses a request of `/rerank` with `texts`: the request without documents and id, the texts, and whether to
/// return them.
pub(crate) fn ranking(
    mut fields: Fields<'_>,
    config: &Config,
) -> Result<(v1::RerankRequest, Vec<String>, bool), ApiError> {
    let TextsRequest { scoring, query, texts, return_text } = TextsRequest::read(&mut fields)?;
    fields.finish()?;
    let texts = elements(texts, config.embedding_inputs_max)?;
    let texts = texts.map(Field::string).collect::<Result<_, _>>()?;
    Ok((v1::RerankRequest { query, ..scoring.rerank()? }, texts, return_text))
}

fields! {
    /// Body of `POST /predict`.
    pub(crate) struct PredictRequest<'a> {
        ..scoring: ScoringFields<'a>,
        /// Text, pair of texts, or list of either.
        inputs: Field<'a> = Raw("string 1.. | any[1..]"),
        /// Object that huggingface_hub sends, which must be empty.
        #[expect(dead_code, reason = "only checked")]
        parameters?: NoParameters,
    }
}

/// Parses a request of `/predict`, except its model, which has been selected.
pub(crate) fn predicting(mut fields: Fields<'_>, config: &Config) -> Result<ClassifyTask, ApiError> {
    let PredictRequest { scoring, inputs, .. } = PredictRequest::read(&mut fields)?;
    fields.finish()?;
    let (inputs, single) = sequences(inputs, config.embedding_inputs_max)?;
    Ok(ClassifyTask { request: scoring.classify()?, inputs, single })
}

const EXPECTED: &str =
    "expected a string, a pair [string, string], or a list [[string], [string, string], …]";

/// Reads texts to classify, and whether it is a single input. `["a", "b"]` is a pair; a list of inputs is a
/// list of lists.
fn sequences(field: Field, max: usize) -> Result<(Vec<v1::ClassifyInput>, bool), ApiError> {
    if field.value().is_string() {
        return Ok((vec![v1::ClassifyInput { text: filled(field)?, pair: None }], true));
    }
    let Some(mut list) = field.as_list() else { return Err(field.error(EXPECTED)) };
    match list.next().map(|first| first.value()) {
        Some(first) if first.is_string() => Ok((vec![sequence(field)?], true)),
        Some(first) if first.is_array() => {
            Ok((elements(field, max)?.map(sequence).collect::<Result<_, _>>()?, false))
        }
        None => Err(ApiError::empty(&field.path())),
        Some(_) => Err(field.error(EXPECTED)),
    }
}

/// Reads a list of one or two strings.
fn sequence(field: Field) -> Result<v1::ClassifyInput, ApiError> {
    let Some(mut strings) = field.as_list() else { return Err(field.error(EXPECTED)) };
    let count = strings.clone().count();
    if !(1..=2).contains(&count) {
        return Err(field.error(format!("has {count} elements; a text is one string, a pair two")));
    }
    let text = strings.next().map(filled).transpose()?.unwrap_or_default();
    Ok(v1::ClassifyInput { text, pair: strings.next().map(filled).transpose()? })
}

fields! {
    /// Body of `POST /similarity`.
    pub(crate) struct SimilarityRequest<'a> {
        /// Sentences to compare.
        inputs: Sentences<'a>,
        /// Name of the model; the only one if absent.
        model?: String = Read("string 1..512", model_name),
        /// Settings of the embeddings.
        parameters?: SimilarityParameters<'a>,
    }
}

fields! {
    /// Sentence, and others that it is compared with.
    pub(crate) struct Sentences<'a> {
        /// Sentence that the others are compared with.
        source_sentence: String = FILLED,
        /// Other sentences.
        sentences: Field<'a> = Raw("string 1..[1..]"),
    }
}

fields! {
    /// Settings of embeddings that are compared.
    pub(crate) struct SimilarityParameters<'a> {
        ..truncation: TruncationFields<'a>,
        /// Name of one of the model's prompts.
        prompt_name?: String = FILLED,
    }
}

/// Parses a request of `/similarity`: the request without inputs and id, and the source sentence followed by
/// the others.
pub(crate) fn similarity(
    mut fields: Fields<'_>,
    config: &Config,
) -> Result<(v1::EmbedRequest, Vec<String>), ApiError> {
    let SimilarityRequest { inputs, model, parameters } = SimilarityRequest::read(&mut fields)?;
    fields.finish()?;
    let sentences = elements(inputs.sentences, config.embedding_inputs_max)?;
    let sentences: Vec<String> = sentences.map(filled).collect::<Result<_, _>>()?;
    let mut request = v1::EmbedRequest { model: model.unwrap_or_default(), ..v1::EmbedRequest::default() };
    if let Some(parameters) = parameters {
        let truncation = parameters.truncation.truncation()?;
        request.truncate = truncation.truncate;
        request.truncate_side = truncation.side.into();
        request.prompt_name = parameters.prompt_name.unwrap_or_default();
    }
    let mut texts = vec![inputs.source_sentence];
    texts.extend(sentences);
    Ok((request, texts))
}

/// Answer of `/info`. The model's type is the first of `kinds` that it has.
pub(super) fn info(stats: v1::ModelStats, kinds: &[Capability], inputs_max: usize) -> Value {
    let status = stats.status.unwrap_or_default();
    let embedder = status.embedder.clone().unwrap_or_default();
    let some = |n: u32| (n > 0).then_some(n);
    let kind = kinds.iter().copied().find(|kind| status.capabilities().any(|c| c == *kind));
    let model_type = match kind {
        Some(Capability::Rerank) => json!({"reranker": labels(&embedder)}),
        Some(Capability::Classify) => json!({"classifier": labels(&embedder)}),
        Some(Capability::EmbedSparse) => json!({"embedding": {"pooling": "splade"}}),
        _ => json!({"embedding": {"pooling": embedder.pooling}}),
    };
    json!({
        "model_id": status.name,
        "model_sha": null,
        "model_dtype": dtype(&status.quantization),
        "model_type": model_type,
        "max_concurrent_requests": some(stats.queue_capacity),
        "max_input_length": some(embedder.input_tokens_max).or(some(status.context_tokens_max)),
        "max_batch_tokens": null,
        "max_batch_requests": null,
        "max_client_batch_size": inputs_max,
        "auto_truncate": false,
        "tokenization_workers": null,
        "version": env!("CARGO_PKG_VERSION"),
        "sha": null,
        "docker_label": null,
    })
}

fn labels(embedder: &Embedder) -> Value {
    let pairs = || embedder.labels.iter().enumerate();
    let id2label: Map<String, Value> = pairs().map(|(i, l)| (i.to_string(), json!(l))).collect();
    let label2id: Map<String, Value> = pairs().map(|(i, l)| (l.clone(), json!(i))).collect();
    json!({"id2label": id2label, "label2id": label2id})
}

/// TEI's name of a weight type, or the engine's name if TEI has none.
fn dtype(quantization: &str) -> Option<String> {
    match quantization.to_ascii_lowercase().as_str() {
        "" => None,
        "f32" => Some("float32".to_owned()),
        "f16" => Some("float16".to_owned()),
        "bf16" => Some("bfloat16".to_owned()),
        _ => Some(quantization.to_owned()),
    }
}
