//! Fallback to an upstream server, if the operator has configured it: for certain models always, for others
//! when the engine is overloaded. The upstream server may be any that speaks OpenAI's API. Only a request's
//! body and a generated id leave this machine. That is logged before the request is sent, and stated in a
//! header of the answer. Nothing about the requester is sent, and the gateway's key for the upstream server is
//! never shown.

mod answer;
mod chat;
mod chunks;
mod estimate;
mod infer;
mod settings;

use std::sync::Arc;

use axum::{
    http::{HeaderName, HeaderValue, header},
    response::Response,
};
use estimate::{Answers, BOUNDS, Bound};
use hanzo_engine_access::{ForwardReservation, Secret};
use prometheus::IntCounterVec;
use reqwest::{Client, Url};
use serde_json::Value;

pub(crate) use answer::Payer;
pub(crate) use settings::{CloudSettings, check};

use crate::{
    app::App,
    asker::Asker,
    body::ReceivedBody,
    error::{ApiError, GatewayError},
    fields::{Field, Fields},
    json::Json,
    limits::CLOUD_CONNECT_TIMEOUT,
    peer::Peer,
    request_id::X_REQUEST_ID,
};

/// Header of answers from an upstream server: its URL, its name of the model, and the reason.
pub(crate) const SENT_TO: HeaderName = HeaderName::from_static("x-hanzo-sent-to");

/// Upstream server.
#[derive(Debug)]
pub(crate) struct Cloud {
    client: Client,
    base: Url,
    key: Option<Secret>,
    models: Vec<settings::ModelMapping>,
    overflow: Vec<settings::ModelMapping>,
    asked: IntCounterVec, // by reason and outcome
}

/// Reason for sending a request upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// The model is always answered upstream.
    Model,
    /// No engine can take the request now.
    Overloaded,
}

impl Reason {
    fn word(self) -> &'static str {
        match self {
            Reason::Model => "model",
            Reason::Overloaded => "overloaded",
        }
    }
}

/// Request to be sent upstream.
struct UpstreamRequest<'a> {
    asker: &'a Asker,
    peer: Option<Peer>,
    body: String,
    destination: Destination<'a>,
}

/// Destination of a request, and the reason.
struct Destination<'a> {
    id: &'a str,
    route: &'static str,
    model: &'a settings::ModelMapping,
    reason: Reason,
}

impl Cloud {
    /// Creates the client. None: the settings name no upstream server.
    ///
    /// # Errors
    /// Its URL is invalid, or no TLS client can be made.
    pub(crate) fn of(settings: &CloudSettings, asked: IntCounterVec) -> Result<Option<Cloud>, GatewayError> {
        let Some(base) = settings.base().map_err(GatewayError::Config)? else { return Ok(None) };
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("hanzo-engine/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CLOUD_CONNECT_TIMEOUT)
            .build()
            .map_err(|error| GatewayError::Config(format!("cloud_url: no HTTP client: {error}")))?;
        let named = |list| settings::named(list).map_err(GatewayError::Config);
        Ok(Some(Cloud {
            client,
            base,
            key: settings.key.clone(),
            models: named(&settings.models)?,
            overflow: named(&settings.overflow)?,
            asked,
        }))
    }

    /// Names of the models that are always answered upstream, and the upstream host.
    pub(crate) fn models(&self) -> impl Iterator<Item = (&str, &str)> {
        self.models.iter().map(|named| (named.here.as_str(), self.base.host_str().unwrap_or_default()))
    }
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
    let of = |list: &'_ [settings::ModelMapping]| list.iter().find(|named| named.is(&asked)).cloned();
    if let Some(model) = of(&cloud.models) {
        let (body, _room) = received.text();
        let destination = Destination { id: asker.id.as_str(), route, model: &model, reason: Reason::Model };
        let upstream_request = UpstreamRequest { asker, peer, body, destination };
        return cloud.ask(app, upstream_request).await;
    }
    let Some(model) = of(&cloud.overflow) else { return here(received).await };
    // The body is kept for a second use while `here` runs.
    let body = received.copied().await?;
    // An overflow forwards this body, not the engine request that `here` makes of it.
    asker.record.forwards_body();
    let error = match here(received).await {
        Err(error) if error.is_of_load() => error,
        answered => return answered,
    };
    let destination = Destination { id: asker.id.as_str(), route, model: &model, reason: Reason::Overloaded };
    let upstream_request = UpstreamRequest { asker, peer, body, destination };
    cloud.ask(app, upstream_request).await.map_err(|there| {
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

impl Cloud {
    async fn ask(&self, app: &App, upstream_request: UpstreamRequest<'_>) -> Result<Response, ApiError> {
        let UpstreamRequest { asker, peer, body, destination } = upstream_request;
        asker.record.asked(&destination.model.here);
        asker.pass.use_model(&destination.model.here).map_err(|refusal| app.refuse(&refusal))?;
        let answers = Answers::of(destination.route);
        let need = estimate::need(&body, answers);
        let reserved = asker.pass.reserve_forwarded(&need);
        let ForwardReservation { reservation, bound } = reserved.map_err(|refusal| app.refuse(&refusal))?;
        let bytes = renamed(&body, &destination.model.there, answers.bound_to(bound));
        drop(body);
        let until = app.until();
        let mut payer = Payer::reserved(asker, reservation);
        payer.sends(need.prompt());
        let answered = match until.run(self.send(&destination, bytes)).await {
            Ok(answered) => answer::of(app, peer, answered, until, payer).await,
            Err(error) => {
                payer.owes_nothing();
                Err(error)
            }
        };
        let outcome = answered.as_ref().map_or_else(ApiError::status, Response::status);
        self.count(destination.reason, outcome.as_str());
        let mut answered = answered?;
        if let Ok(value) = HeaderValue::from_str(&self.sent_to(&destination)) {
            answered.headers_mut().insert(SENT_TO, value);
        }
        Ok(answered)
    }

    fn url(&self, destination: &Destination<'_>) -> String {
        format!("{}{}", self.base, destination.route)
    }

    /// Value of the header [`SENT_TO`].
    fn sent_to(&self, destination: &Destination<'_>) -> String {
        let Destination { model, reason, .. } = destination;
        format!("{}; model={}; reason={}", self.url(destination), model.there, reason.word())
    }

    fn count(&self, reason: Reason, status: &str) {
        self.asked.with_label_values(&[reason.word(), status]).inc();
    }

    /// Sends a body upstream and logs it.
    async fn send(&self, destination: &Destination<'_>, body: String) -> Result<reqwest::Response, ApiError> {
        let (url, id) = (self.url(destination), destination.id);
        let (to, called, length, why) =
            (url.as_str(), destination.model.there.as_str(), body.len(), destination.reason.word());
        tracing::info!(
            request_id = id,
            to,
            model = called,
            bytes = length,
            reason = why,
            "a request leaves this machine"
        );
        let mut request = self.client.post(&url).header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.text());
        }
        if let Ok(id) = HeaderValue::from_str(id) {
            request = request.header(X_REQUEST_ID, id);
        }
        request.body(body).send().await.map_err(|error| unreached(&error))
    }
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

/// Error without the content of the request.
fn unreached(error: &reqwest::Error) -> ApiError {
    let why = match () {
        () if error.is_connect() => "it cannot be reached",
        () if error.is_timeout() => "it did not answer in time",
        () => "the connection broke off",
    };
    let cause = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    tracing::warn!(why, cause, "the server that answers in this one's place does not");
    ApiError::cloud(why)
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
