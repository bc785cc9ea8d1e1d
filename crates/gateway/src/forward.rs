//! Requests of OpenAI's routes that an upstream server answers. Their bodies are forwarded as they are, but for
//! the model's name. OpenAI answers are forwarded as they arrive; others become errors of this gateway.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use hanzo_engine_access::ForwardReservation;
use serde_json::Value;

use crate::{
    answers::AnswerRoom,
    app::App,
    asker::Asker,
    body::ReceivedBody,
    cloud::{
        Cloud, Payer, SENT_TO, There, answer,
        estimate::{self, Answers, BOUNDS, Bound},
    },
    error::ApiError,
    fields::{Field, Fields},
    json::Json,
    limits::CLOUD_ERROR_BYTES_MAX,
    peer::Peer,
    progress::{EVENTS, respond},
    until::Until,
};

/// Request to be sent upstream.
struct UpstreamRequest<'a> {
    asker: &'a Asker,
    peer: Option<Peer>,
    body: String,
    there: &'a There,
    route: &'static str,
}

/// Answers a request with `here` or upstream. Models of `cloud_models` always go upstream, models of
/// `cloud_overflow` only if no engine can take the request now. `route` is the path below `/v1/`, which is the
/// same on both.
pub(crate) async fn or_there<F>(
    app: &Arc<App>,
    asker: &Asker,
    peer: Option<Peer>,
    route: &'static str,
    mut received: ReceivedBody,
    here: impl FnOnce(ReceivedBody) -> F,
) -> Result<Response, ApiError>
where
    F: Future<Output = Result<Response, ApiError>>,
{
    let Some(cloud) = &app.cloud else { return here(received).await };
    let asked = received.look(|fields, _| model(fields)).await?;
    if let Some(there) = cloud.always(&asked) {
        let (body, _room) = received.text();
        return ask(app, cloud, UpstreamRequest { asker, peer, body, there: &there, route }).await;
    }
    let Some(there) = cloud.overflow(&asked) else { return here(received).await };
    // The body is kept for a second use while `here` runs.
    let body = received.copied().await?;
    // An overflow forwards this body, not the engine request that `here` makes of it.
    asker.record.forwards_body();
    let error = match here(received).await {
        Err(error) if error.is_of_load() => error,
        answered => return answered,
    };
    ask(app, cloud, UpstreamRequest { asker, peer, body, there: &there, route }).await.map_err(|there| {
        tracing::warn!(
            request_id = asker.id.as_str(),
            reason = there.message(),
            "nor did the other server answer"
        );
        error
    })
}

/// Model named in a body; empty: none.
fn model(mut fields: Fields<'_>) -> Result<String, ApiError> {
    Ok(fields.take("model").map(Field::string).transpose()?.unwrap_or_default())
}

/// Sends a request upstream and converts the answer.
async fn ask(app: &App, cloud: &Cloud, upstream_request: UpstreamRequest<'_>) -> Result<Response, ApiError> {
    let UpstreamRequest { asker, peer, body, there, route } = upstream_request;
    asker.record.asked(there.here());
    asker.pass.use_model(there.here()).map_err(|refusal| app.refuse(&refusal))?;
    let answers = Answers::of(route);
    let need = estimate::need(&body, answers);
    let reserved = asker.pass.reserve_forwarded(&need);
    let ForwardReservation { reservation, bound } = reserved.map_err(|refusal| app.refuse(&refusal))?;
    let bytes = renamed(&body, there.there(), answers.bound_to(bound));
    drop(body);
    let destination = there.destination(asker.id.as_str(), route);
    let until = app.until();
    let mut payer = Payer::reserved(asker, reservation);
    payer.sends(need.prompt());
    let answered = match until.run(cloud.send(&destination, bytes)).await {
        Ok(answered) => converted(app, peer, answered, until, payer).await,
        Err(error) => {
            payer.owes_nothing();
            Err(error)
        }
    };
    let outcome = answered.as_ref().map_or_else(ApiError::status, Response::status);
    cloud.count(&destination, outcome.as_str());
    let mut answered = answered?;
    if let Ok(value) = HeaderValue::from_str(&cloud.sent_to(&destination)) {
        answered.headers_mut().insert(SENT_TO, value);
    }
    Ok(answered)
}

/// Converts the upstream server's response.
async fn converted(
    app: &App,
    peer: Option<Peer>,
    mut answered: reqwest::Response,
    until: Until,
    mut payer: Payer,
) -> Result<Response, ApiError> {
    let status = answered.status();
    let kind = answered.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match (status.as_u16(), kind.as_str()) {
        (200, "text/event-stream") => {
            let events = answer::events(answered, payer, Some(until));
            respond(app, peer, EVENTS, events, ApiError::json).await
        }
        (200, "application/json") => {
            let (text, room) = whole(app, &mut answered, &until, usize::MAX).await?;
            payer.charge_whole(&text)?;
            // The memory is held until the text is sent.
            let body =
                stream::once(async move { Ok::<_, std::convert::Infallible>(text) }).inspect(move |_| {
                    let _ = &room;
                });
            Ok(([(header::CONTENT_TYPE, "application/json")], Body::from_stream(body)).into_response())
        }
        (400 | 404 | 413 | 415 | 422 | 429, "application/json") => {
            payer.owes_nothing();
            let retry_after = answered.headers().get(header::RETRY_AFTER).cloned();
            let (text, _room) = whole(app, &mut answered, &until, CLOUD_ERROR_BYTES_MAX).await?;
            let said = serde_json::from_slice::<Value>(&text);
            let said = said.map_err(|_| ApiError::cloud("its error is no JSON"))?;
            // An unprocessable request counts as a bad request here.
            let status = if status == 422 { StatusCode::BAD_REQUEST } else { status };
            let retry_after = retry_after.map(|value| (header::RETRY_AFTER, value));
            Ok((status, HeaderMap::from_iter(retry_after), axum::Json(said)).into_response())
        }
        (401 | 403, _) => {
            payer.owes_nothing();
            Err(answer::wrong_key(status.as_u16()))
        }
        _ => {
            payer.owes_nothing();
            Err(answer::odd(status.as_u16(), &kind))
        }
    }
}

/// Reads a whole body.
async fn whole(
    app: &App,
    answered: &mut reqwest::Response,
    until: &Until,
    bytes_max: usize,
) -> Result<(Bytes, AnswerRoom), ApiError> {
    let (mut text, mut room) = (BytesMut::new(), app.answers.room());
    while let Some(piece) = until.run(answer::piece(answered)).await? {
        if text.len() + piece.len() > bytes_max {
            return Err(ApiError::cloud("its error is too long"));
        }
        room.grow(piece.len())?;
        text.extend_from_slice(&piece);
    }
    Ok((text.freeze(), room))
}

/// Replaces the model's name in a body, and adds a token limit if given. The body has been parsed before, so it
/// is an object.
fn renamed(body: &str, model: &str, bound: Option<Bound>) -> String {
    let text = |text: &str| Value::from(text).to_string();
    let body = body.strip_prefix('\u{feff}').unwrap_or(body);
    let members = Json::parse(body).ok().and_then(Json::members).into_iter().flatten();
    // The new limit replaces the body's, which are null.
    let members = members.filter(|(name, _)| bound.is_none() || !BOUNDS.contains(&&**name));
    let members = members.map(|(name, value)| match &*name {
        "model" => format!("\"model\":{}", text(model)),
        name => format!("{}:{}", text(name), value.to_text()),
    });
    let bound = bound.map(|Bound { member, tokens }| format!("\"{member}\":{tokens}"));
    format!("{{{}}}", members.chain(bound).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::{Bound, renamed};

    #[test]
    fn only_the_models_name_is_another() {
        let body = "\u{feff} {\"messages\": [{\"content\": \"model \\ud800\"}], \"model\" : \"a\", \"n\":1.50, \"x\\\"\": {\"model\": \"a\"}}";
        let sent = "{\"messages\":[{\"content\":\"model \\ufffd\"}],\"model\":\"b\\\"c\",\"n\":1.50,\"x\\\"\":{\"model\":\"a\"}}";
        assert_eq!(renamed(body, "b\"c", None), sent);
    }

    #[test]
    fn answers_without_a_bound_get_one() {
        let bound = || Some(Bound { member: "max_tokens", tokens: 9 });
        let body = r#"{"model": "a", "max_tokens": null, "n": 1}"#;
        assert_eq!(renamed(body, "b", bound()), r#"{"model":"b","n":1,"max_tokens":9}"#);
        assert_eq!(renamed("{}", "b", bound()), r#"{"max_tokens":9}"#);
    }
}
