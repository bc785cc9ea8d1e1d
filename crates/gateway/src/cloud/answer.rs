//! Answer of an upstream server: the events of its stream, its errors, and its usage, which is charged to the
//! requester's key.

use axum::http::StatusCode;
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::{Stream, stream};
use hanzo_engine_access::{Pass, Reservation};
use hanzo_engine_proto::v1;
use serde::Deserialize;

use crate::{
    asker::Asker,
    error::ApiError,
    limits::{CLOUD_EVENT_BYTES_MAX, CLOUD_SILENCE},
    record::Record,
    until::Until,
};

/// Estimated bytes of an answer for each token, if its usage is missing.
const TOKEN_BYTES: usize = 4;

/// Usage in an answer; its other fields are not read.
#[derive(Deserialize)]
struct AnswerUsage {
    usage: Option<CloudUsage>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct CloudUsage {
    #[serde(default)]
    prompt_tokens: u32,
    #[serde(default)]
    completion_tokens: u32,
    prompt_tokens_details: Option<OfPrompt>,
    completion_tokens_details: Option<OfCompletion>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct OfPrompt {
    cached_tokens: Option<u32>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct OfCompletion {
    reasoning_tokens: Option<u32>,
}

impl CloudUsage {
    /// Converts to the engine's message.
    pub(super) fn wire(&self) -> v1::Usage {
        v1::Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            cached_tokens: self.prompt_tokens_details.and_then(|of| of.cached_tokens).unwrap_or(0),
            reasoning_tokens: self.completion_tokens_details.and_then(|of| of.reasoning_tokens).unwrap_or(0),
            ..v1::Usage::default()
        }
    }
}

/// Key that is charged for an answer, and the record of its request. Dropping it while the answer is awaited
/// charges the prompt, because the upstream server has read it.
#[derive(Debug)]
pub(crate) struct Payer {
    pass: Pass,
    record: Record,
    reservation: Option<Reservation>, // None: another value holds it
    prompt: u32,                      // estimated tokens
    owes_prompt: bool,
}

impl Payer {
    /// Charges the key of `pass`. The reservation is held elsewhere.
    pub(crate) fn new(pass: Pass, record: Record) -> Payer {
        Payer { pass, record, reservation: None, prompt: 0, owes_prompt: false }
    }

    /// Charges a reservation.
    pub(crate) fn reserved(asker: &Asker, reservation: Reservation) -> Payer {
        let mut payer = Payer::new(asker.pass.clone(), asker.record.clone());
        payer.reservation = Some(reservation);
        payer
    }

    /// Records that a request with a prompt of about `prompt` tokens is being sent.
    pub(crate) fn sends(&mut self, prompt: u64) {
        self.prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
        self.owes_prompt = true;
    }

    /// Records that the upstream server did not accept the request.
    pub(crate) fn owes_nothing(&mut self) {
        self.owes_prompt = false;
    }

    fn charge(&mut self, usage: &CloudUsage) {
        self.owes_prompt = false;
        let tokens = usage.prompt_tokens.saturating_add(usage.completion_tokens);
        match &mut self.reservation {
            Some(reservation) => reservation.charge(tokens),
            None => self.pass.spend(tokens),
        }
        self.record.generated(usage.prompt_tokens, usage.completion_tokens);
    }

    /// Charges a whole answer: its reported usage, or else an estimate.
    ///
    /// # Errors
    /// The answer is no JSON.
    pub(crate) fn charge_whole(&mut self, answer: &[u8]) -> Result<(), ApiError> {
        let told = serde_json::from_slice::<AnswerUsage>(answer);
        let told = told.map_err(|_| ApiError::cloud("its answer is no JSON"))?;
        let guessed = u32::try_from(answer.len() / TOKEN_BYTES).unwrap_or(u32::MAX);
        self.charge(&told.usage.unwrap_or_else(|| self.guessed(guessed)));
        Ok(())
    }

    /// Estimated usage of an answer that does not state it.
    fn guessed(&self, completion_tokens: u32) -> CloudUsage {
        CloudUsage { prompt_tokens: self.prompt, completion_tokens, ..CloudUsage::default() }
    }

    /// Records that the request has left this machine.
    pub(super) fn sent_to(&self, told: &str) {
        self.record.sent_to(told);
    }
}

impl Drop for Payer {
    fn drop(&mut self) {
        if self.owes_prompt {
            self.charge(&self.guessed(0));
        }
    }
}

/// Error: the upstream server rejects this gateway's key.
pub(crate) fn wrong_key(status: u16) -> ApiError {
    tracing::error!(status, "the other server refuses this gateway's key: set cloud_api_key");
    ApiError::cloud("it refuses this server's key; its operator can set another")
}

/// Error: the upstream server's response is not the expected kind.
pub(crate) fn odd(status: u16, kind: &str) -> ApiError {
    tracing::warn!(status, kind, "the other server answers with what is none of OpenAI's");
    let status =
        StatusCode::from_u16(status).map_or_else(|_| status.to_string(), |status| status.to_string());
    ApiError::cloud(&format!("it answered {status}"))
}

/// Next piece of a body; None: its end.
pub(crate) async fn piece(answered: &mut reqwest::Response) -> Result<Option<Bytes>, ApiError> {
    match tokio::time::timeout(CLOUD_SILENCE, answered.chunk()).await {
        Ok(Ok(piece)) => Ok(piece),
        Ok(Err(error)) => Err(super::unreached(&error)),
        Err(_) => Err(ApiError::cloud("it says nothing any more")),
    }
}

/// Complete events of a stream, a few at a time, so that a comment may be inserted between any two.
pub(crate) fn events(
    answered: reqwest::Response,
    payer: Payer,
    until: Option<Until>,
) -> impl Stream<Item = Result<Vec<u8>, ApiError>> + Send + 'static {
    let reader = AnswerReader { answered, until, held: BytesMut::new(), counted: StreamCharge::new(payer) };
    stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match reader.next().await {
            Ok(Some(events)) => Some((Ok(events), Some(reader))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
}

struct AnswerReader {
    answered: reqwest::Response,
    until: Option<Until>, // None: the caller enforces the time limit
    held: BytesMut,       // beginning of an incomplete event
    counted: StreamCharge,
}

impl AnswerReader {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, ApiError> {
        loop {
            let piece = match self.until.clone() {
                Some(until) => until.run(piece(&mut self.answered)).await?,
                None => piece(&mut self.answered).await?,
            };
            let Some(piece) = piece else {
                // The rest is no complete event.
                return Ok(None);
            };
            self.held.extend_from_slice(&piece);
            if let Some(end) = last_end(&self.held) {
                let events = self.held[..end].to_vec();
                self.held.advance(end);
                self.counted.see(&events);
                return Ok(Some(events));
            }
            if self.held.len() > CLOUD_EVENT_BYTES_MAX {
                return Err(ApiError::cloud("an event of its answer is too long"));
            }
        }
    }
}

/// End of the last complete event, which is after an empty line.
fn last_end(text: &[u8]) -> Option<usize> {
    let ends = |at: &usize| text[..*at].ends_with(b"\n\n") || text[..*at].ends_with(b"\n\r\n");
    (1..=text.len()).rev().find(ends)
}

/// Charge of a stream: its reported usage, or else one token for each event and the estimated prompt.
struct StreamCharge {
    payer: Payer,
    events: u32,
    usage: Option<CloudUsage>,
}

impl StreamCharge {
    fn new(payer: Payer) -> StreamCharge {
        StreamCharge { payer, events: 0, usage: None }
    }

    fn see(&mut self, events: &[u8]) {
        for line in events.split(|byte| *byte == b'\n') {
            let Some(data) = line.strip_prefix(b"data:") else { continue };
            self.events = self.events.saturating_add(1);
            if let Ok(AnswerUsage { usage: Some(usage) }) = serde_json::from_slice(data) {
                self.usage = Some(usage);
            }
        }
    }
}

/// Charges also if the client has left.
impl Drop for StreamCharge {
    fn drop(&mut self) {
        let usage = self.usage.take().unwrap_or_else(|| self.payer.guessed(self.events));
        self.payer.charge(&usage);
    }
}

#[cfg(test)]
mod tests {
    use super::last_end;

    #[test]
    fn events_end_with_an_empty_line() {
        for (text, end) in [
            ("data: a\n\ndata: b", Some(9)),
            ("data: a\r\n\r\n", Some(11)),
            ("data: a\n", None),
            ("", None),
            ("a\n\nb\n\n", Some(6)),
        ] {
            assert_eq!(last_end(text.as_bytes()), end, "{text:?}");
        }
    }
}
