//! One request as several calls to the engine, each of bounded size, a few at a time, answered in order.

use std::{iter::Peekable, vec};

use futures_util::{Stream, StreamExt as _, stream};
use hanzo_engine_proto::v1::{self, EmbedOutput, embed_input::Input};

use crate::{
    app::App,
    error::ApiError,
    limits::{CALL_BYTES_MAX, CALL_INPUTS_MAX, CALLS_RUNNING_MAX, WIDE_CALL_BYTES_MAX, WIDE_CALL_INPUTS_MAX},
    request_id::RequestId,
    until::Until,
};

/// Something that weighs as many bytes in a call.
pub(crate) trait Weighed {
    /// About what it adds to the call's message.
    fn bytes(&self) -> usize;
}

impl Weighed for String {
    fn bytes(&self) -> usize {
        self.len()
    }
}

impl Weighed for v1::EmbedInput {
    fn bytes(&self) -> usize {
        match &self.input {
            Some(Input::Text(text)) => text.len(),
            // Five bytes is the longest varint of an id.
            Some(Input::Tokens(tokens)) => tokens.ids.len() * 5,
            None => 0,
        }
    }
}

impl Weighed for v1::ClassifyInput {
    fn bytes(&self) -> usize {
        self.text.len() + self.pair.as_ref().map_or(0, String::len)
    }
}

/// What one call takes at most, unless it takes one item alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallLimit {
    inputs: usize,
    bytes: usize,
}

impl CallLimit {
    /// Of calls whose answer is a vector or a number for each input.
    pub(crate) const NARROW: CallLimit = CallLimit { inputs: CALL_INPUTS_MAX, bytes: CALL_BYTES_MAX };
    /// Of calls whose answer is far larger than what was asked.
    pub(crate) const WIDE: CallLimit = CallLimit { inputs: WIDE_CALL_INPUTS_MAX, bytes: WIDE_CALL_BYTES_MAX };
}

/// The items in pieces, each with the index of its first item.
pub(crate) struct Pieces<T> {
    items: Peekable<vec::IntoIter<T>>,
    next: usize,
    limit: CallLimit,
}

/// Cuts `items` into pieces within `limit`.
pub(crate) fn pieces<T: Weighed>(items: Vec<T>, limit: CallLimit) -> Pieces<T> {
    Pieces { items: items.into_iter().peekable(), next: 0, limit }
}

impl<T: Weighed> Iterator for Pieces<T> {
    type Item = (usize, Vec<T>);

    fn next(&mut self) -> Option<(usize, Vec<T>)> {
        let first = self.items.next()?;
        let (start, mut bytes) = (self.next, first.bytes());
        let mut piece = vec![first];
        let fits = |count: usize, bytes: usize| count < self.limit.inputs && bytes <= self.limit.bytes;
        while let Some(item) = self.items.next_if(|item| fits(piece.len(), bytes + item.bytes())) {
            bytes += item.bytes();
            piece.push(item);
        }
        self.next += piece.len();
        Some((start, piece))
    }
}

/// The engine's answers to an embedding request, in the order of its inputs, each checked against what was asked.
/// `name` is the surface's word for a field of the engine's request, of which `inputs[i]` has the whole request's
/// index.
pub(crate) fn embed(
    app: &App,
    base: v1::EmbedRequest,
    inputs: Vec<v1::EmbedInput>,
    id: &RequestId,
    name: impl Fn(&str) -> String + Clone + Send + 'static,
) -> impl Stream<Item = Result<v1::EmbedResponse, ApiError>> + Send + Unpin + 'static {
    let limit = match base.output() {
        EmbedOutput::Tokens | EmbedOutput::Sparse => CallLimit::WIDE,
        EmbedOutput::Unspecified | EmbedOutput::Pooled => CallLimit::NARROW,
    };
    let (engine, until, id) = (app.engine.clone(), Until::of(app), id.clone());
    let pieces = pieces(inputs, limit).peekable();
    let calls = calls(pieces).map(move |Call { i, several, start, items }| {
        let (mut engine, until, name) = (engine.clone(), until.clone(), name.clone());
        let (count, output) = (items.len(), base.output());
        let request = v1::EmbedRequest { inputs: items, request_id: id.of_call(i, several), ..base.clone() };
        Box::pin(async move {
            let answer = until.run(engine.embed(request, until.deadline)).await;
            let answer = answer.map_err(|e| e.renamed(|field| name(&shifted(field, start))))?;
            checked(&answer, count, output)?;
            Ok(answer)
        })
    });
    calls.buffered(CALLS_RUNNING_MAX)
}

/// The engine's scores of `documents` for a query, by document: all calls have succeeded. Also how many tokens it
/// read, and the model's name.
pub(crate) async fn rerank(
    app: &App,
    base: v1::RerankRequest,
    documents: Vec<String>,
    id: &RequestId,
    name: impl Fn(&str) -> String + Clone,
) -> Result<(Vec<f32>, Spent), ApiError> {
    let until = Until::of(app);
    let mut scores = vec![None; documents.len()];
    let pieces = pieces(documents, CallLimit::NARROW).peekable();
    let mut answers = calls(pieces)
        .map(|Call { i, several, start, items }| {
            let (mut engine, until, name) = (app.engine.clone(), until.clone(), name.clone());
            let request =
                v1::RerankRequest { documents: items, request_id: id.of_call(i, several), ..base.clone() };
            Box::pin(async move {
                let answer = until.run(engine.rerank(request, until.deadline)).await;
                let answer = answer.map_err(|e| e.renamed(|field| name(&shifted(field, start))))?;
                Ok::<_, ApiError>((start, answer))
            })
        })
        .buffered(CALLS_RUNNING_MAX);
    let mut spent = Spent::default();
    while let Some(answer) = answers.next().await {
        let (start, answer) = answer?;
        spent.add(answer.prompt_tokens, answer.model);
        for result in answer.results {
            let score = scores.get_mut(start + result.index as usize);
            *score.ok_or_else(|| odd("ranked a document that it was not sent"))? = Some(result.score);
        }
    }
    drop(answers);
    let finite = |score: Option<f32>| score.filter(|s| s.is_finite());
    let scores: Option<Vec<f32>> = scores.into_iter().map(finite).collect();
    Ok((scores.ok_or_else(|| odd("left a document without a score"))?, spent))
}

/// The engine's labels of each input.
pub(crate) async fn classify(
    app: &App,
    base: v1::ClassifyRequest,
    inputs: Vec<v1::ClassifyInput>,
    id: &RequestId,
    name: impl Fn(&str) -> String + Clone,
) -> Result<(Vec<v1::Classification>, Spent), ApiError> {
    let until = Until::of(app);
    let mut classifications = Vec::with_capacity(inputs.len());
    let pieces = pieces(inputs, CallLimit::NARROW).peekable();
    let mut answers = calls(pieces)
        .map(|Call { i, several, start, items }| {
            let (mut engine, until, name) = (app.engine.clone(), until.clone(), name.clone());
            let count = items.len();
            let request =
                v1::ClassifyRequest { inputs: items, request_id: id.of_call(i, several), ..base.clone() };
            Box::pin(async move {
                let answer = until.run(engine.classify(request, until.deadline)).await;
                let answer = answer.map_err(|e| e.renamed(|field| name(&shifted(field, start))))?;
                let whole = |c: &v1::Classification| {
                    !c.labels.is_empty() && c.labels.iter().all(|l| l.score.is_finite())
                };
                if answer.classifications.len() != count || !answer.classifications.iter().all(whole) {
                    return Err(odd("left an input without its labels"));
                }
                Ok(answer)
            })
        })
        .buffered(CALLS_RUNNING_MAX);
    let mut spent = Spent::default();
    while let Some(answer) = answers.next().await {
        let answer = answer?;
        spent.add(answer.prompt_tokens, answer.model);
        classifications.extend(answer.classifications);
    }
    Ok((classifications, spent))
}

/// What a request's calls read, and which model read it.
#[derive(Debug, Default)]
pub(crate) struct Spent {
    pub(crate) prompt_tokens: u64,
    pub(crate) model: String,
}

impl Spent {
    /// Counts one call.
    pub(crate) fn add(&mut self, prompt_tokens: u32, model: String) {
        self.prompt_tokens += u64::from(prompt_tokens);
        if self.model.is_empty() {
            self.model = model;
        }
    }
}

struct Call<T> {
    i: usize,
    several: bool,
    start: usize, // index of the first item
    items: Vec<T>,
}

fn calls<T: Weighed>(mut pieces: Peekable<Pieces<T>>) -> impl Stream<Item = Call<T>> + Unpin {
    let mut i = 0;
    let mut several = false;
    stream::iter(std::iter::from_fn(move || {
        let (start, items) = pieces.next()?;
        several |= pieces.peek().is_some();
        let call = Call { i, several, start, items };
        i += 1;
        Some(call)
    }))
}

/// A field of a call as a field of the whole request: the index in `inputs[3]` or `documents[3]` counts from `start`.
fn shifted(field: &str, start: usize) -> String {
    let parts = field.split_once('[').and_then(|(list, rest)| {
        let (index, rest) = rest.split_once(']')?;
        Some((list, index.parse::<usize>().ok()?, rest))
    });
    match parts {
        Some((list @ ("inputs" | "documents"), index, rest)) => format!("{list}[{}]{rest}", start + index),
        _ => field.to_owned(),
    }
}

/// 500: the engine did something that the contract does not have.
fn odd(what: &str) -> ApiError {
    ApiError::internal(&format!("the engine {what}"))
}

fn checked(answer: &v1::EmbedResponse, count: usize, output: EmbedOutput) -> Result<(), ApiError> {
    if answer.embeddings.len() != count {
        return Err(odd(&format!("answered {} inputs of {count}", answer.embeddings.len())));
    }
    let row_bytes = answer.dimensions as usize * 4;
    let finite = |bytes: &[u8]| {
        bytes.chunks_exact(4).all(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite())
    };
    for embedding in &answer.embeddings {
        let whole = match output {
            EmbedOutput::Sparse => embedding.sparse.iter().all(|s| s.weight.is_finite()),
            EmbedOutput::Unspecified | EmbedOutput::Pooled if embedding.rows != 1 => false,
            _ => {
                row_bytes > 0
                    && embedding.packed.len() == embedding.rows as usize * row_bytes
                    && finite(&embedding.packed)
            }
        };
        if !whole {
            return Err(odd("answered a vector that is not whole, or not of finite numbers"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{CallLimit, pieces, shifted};

    #[test]
    fn pieces_are_bounded_by_count_and_by_bytes() {
        let cut = |lengths: &[usize], inputs, bytes| -> Vec<(usize, Vec<usize>)> {
            let items = lengths.iter().map(|n| "x".repeat(*n)).collect();
            pieces(items, CallLimit { inputs, bytes })
                .map(|(start, piece)| (start, piece.iter().map(String::len).collect()))
                .collect()
        };
        assert_eq!(cut(&[], 2, 10), []);
        assert_eq!(cut(&[1, 2, 3], 2, 10), [(0, vec![1, 2]), (2, vec![3])]);
        assert_eq!(cut(&[4, 6, 1], 9, 10), [(0, vec![4, 6]), (2, vec![1])]);
        // One that is over the limit goes alone.
        assert_eq!(cut(&[1, 99, 1], 9, 10), [(0, vec![1]), (1, vec![99]), (2, vec![1])]);
    }

    #[test]
    fn indices_count_from_the_start_of_the_request() {
        assert_eq!(shifted("inputs[3]", 256), "inputs[259]");
        assert_eq!(shifted("inputs[3].tokens[4]", 1), "inputs[4].tokens[4]");
        assert_eq!(shifted("documents[0]", 7), "documents[7]");
        for same in ["model", "inputs", "query", "labels[1]", "inputs[x]", "inputs["] {
            assert_eq!(shifted(same, 7), same);
        }
    }
}
