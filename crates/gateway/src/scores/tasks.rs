//! Parsers of reranking, scoring and classification requests in the formats of Jina, Cohere and vLLM.

use hanzo_engine_proto::v1;

use crate::{
    config::Config,
    declare::{Declaration as _, Integer, Natural as _, Raw, fields},
    error::ApiError,
    fields::{Field, Fields},
    request::{FILLED, ScoringFields, elements, filled, one_of},
    scores::pairs::Pairs,
    unsupported::{HARMLESS, SCORES},
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

fields! {
    /// Body of `POST /v1/rerank`.
    pub(crate) struct RerankRequest<'a> inert [&SCORES, &HARMLESS] {
        ..ranking: RankingFields<'a>,
        /// Documents to rank.
        documents: Field<'a> = Raw(DOCUMENTS),
    }
}

fields! {
    /// Fields of reranking apart from the documents.
    pub(crate) struct RankingFields<'a> {
        ..scoring: ScoringFields<'a>,
        /// Query that the documents are to answer.
        query: String = FILLED,
        /// Number of results; 0 for all.
        top_n?: u32 = Integer(0..=u32::MAX),
        /// Whether results have their document.
        return_documents: bool,
        /// Instruction for models that take one.
        instruction?: String = FILLED,
        /// Second name of instruction.
        task_instruction?: String = FILLED,
    }
}

fields! {
    /// Document as an object.
    pub(crate) struct DocumentText {
        /// Text of the document.
        text: String,
    }
}

/// Documents to rank.
pub(crate) const DOCUMENTS: &str = "(string | DocumentText)[1..]";

/// Parses a request of `/v1/rerank`.
pub(crate) fn ranking(mut fields: Fields<'_>, config: &Config) -> Result<RerankTask, ApiError> {
    let RerankRequest { ranking, documents } = RerankRequest::read(&mut fields)?;
    fields.finish()?;
    let documents = elements(documents, config.embedding_inputs_max)?;
    let documents = documents.map(document).collect::<Result<_, _>>()?;
    let instruction =
        one_of(("instruction", ranking.instruction), ("task_instruction", ranking.task_instruction))?;
    let request = v1::RerankRequest {
        query: ranking.query,
        instruction: instruction.unwrap_or_default(),
        ..ranking.scoring.rerank()?
    };
    let (top_n, return_documents) = (ranking.top_n.unwrap_or(0), ranking.return_documents);
    Ok(RerankTask { request, documents, top_n, return_documents })
}

/// Reads a document: a string, or an object with a `text`.
fn document(field: Field) -> Result<String, ApiError> {
    match field.value() {
        value if value.is_string() => field.string(),
        value if value.is_object() => Ok(DocumentText::of(field)?.text),
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

fields! {
    /// Body of `POST /v1/score`.
    pub(crate) struct ScoreRequest<'a> inert [&SCORES, &HARMLESS] {
        ..scoring: ScoringFields<'a>,
        /// Text that is paired with all others, or as many texts as the others.
        text_1?: Field<'a> = Raw(TEXTS),
        /// Other side of the pairs.
        text_2?: Field<'a> = Raw(TEXTS),
        /// Second name of text_1.
        queries?: Field<'a> = Raw(TEXTS),
        /// Second name of text_2.
        documents?: Field<'a> = Raw(TEXTS),
        /// Instruction for models that take one.
        instruction?: String = FILLED,
    }
}

const TEXTS: &str = "string 1.. | string 1..[1..]";

/// Parses a request of `/v1/score`.
pub(crate) fn scoring(mut fields: Fields<'_>, config: &Config) -> Result<ScoreTask, ApiError> {
    let given = ScoreRequest::read(&mut fields)?;
    fields.finish()?;
    let older = given.text_2.is_none() && (given.documents.is_some() || given.queries.is_some());
    let names = [
        if given.queries.is_some() { "queries" } else { "text_1" },
        if older { "documents" } else { "text_2" },
    ];
    let sides = [
        one_of(("text_1", given.text_1), ("queries", given.queries))?,
        one_of(("text_2", given.text_2), ("documents", given.documents))?,
    ];
    let pairs = pairs(names, sides, config.embedding_inputs_max)?;
    let raw_scores_given = given.scoring.raw_scores.is_some();
    let request =
        v1::RerankRequest { instruction: given.instruction.unwrap_or_default(), ..given.scoring.rerank()? };
    Ok(ScoreTask { request, raw_scores_given, pairs })
}

/// Reads the two sides of the pairs.
fn pairs(names: [&'static str; 2], sides: [Option<Field>; 2], max: usize) -> Result<Pairs, ApiError> {
    let side = |at: usize| texts(sides[at].ok_or_else(|| ApiError::field(names[at], "required"))?, max);
    let (first, second) = (side(0)?, side(1)?);
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

fields! {
    /// Body of `POST /v1/classify`.
    pub(crate) struct ClassifyRequest<'a> inert [&SCORES, &HARMLESS] {
        ..scoring: ScoringFields<'a>,
        /// Text, or several.
        input: Field<'a> = Raw(TEXTS),
    }
}

/// Parses a request of `/v1/classify`.
pub(crate) fn classifying(mut fields: Fields<'_>, config: &Config) -> Result<ClassifyTask, ApiError> {
    let ClassifyRequest { scoring, input } = ClassifyRequest::read(&mut fields)?;
    fields.finish()?;
    let single = input.value().is_string();
    let inputs = texts(input, config.embedding_inputs_max)?;
    let inputs = inputs.into_iter().map(|text| v1::ClassifyInput { text, pair: None }).collect();
    Ok(ClassifyTask { request: scoring.classify()?, inputs, single })
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
