//! Memory limit for answers that are collected before they are sent. Choices are serialised one after another,
//! so that at most one exists both as a value and as text.

use std::{convert::Infallible, sync::Arc, vec};

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    error::ApiError,
    limits::{ANSWER_BYTES_MAX, ANSWER_STEP_BYTES, JSON_FRAME_BYTES},
};

/// Memory for all collected answers.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    steps: Arc<Semaphore>, // permits
    one_bytes_max: usize,
}

/// Memory held for one answer, until dropped.
#[derive(Debug)]
pub(crate) struct AnswerRoom {
    shared: Answers,
    bytes: usize,
    held: Vec<OwnedSemaphorePermit>, // one step each
}

impl Answers {
    /// Creates the budget: at most `bytes_max` bytes, in addition to the first step of each answer.
    pub(crate) fn new(bytes_max: usize) -> Answers {
        let steps = bytes_max / ANSWER_STEP_BYTES;
        Answers {
            steps: Arc::new(Semaphore::new(steps)),
            one_bytes_max: ANSWER_BYTES_MAX.min((steps + 1) * ANSWER_STEP_BYTES),
        }
    }

    /// Budget of an answer that has not begun.
    pub(crate) fn room(&self) -> AnswerRoom {
        AnswerRoom { shared: self.clone(), bytes: 0, held: Vec::new() }
    }
}

impl AnswerRoom {
    /// Reserves `bytes` more. The first step of each answer is free, so that small answers are never refused.
    ///
    /// # Errors
    /// 400 if the answer exceeds its limit, 503 if other answers hold all the memory.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.bytes += bytes;
        if self.bytes > self.shared.one_bytes_max {
            return Err(ApiError::answer_too_large(self.shared.one_bytes_max));
        }
        while (self.held.len() + 1) * ANSWER_STEP_BYTES < self.bytes {
            let step = Arc::clone(&self.shared.steps).try_acquire_owned();
            self.held.push(step.map_err(|_| {
                ApiError::busy(
                    "the server holds as many large answers as it may; try again, or set stream: true",
                )
            })?);
        }
        Ok(())
    }
}

/// Bytes on their way to the client. They keep their answer's memory reserved until they are sent.
struct SentBytes {
    bytes: Vec<u8>,
    _room: Arc<AnswerRoom>,
}

impl AsRef<[u8]> for SentBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Writes an answer as JSON: the text of `envelope`, whose empty list `name` is filled with `choice` of each of
/// `choices`.
pub(crate) fn respond<T, C>(
    name: &str,
    envelope: &str,
    choices: Vec<T>,
    mut choice: impl FnMut(u32, T) -> C + Send + 'static,
    room: AnswerRoom,
) -> Response
where
    T: Send + 'static,
    C: Serialize,
{
    // Within a JSON string the quotes would be escaped, so only the list itself matches.
    let hole = format!("\"{name}\":[");
    let at = envelope.find(&hole).map_or(envelope.len(), |at| at + hole.len());
    let (begin, end) = envelope.split_at(at);
    let mut rest: Rest<T> = (0..).zip(choices).collect::<Vec<_>>().into_iter();
    let mut first = begin.as_bytes().to_vec();
    let mut write = move |rest: &mut Rest<T>, out: &mut Vec<u8>| {
        while out.len() < JSON_FRAME_BYTES
            && let Some((index, held)) = rest.next()
        {
            if index > 0 {
                out.push(b',');
            }
            serde_json::to_writer(&mut *out, &choice(index, held))
                .expect("writing to memory cannot fail because answers are plain structs with string keys");
        }
        rest.len() == 0
    };
    let room = Arc::new(room);
    let held = Arc::clone(&room);
    let sent = move |bytes| Bytes::from_owner(SentBytes { bytes, _room: Arc::clone(&held) });
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    if write(&mut rest, &mut first) {
        first.extend_from_slice(end.as_bytes());
        return (content_type, sent(first)).into_response();
    }
    let end = Bytes::copy_from_slice(end.as_bytes());
    let first = stream::once(std::future::ready(Ok(sent(first))));
    let frames = stream::unfold(Some((rest, room)), move |state| {
        let next = state.map(|(mut rest, room)| {
            let mut frame = Vec::new();
            let done = write(&mut rest, &mut frame);
            if done {
                frame.extend_from_slice(&end);
            }
            (Ok::<_, Infallible>(sent(frame)), (!done).then_some((rest, room)))
        });
        std::future::ready(next)
    });
    (content_type, Body::from_stream(first.chain(frames))).into_response()
}

/// Response of JSON that is already written.
pub(crate) fn whole(json: String, room: AnswerRoom) -> Response {
    let bytes = Bytes::from_owner(SentBytes { bytes: json.into_bytes(), _room: Arc::new(room) });
    ([(header::CONTENT_TYPE, "application/json")], bytes).into_response()
}

type Rest<T> = vec::IntoIter<(u32, T)>;

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use serde::Serialize;
    use serde_json::{Value, json};

    use super::{ANSWER_BYTES_MAX, ANSWER_STEP_BYTES, Answers, respond};

    const ANSWERS_BYTES_MAX: usize = 256 << 20;

    #[derive(Serialize)]
    struct Envelope {
        model: &'static str,
        choices: [(); 0],
        usage: u32,
    }

    #[tokio::test]
    async fn choices_of_any_size_make_one_answer() {
        for size in [1, 1000, 100_000] {
            let choices: Vec<String> = (0..5).map(|i| i.to_string().repeat(size)).collect();
            let envelope = Envelope { model: "\"choices\":[", choices: [], usage: 7 };
            let expected = json!({"model": "\"choices\":[", "choices": choices, "usage": 7});
            let response = respond(
                "choices",
                &serde_json::to_string(&envelope).unwrap(),
                choices,
                |_, choice| choice,
                Answers::new(ANSWERS_BYTES_MAX).room(),
            );
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn an_answer_takes_up_room_until_it_is_sent() {
        for count in [1, 3] {
            let answers = Answers::new(ANSWERS_BYTES_MAX);
            let free = answers.steps.available_permits();
            let mut room = answers.room();
            room.grow(2 * ANSWER_STEP_BYTES).unwrap();
            let choices = vec!["x".repeat(100_000); count];
            let mut body =
                respond("choices", "{\"choices\":[]}", choices, |_, choice| choice, room).into_body();
            let mut frames = Vec::new();
            while let Some(frame) = body.frame().await {
                frames.push(frame.unwrap().into_data().unwrap());
            }
            drop(body);
            // The frame handed on last may still wait for a slow client.
            let last = frames.pop();
            drop(frames);
            assert_eq!(answers.steps.available_permits(), free - 1, "{count}");
            drop(last);
            assert_eq!(answers.steps.available_permits(), free, "{count}");
        }
    }

    #[test]
    fn answers_are_bounded_alone_and_together_and_small_ones_always_fit() {
        let answers = Answers::new(ANSWERS_BYTES_MAX);
        let mut large = Vec::new();
        for _ in 0..ANSWERS_BYTES_MAX / ANSWER_BYTES_MAX {
            let mut room = answers.room();
            room.grow(ANSWER_BYTES_MAX).unwrap();
            assert_eq!(room.grow(1).unwrap_err().code(), Some("answer_too_large"));
            large.push(room);
        }
        let mut more = answers.room();
        let error = (0..9).find_map(|_| more.grow(ANSWER_STEP_BYTES).err()).map(|error| error.status());
        assert_eq!(error.map(|status| status.as_u16()), Some(503));
        answers.room().grow(ANSWER_STEP_BYTES).unwrap();
        large.pop();
        answers.room().grow(ANSWER_BYTES_MAX).unwrap();

        let mut room = Answers::new(2 * ANSWER_STEP_BYTES).room();
        room.grow(3 * ANSWER_STEP_BYTES).unwrap();
        assert_eq!(room.grow(1).unwrap_err().code(), Some("answer_too_large"));
    }
}
