//! Parsers of reranking, scoring and classification requests in the formats of Jina, Cohere and vLLM.

use hanzo_engine_proto::v1;

use crate::{
    config::Config,
    error::ApiError,
    fields::{Field, Fields},
    request::{classify_options, either, elements, filled, model, rerank_options},
    scores::pairs::Pairs,
    unsupported,
};

/// Parsed reranking request.
#[derive(Debug)]
pub(crate) struct RerankTask {
    /// Without documents and id; the model is empty if none is named.
    pub(crate) request: v1::RerankRequest,
    pub(crate) documents: Vec<String>,
    /// Number of results; 0: all.
    pub(crate) top_n: u32,
    pub(crate) return_documents: bool,
}

/// Parses a request of `/v1/rerank`.
pub(crate) fn ranking(mut fields: Fields<'_>, config: &Config) -> Result<RerankTask, ApiError> {
    let model = model(&mut fields)?;
    let query = filled(fields.require("query")?)?;
    let documents = elements(fields.require("documents")?, config.embedding_inputs_max)?;
    let documents = documents.map(document).collect::<Result<_, _>>()?;
    let top_n = fields.take("top_n").map(|f| f.integer(0..=u32::MAX)).transpose()?.unwrap_or(0);
    let return_documents = fields.flag("return_documents")?;
    let options = rerank_options(&mut fields)?;
    let instruction = either(&mut fields, "instruction", "task_instruction")?;
    let instruction = instruction.map(filled).transpose()?.unwrap_or_default();
    unsupported::scores(&mut fields)?;
    fields.finish()?;
    let request = v1::RerankRequest { model, query, instruction, ..options };
    Ok(RerankTask { request, documents, top_n, return_documents })
}

/// Reads a document: a string, or an object with a `text`.
fn document(field: Field) -> Result<String, ApiError> {
    match field.value() {
        value if value.is_string() => field.string(),
        value if value.is_object() => {
            let mut object = field.object()?;
            let text = object.require("text")?.string()?;
            object.finish()?;
            Ok(text)
        }
        _ => Err(field.error("expected a string or an object with a text")),
    }
}

/// Parsed scoring request.
#[derive(Debug)]
pub(crate) struct ScoreTask {
    /// Without texts and id; the model is empty if none is named.
    pub(crate) request: v1::RerankRequest,
    pub(crate) raw_scores_given: bool,
    pub(crate) pairs: Pairs,
}

/// Parses a request of `/v1/score`.
pub(crate) fn scoring(mut fields: Fields<'_>, config: &Config) -> Result<ScoreTask, ApiError> {
    let model = model(&mut fields)?;
    let pairs = pairs(&mut fields, config.embedding_inputs_max)?;
    let instruction = fields.take("instruction").map(filled).transpose()?.unwrap_or_default();
    let raw_scores_given = fields.has("raw_scores");
    let options = rerank_options(&mut fields)?;
    unsupported::scores(&mut fields)?;
    fields.finish()?;
    let request = v1::RerankRequest { model, instruction, ..options };
    Ok(ScoreTask { request, raw_scores_given, pairs })
}

/// Reads the two sides of the pairs.
fn pairs(fields: &mut Fields, max: usize) -> Result<Pairs, ApiError> {
    let families = [["text_1", "text_2"], ["queries", "documents"]];
    let names = families.into_iter().find(|names| fields.has(names[0])).unwrap_or(families[0]);
    let mut side = |name| texts(fields.require(name)?, max);
    let (first, second) = (side(names[0])?, side(names[1])?);
    if first.len() != 1 && first.len() != second.len() {
        let problem = format!(
            "has {} texts and {} has {}; send one to be paired with all, or as many",
            first.len(),
            names[1],
            second.len()
        );
        return Err(ApiError::field(names[0], problem));
    }
    Ok(Pairs { first, second, names })
}

/// Reads a text or a list of texts.
fn texts(field: Field, max: usize) -> Result<Vec<String>, ApiError> {
    match field.value() {
        value if value.is_array() => elements(field, max)?.map(filled).collect(),
        value if value.is_string() => Ok(vec![filled(field)?]),
        _ => Err(field.error("expected a string or an array of strings")),
    }
}

/// Request to an embedder instead of a reranker.
pub(crate) fn embedding(request: v1::RerankRequest) -> v1::EmbedRequest {
    v1::EmbedRequest {
        model: request.model,
        instruction: request.instruction,
        truncate: request.truncate,
        priority: request.priority,
        keep_alive: request.keep_alive,
        ..v1::EmbedRequest::default()
    }
}

/// Parsed classification request.
#[derive(Debug)]
pub(crate) struct ClassifyTask {
    /// Without inputs and id; the model is empty if none is named.
    pub(crate) request: v1::ClassifyRequest,
    pub(crate) inputs: Vec<v1::ClassifyInput>,
    /// Whether the input was a single text, not a list.
    pub(crate) single: bool,
}

/// Parses a request of `/v1/classify`.
pub(crate) fn classifying(mut fields: Fields<'_>, config: &Config) -> Result<ClassifyTask, ApiError> {
    let model = model(&mut fields)?;
    let input = fields.require("input")?;
    let single = input.value().is_string();
    let inputs = texts(input, config.embedding_inputs_max)?;
    let inputs = inputs.into_iter().map(|text| v1::ClassifyInput { text, pair: None }).collect();
    let options = classify_options(&mut fields)?;
    unsupported::scores(&mut fields)?;
    fields.finish()?;
    Ok(ClassifyTask { request: v1::ClassifyRequest { model, ..options }, inputs, single })
}

/// Labels and scores, in the model's order.
pub(crate) fn labels(classification: v1::Classification) -> (Vec<String>, Vec<f32>) {
    classification.labels.into_iter().map(|label| (label.label, label.score)).unzip()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{config::Config, fields::searches};

    /// Reads documents to rank. Returns whether they were accepted, and the number of path searches.
    fn read(documents: Vec<Value>) -> (bool, usize) {
        let body = json!({"query": "q", "documents": documents});
        searches(&body, |fields| super::ranking(fields, &Config::default()).is_ok())
    }

    #[test]
    fn documents_are_read_without_a_search_for_paths() {
        let documents = (0..1000).map(|i| if i % 2 == 0 { json!("a") } else { json!({"text": "b"}) });
        assert_eq!(read(documents.collect()), (true, 0));
        for wrong in [json!(0), json!({"text": 0}), json!({"text": "b", "more": 0}), json!({})] {
            assert_eq!(read(vec![json!("a"), wrong]), (false, 1));
        }
    }
}
