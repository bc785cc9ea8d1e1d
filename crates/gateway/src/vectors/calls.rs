//! Division of a request into several calls of bounded size. A few run at a time; the answers come in order.

use std::{iter::Peekable, sync::Arc, vec};

use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use hanzo_engine_process::tasks;
use hanzo_engine_proto::v1::{self, EmbedOutput, content_part::Part, embed_input::Input};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use crate::{
    app::App,
    asker::Asker,
    bodies::Room,
    engine::Engine,
    error::ApiError,
    limits::{CALL_BYTES_MAX, CALL_INPUTS_MAX, CALLS_RUNNING_MAX, WIDE_CALL_BYTES_MAX, WIDE_CALL_INPUTS_MAX},
    request_id::RequestId,
    until::Until,
};

/// Item with a size in bytes.
pub(crate) trait ByteSize {
    /// Estimated bytes in the call's message.
    fn bytes(&self) -> usize;
}

impl ByteSize for String {
    fn bytes(&self) -> usize {
        self.len()
    }
}

impl ByteSize for v1::EmbedInput {
    fn bytes(&self) -> usize {
        match &self.input {
            Some(Input::Text(text)) => text.len(),
            // The longest varint of an id has five bytes.
            Some(Input::Tokens(tokens)) => tokens.ids.len() * 5,
            Some(Input::Picture(picture)) => picture.data.len(),
            Some(Input::Chat(chat)) => chat_bytes(chat),
            None => 0,
        }
    }
}

/// Bytes of a chat's texts and media.
fn chat_bytes(chat: &v1::Chat) -> usize {
    let parts = chat.messages.iter().flat_map(|message| &message.content);
    let bytes = parts.map(|part| match &part.part {
        Some(Part::Text(text)) => text.len(),
        Some(Part::Media(media)) => media.data.len(),
        None => 0,
    });
    bytes.sum()
}

impl ByteSize for v1::ClassifyInput {
    fn bytes(&self) -> usize {
        self.text.len() + self.pair.as_ref().map_or(0, String::len)
    }
}

/// Limits of one call, unless it has a single item.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallLimit {
    inputs: usize,
    bytes: usize,
}

impl CallLimit {
    /// Limits of calls with a vector or a number for each input.
    pub(crate) const NARROW: CallLimit = CallLimit { inputs: CALL_INPUTS_MAX, bytes: CALL_BYTES_MAX };
    /// Limits of calls whose answers are much larger than their inputs.
    pub(crate) const WIDE: CallLimit = CallLimit { inputs: WIDE_CALL_INPUTS_MAX, bytes: WIDE_CALL_BYTES_MAX };
}

/// Items in pieces, each with the index of its first item.
pub(crate) struct Pieces<T> {
    items: Peekable<vec::IntoIter<T>>,
    next: usize,
    limit: CallLimit,
}

/// Divides `items` into pieces within `limit`.
pub(crate) fn pieces<T: ByteSize>(items: Vec<T>, limit: CallLimit) -> Pieces<T> {
    Pieces { items: items.into_iter().peekable(), next: 0, limit }
}

impl<T: ByteSize> Iterator for Pieces<T> {
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

/// Caller of the engine for one HTTP request, with its id and its time limit.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    engine: Engine,
    until: Until,
    id: RequestId,
    room: Arc<Room>,
}

impl Caller {
    /// Caller for a request that begins now; `room` is the memory of its body.
    pub(crate) fn new(app: &App, asker: &Asker, room: Room) -> Caller {
        Caller { engine: app.engine(asker), until: app.until(), id: asker.id.clone(), room: Arc::new(room) }
    }

    /// Calls that may run at the same time. If the key's tokens are limited, each call reserves all that it may
    /// take, so they run one after another.
    pub(crate) fn at_once(&self) -> usize {
        if self.engine.limits_tokens() { 1 } else { CALLS_RUNNING_MAX }
    }

    /// Caller for the `i`th of several parts of the same request.
    pub(crate) fn nested(&self, i: usize, several: bool) -> Caller {
        Caller { id: RequestId::nested(&self.id, i, several), ..self.clone() }
    }

    /// Answers to an embedding request in the order of its inputs, each validated against the request. `name`
    /// gives the client's name of an engine's field; in `inputs[i]` the index is that of the whole request.
    pub(crate) fn embed(
        &self,
        base: v1::EmbedRequest,
        inputs: Vec<v1::EmbedInput>,
        name: impl FieldName,
    ) -> impl Stream<Item = Result<v1::EmbedResponse, ApiError>> + Send + Unpin + 'static {
        let output = base.output();
        let limit = match output {
            EmbedOutput::Tokens | EmbedOutput::Sparse => CallLimit::WIDE,
            EmbedOutput::Unspecified | EmbedOutput::Pooled => CallLimit::NARROW,
        };
        let client = self.id.client();
        let ask = move |mut engine: Engine, deadline, request_id, inputs| {
            let request = v1::EmbedRequest { inputs, request_id, client: client.clone(), ..base.clone() };
            async move { engine.embed(request, deadline).await }
        };
        self.answers(inputs, limit, name, ask).map(move |answer| {
            let CallAnswer { count, answer, .. } = answer?;
            checked(&answer, count, output)?;
            Ok(answer)
        })
    }

    /// Scores of `documents` for a query, in their order, after all calls have succeeded.
    pub(crate) async fn rerank(
        &self,
        base: v1::RerankRequest,
        documents: Vec<String>,
        name: impl FieldName,
    ) -> Result<(Vec<f32>, TokensRead), ApiError> {
        let mut scores = vec![None; documents.len()];
        let client = self.id.client();
        let ask = move |mut engine: Engine, deadline, request_id, documents| {
            let request = v1::RerankRequest { documents, request_id, client: client.clone(), ..base.clone() };
            async move { engine.rerank(request, deadline).await }
        };
        let mut answers = self.answers(documents, CallLimit::NARROW, name, ask);
        let mut spent = TokensRead::default();
        while let Some(CallAnswer { start, count, answer }) = answers.try_next().await? {
            spent.add(answer.prompt_tokens, answer.model);
            let scores = &mut scores[start..start + count];
            for result in answer.results {
                let score = scores.get_mut(result.index as usize);
                *score.ok_or_else(|| odd("ranked a document that it was not sent"))? = Some(result.score);
            }
        }
        let finite = |score: Option<f32>| score.filter(|s| s.is_finite());
        let scores: Option<Vec<f32>> = scores.into_iter().map(finite).collect();
        Ok((scores.ok_or_else(|| odd("left a document without a score"))?, spent))
    }

    /// Labels of each input, after all calls have succeeded.
    pub(crate) async fn classify(
        &self,
        base: v1::ClassifyRequest,
        inputs: Vec<v1::ClassifyInput>,
        name: impl FieldName,
    ) -> Result<(Vec<v1::Classification>, TokensRead), ApiError> {
        let mut classifications = Vec::with_capacity(inputs.len());
        let client = self.id.client();
        let ask = move |mut engine: Engine, deadline, request_id, inputs| {
            let request = v1::ClassifyRequest { inputs, request_id, client: client.clone(), ..base.clone() };
            async move { engine.classify(request, deadline).await }
        };
        let mut answers = self.answers(inputs, CallLimit::NARROW, name, ask);
        let mut spent = TokensRead::default();
        let whole =
            |c: &v1::Classification| !c.labels.is_empty() && c.labels.iter().all(|l| l.score.is_finite());
        while let Some(CallAnswer { count, answer, .. }) = answers.try_next().await? {
            if answer.classifications.len() != count || !answer.classifications.iter().all(whole) {
                return Err(odd("left an input without its labels"));
            }
            spent.add(answer.prompt_tokens, answer.model);
            classifications.extend(answer.classifications);
        }
        Ok((classifications, spent))
    }

    /// Results of `ask` for each piece of `items`, in order.
    fn answers<T, A, F, Ask>(
        &self,
        items: Vec<T>,
        limit: CallLimit,
        name: impl FieldName,
        ask: Ask,
    ) -> impl Stream<Item = Result<CallAnswer<A>, ApiError>> + Send + Unpin + 'static
    where
        T: ByteSize + Send + 'static,
        A: Send + 'static,
        F: Future<Output = Result<A, Status>> + Send + 'static,
        Ask: Fn(Engine, Option<Instant>, String, Vec<T>) -> F + Send + 'static,
    {
        let Caller { engine, until, id, room } = self.clone();
        let at_once = self.at_once();
        let calls = calls(pieces(items, limit).peekable(), room).map(
            move |BatchCall { i, several, start, items }| {
                let (until, name, count) = (until.clone(), name.clone(), items.len());
                let call = ask(engine.clone(), until.deadline, id.of_call(i, several), items);
                // In a task, so that the engine's answer is received even if the client is slow. All requests
                // share the connection to the engine, and other answers must not wait behind this one.
                let call = AbortOnDropHandle::new(tasks::spawn(async move {
                    let answer = until.run(call).await;
                    let answer = answer.map_err(|e| e.renamed(|field| name(&shifted(field, start))))?;
                    Ok(CallAnswer { start, count, answer })
                }));
                Box::pin(
                    async move { call.await.unwrap_or_else(|e| Err(ApiError::internal(&e.to_string()))) },
                )
            },
        );
        calls.buffered(at_once)
    }
}

/// Client's name of an engine's field.
pub(crate) trait FieldName: Fn(&str) -> Option<String> + Clone + Send + 'static {}
impl<F: Fn(&str) -> Option<String> + Clone + Send + 'static> FieldName for F {}

/// Answer to a call for `count` items from `start` on.
struct CallAnswer<A> {
    start: usize,
    count: usize,
    answer: A,
}

/// Tokens read by a request's calls, and the model.
#[derive(Debug, Default)]
pub(crate) struct TokensRead {
    pub(crate) prompt_tokens: u64,
    pub(crate) model: String,
}

impl TokensRead {
    /// Counts a call.
    pub(crate) fn add(&mut self, prompt_tokens: u32, model: String) {
        self.prompt_tokens += u64::from(prompt_tokens);
        if self.model.is_empty() {
            self.model = model;
        }
    }
}

struct BatchCall<T> {
    i: usize,
    several: bool,
    start: usize, // index of the first item
    items: Vec<T>,
}

/// Calls of a request. Holds the memory of its body as long as there are items without a call.
fn calls<T: ByteSize>(
    mut pieces: Peekable<Pieces<T>>,
    room: Arc<Room>,
) -> impl Stream<Item = BatchCall<T>> + Unpin {
    let mut i = 0;
    let mut several = false;
    let mut room = Some(room);
    stream::iter(std::iter::from_fn(move || {
        let Some((start, items)) = pieces.next() else {
            drop(room.take());
            return None;
        };
        several |= pieces.peek().is_some();
        let call = BatchCall { i, several, start, items };
        i += 1;
        Some(call)
    }))
}

/// Converts a call's field to one of the whole request: the index in `inputs[3]` or `documents[3]` counts from
/// `start`.
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

/// 500: the engine violated the contract.
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
        // An item above the limit gets its own call.
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
