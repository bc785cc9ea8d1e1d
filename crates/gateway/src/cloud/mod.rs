//! What another server answers in this one's place, where the operator has allowed that: models by name, and requests that find the
//! engine overloaded. It is any that speaks OpenAI's API. Of a request its body leaves this machine and an id that was made here,
//! and that is said: in the log before it is sent, and in a header of the answer. Nothing of who asks goes with it, and this
//! gateway's key for that server is shown to nobody.

mod answer;
mod chat;
mod estimate;
mod infer;
mod settings;
mod told;

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
    body::Received,
    error::{ApiError, GatewayError},
    fields::{Field, Fields},
    json::Json,
    limits::CLOUD_CONNECT_TIMEOUT,
    peer::Peer,
    request_id::X_REQUEST_ID,
    until::Until,
};

/// Says of an answer that it is another server's: its address, what the model is called there, and why it was asked.
pub(crate) const SENT_TO: HeaderName = HeaderName::from_static("x-hanzo-sent-to");

/// Another server.
#[derive(Debug)]
pub(crate) struct Cloud {
    client: Client,
    base: Url,
    key: Option<Secret>,
    models: Vec<settings::Named>,
    overflow: Vec<settings::Named>,
    asked: IntCounterVec, // by reason and outcome
}

/// Why a request leaves this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// Its model is one that is answered there.
    Model,
    /// No engine can take it now.
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

/// A request that leaves this machine.
struct Leaving<'a> {
    asker: &'a Asker,
    peer: Option<Peer>,
    body: String,
    sending: Sending<'a>,
}

/// Where it goes, and why.
struct Sending<'a> {
    id: &'a str,
    route: &'static str,
    model: &'a settings::Named,
    reason: Reason,
}

impl Cloud {
    /// None where the settings name no other server.
    ///
    /// # Errors
    /// What is wrong with its address, or that TLS cannot be spoken.
    pub(crate) fn of(settings: &CloudSettings, asked: IntCounterVec) -> Result<Option<Cloud>, GatewayError> {
        let Some(base) = settings.base().map_err(GatewayError::Config)? else { return Ok(None) };
        // Whoever installed one first is as good.
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

    /// The names of models that are answered there, and who answers.
    pub(crate) fn models(&self) -> impl Iterator<Item = (&str, &str)> {
        self.models.iter().map(|named| (named.here.as_str(), self.base.host_str().unwrap_or_default()))
    }
}

/// What `here` makes of a body, or what another server says in its place: always for a model that is answered there, and for one that
/// may overflow where no engine can take it now. `route`: the path below `/v1/`, there as here.
pub(crate) async fn or_there<F>(
    app: &Arc<App>,
    asker: &Asker,
    peer: Option<Peer>,
    route: &'static str,
    mut received: Received,
    here: impl FnOnce(Received) -> F,
) -> Result<Response, ApiError>
where
    F: Future<Output = Result<Response, ApiError>>,
{
    let Some(cloud) = &app.cloud else { return here(received).await };
    let asked = received.look(|fields, _| model(fields)).await?;
    let of = |list: &'_ [settings::Named]| list.iter().find(|named| named.is(&asked)).cloned();
    if let Some(model) = of(&cloud.models) {
        let (body, _room) = received.text();
        let sending = Sending { id: asker.id.as_str(), route, model: &model, reason: Reason::Model };
        let leaving = Leaving { asker, peer, body, sending };
        return cloud.ask(app, leaving).await;
    }
    let Some(model) = of(&cloud.overflow) else { return here(received).await };
    // It is there twice while it is answered here.
    let body = received.copied().await?;
    // What would leave is the body, not what is made of it.
    asker.record.forwards_body();
    let error = match here(received).await {
        Err(error) if error.is_of_load() => error,
        answered => return answered,
    };
    let sending = Sending { id: asker.id.as_str(), route, model: &model, reason: Reason::Overloaded };
    let leaving = Leaving { asker, peer, body, sending };
    cloud.ask(app, leaving).await.map_err(|there| {
        tracing::warn!(
            request_id = asker.id.as_str(),
            reason = there.message(),
            "nor did the other server answer"
        );
        error
    })
}

/// The model that a body names; empty where it names none.
fn model(mut fields: Fields<'_>) -> Result<String, ApiError> {
    Ok(fields.take("model").map(Field::string).transpose()?.unwrap_or_default())
}

impl Cloud {
    async fn ask(&self, app: &App, leaving: Leaving<'_>) -> Result<Response, ApiError> {
        let Leaving { asker, peer, body, sending } = leaving;
        asker.record.asked(&sending.model.here);
        asker.pass.use_model(&sending.model.here).map_err(|refusal| app.refuse(&refusal))?;
        let answers = Answers::of(sending.route);
        let need = estimate::need(&body, answers);
        let reserved = asker.pass.reserve_forwarded(&need);
        let ForwardReservation { reservation, bound } = reserved.map_err(|refusal| app.refuse(&refusal))?;
        let bytes = renamed(&body, &sending.model.there, answers.bound_to(bound));
        drop(body);
        let until = Until::of(app);
        let mut payer = Payer::reserved(asker, reservation);
        payer.sends(need.prompt());
        let answered = match until.run(self.send(&sending, bytes)).await {
            Ok(answered) => answer::of(app, peer, answered, until, payer).await,
            Err(error) => {
                payer.owes_nothing();
                Err(error)
            }
        };
        let outcome = answered.as_ref().map_or_else(ApiError::status, Response::status);
        self.count(sending.reason, outcome.as_str());
        let mut answered = answered?;
        if let Ok(told) = HeaderValue::from_str(&self.told(&sending)) {
            answered.headers_mut().insert(SENT_TO, told);
        }
        Ok(answered)
    }

    fn url(&self, sending: &Sending<'_>) -> String {
        format!("{}{}", self.base, sending.route)
    }

    /// What is said of an answer from there.
    fn told(&self, sending: &Sending<'_>) -> String {
        let Sending { model, reason, .. } = sending;
        format!("{}; model={}; reason={}", self.url(sending), model.there, reason.word())
    }

    fn count(&self, reason: Reason, status: &str) {
        self.asked.with_label_values(&[reason.word(), status]).inc();
    }

    /// Sends a body there, and says so.
    async fn send(&self, sending: &Sending<'_>, body: String) -> Result<reqwest::Response, ApiError> {
        let (url, id) = (self.url(sending), sending.id);
        let (to, called, length, why) =
            (url.as_str(), sending.model.there.as_str(), body.len(), sending.reason.word());
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

/// The body with another model's name, and with a bound of its answers where one is given. It was read before, and so is an object.
fn renamed(body: &str, model: &str, bound: Option<Bound>) -> String {
    let text = |text: &str| Value::from(text).to_string();
    let body = body.strip_prefix('\u{feff}').unwrap_or(body);
    let members = Json::parse(body).ok().and_then(Json::members).into_iter().flatten();
    // A bound is given where those of the body are null.
    let members = members.filter(|(name, _)| bound.is_none() || !BOUNDS.contains(&&**name));
    let members = members.map(|(name, value)| match &*name {
        "model" => format!("\"model\":{}", text(model)),
        name => format!("{}:{}", text(name), value.to_text()),
    });
    let bound = bound.map(|Bound { member, tokens }| format!("\"{member}\":{tokens}"));
    format!("{{{}}}", members.chain(bound).collect::<Vec<_>>().join(","))
}

/// Why there is no answer: never with what was sent.
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
