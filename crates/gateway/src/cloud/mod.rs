//! Fallback to an upstream server, if the operator has configured it: for certain models always, for others
//! when the engine is overloaded. The upstream server may be any that speaks OpenAI's API. Only a request's
//! body and a generated id leave this machine. That is logged before the request is sent, and stated in a
//! header of the answer (`forward`). Nothing about the requester is sent, and the gateway's key for the upstream server is
//! never shown.

pub(crate) mod answer;
mod chat;
mod chunks;
pub(crate) mod estimate;
mod infer;

use axum::http::{HeaderName, HeaderValue, header};
use hanzo_engine_access::Secret;
use prometheus::IntCounterVec;
use reqwest::{Client, Url};

pub(crate) use answer::Payer;
pub(crate) use infer::There;

use crate::{
    cloud_settings::{CloudSettings, ModelMapping, named},
    error::{ApiError, GatewayError},
    limits::CLOUD_CONNECT_TIMEOUT,
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
    models: Vec<ModelMapping>,
    overflow: Vec<ModelMapping>,
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

/// Destination of a request, and the reason.
pub(crate) struct Destination<'a> {
    id: &'a str,
    route: &'static str,
    model: &'a ModelMapping,
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
        let named = |list| named(list).map_err(GatewayError::Config);
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

    fn url(&self, destination: &Destination<'_>) -> String {
        format!("{}{}", self.base, destination.route)
    }

    /// Value of the header [`SENT_TO`].
    pub(crate) fn sent_to(&self, destination: &Destination<'_>) -> String {
        let Destination { model, reason, .. } = destination;
        format!("{}; model={}; reason={}", self.url(destination), model.there, reason.word())
    }

    /// Counts a request by the HTTP status of its answer.
    pub(crate) fn count(&self, destination: &Destination<'_>, status: &str) {
        self.asked.with_label_values(&[destination.reason.word(), status]).inc();
    }

    /// Sends a body upstream and logs it.
    pub(crate) async fn send(
        &self,
        destination: &Destination<'_>,
        body: String,
    ) -> Result<reqwest::Response, ApiError> {
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
