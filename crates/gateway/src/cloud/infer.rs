//! Chat requests of any API that an upstream server answers. They are sent as chat completions, and the answer
//! is converted to the engine's events, so callers need not know who answers.

use std::{collections::VecDeque, sync::Arc};

use axum::http::header;
use futures_util::{Stream, StreamExt as _, stream};
use hanzo_engine_proto::v1;
use tonic::{Code, Status, metadata::MetadataMap};

use super::{
    Cloud, Destination, Reason,
    answer::{self, Payer},
    chat,
    chunks::{Broken, ChunkConverter},
    estimate::{self, Answers},
};
use crate::{cloud_settings::ModelMapping, error::ApiError, limits::CLOUD_ERROR_BYTES_MAX};

/// Route on the upstream server.
const ROUTE: &str = "chat/completions";

/// Model that an upstream server answers for.
#[derive(Debug, Clone)]
pub(crate) struct There {
    model: ModelMapping,
    reason: Reason,
}

impl There {
    /// Destination of the request `id`. `route` is the path below `/v1/`.
    pub(crate) fn destination<'a>(&'a self, id: &'a str, route: &'static str) -> Destination<'a> {
        Destination { id, route, model: &self.model, reason: self.reason }
    }

    /// Name of the model here.
    pub(crate) fn here(&self) -> &str {
        &self.model.here
    }

    /// Name of the model on the upstream server.
    pub(crate) fn there(&self) -> &str {
        &self.model.there
    }
}

impl Cloud {
    /// The model, if the upstream server always answers for it.
    pub(crate) fn always(&self, model: &str) -> Option<There> {
        let model = self.models.iter().find(|named| named.is(model))?.clone();
        Some(There { model, reason: Reason::Model })
    }

    /// The model, if the upstream server answers for it under overload.
    pub(crate) fn overflow(&self, model: &str) -> Option<There> {
        let model = self.overflow.iter().find(|named| named.is(model))?.clone();
        Some(There { model, reason: Reason::Overloaded })
    }

    /// Starts a chat on the upstream server, as [`crate::engine::Engine::infer`] does on the engine.
    pub(crate) async fn infer(
        self: &Arc<Self>,
        request: &v1::InferRequest,
        there: &There,
        mut payer: Payer,
    ) -> Result<impl Stream<Item = Result<v1::InferEvent, Status>> + Send + use<>, Status> {
        let body = chat::body(request, there.there())?;
        let id = request.request_id.clone();
        let destination = there.destination(&id, ROUTE);
        payer.sends(estimate::need(&body, Answers::of(ROUTE)).prompt());
        let answered = match self.send(&destination, body).await {
            Ok(answered) => begun(answered).await,
            Err(error) => Err(status_of(&error)),
        };
        let outcome =
            answered.as_ref().map_or_else(|status| ApiError::from(status.clone()).status().as_u16(), |_| 200);
        self.count(&destination, &outcome.to_string());
        if answered.is_err() {
            payer.owes_nothing();
        }
        let answered = answered?;
        payer.sent_to(&self.sent_to(&destination));
        let converter = ChunkConverter::new(there.here().to_owned(), id, request.choices.max(1) as usize);
        let events = Box::pin(answer::events(answered, payer, None));
        Ok(stream::try_unfold(
            (events, converter, VecDeque::new(), false),
            |(mut events, mut converter, mut ready, mut over)| async move {
                loop {
                    if let Some(event) = ready.pop_front() {
                        return Ok(Some((event, (events, converter, ready, over))));
                    }
                    if over {
                        return Ok(None);
                    }
                    let come = match events.next().await {
                        Some(text) => converter.see(&text.map_err(|error| status_of(&error))?),
                        None => {
                            over = true;
                            converter.end()
                        }
                    };
                    ready.extend(come.map_err(|Broken(why)| status_of(&ApiError::cloud(why)))?);
                }
            },
        ))
    }
}

/// Event stream of a successful response, or the status of a failed one.
async fn begun(mut answered: reqwest::Response) -> Result<reqwest::Response, Status> {
    let status = answered.status().as_u16();
    let kind =
        answered.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let (is_stream, is_json) = (kind.starts_with("text/event-stream"), kind.starts_with("application/json"));
    let code = match status {
        200 if is_stream => return Ok(answered),
        400 | 413 | 415 | 422 => Code::InvalidArgument,
        404 => Code::NotFound,
        429 => Code::ResourceExhausted,
        _ => {
            let error = if matches!(status, 401 | 403) {
                answer::wrong_key(status)
            } else {
                answer::odd(status, kind)
            };
            return Err(status_of(&error));
        }
    };
    if !is_json {
        return Err(status_of(&answer::odd(status, kind)));
    }
    let retry_after = answered
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let mut text = Vec::new();
    while let Some(piece) = answer::piece(&mut answered).await.map_err(|error| status_of(&error))? {
        text.extend_from_slice(&piece);
        if text.len() > CLOUD_ERROR_BYTES_MAX {
            return Err(status_of(&ApiError::cloud("its error is too long")));
        }
    }
    let said: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let message = ["/error/message", "/message", "/error"].iter().find_map(|at| said.pointer(at)?.as_str());
    let mut metadata = MetadataMap::new();
    let word = if code == Code::ResourceExhausted { "rate_limit_exceeded" } else { "refused_elsewhere" };
    metadata.insert("error-code", tonic::metadata::MetadataValue::from_static(word));
    if let Some(Ok(ms)) = retry_after.map(|seconds| seconds.saturating_mul(1000).to_string().parse()) {
        metadata.insert("retry-after-ms", ms);
    }
    Err(Status::with_metadata(
        code,
        message.unwrap_or("the server that answers for this model refuses this"),
        metadata,
    ))
}

/// Status that the engine would send if it were unavailable.
fn status_of(error: &ApiError) -> Status {
    let mut metadata = MetadataMap::new();
    if let Some(Ok(word)) = error.code().map(str::parse) {
        metadata.insert("error-code", word);
    }
    Status::with_metadata(Code::Unavailable, error.message(), metadata)
}
