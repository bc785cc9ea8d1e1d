//! HTTP client that asks a gateway whether it serves. For `hanzo-engine health`, in places without other HTTP
//! clients, such as container images.

use std::{sync::Arc, time::Duration};

use hanzo_engine_access::Secret;
use reqwest::{Client, StatusCode, Url};
use rustls::ClientConfig;
use serde_json::Value;

/// Maximum bytes of an answer: `/health` and `/v1/models` are far smaller.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Timeout of one request, including the connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Gateway to ask, and the client to use.
#[derive(Debug)]
pub struct Probe {
    base: Url,
    client: Client,
    key: Option<Secret>,
}

/// Report of a gateway that serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serves {
    /// Status in `/health`: `ok`, `loading` or `empty`.
    pub status: String,
    /// Names and states in `/v1/models`, such as `ready` or `stored`.
    pub models: Vec<(String, String)>,
}

/// Reason why a gateway does not serve or cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The given address is invalid.
    #[error("{0} is no address such as http://127.0.0.1:36900")]
    Address(String),
    /// No HTTP client can be made.
    #[error("no HTTP client: {0}")]
    Client(String),
    /// There was no complete answer.
    #[error("{url}: {why}")]
    Unreached {
        /// Requested URL.
        url: Url,
        /// Reason in words.
        why: String,
    },
    /// The answer is not that of a gateway that serves.
    #[error("{url} says {status}{}", if said.is_empty() { String::new() } else { format!(": {said}") })]
    Refused {
        /// Requested URL.
        url: Url,
        /// HTTP status.
        status: StatusCode,
        /// Message of the answer, if it has one.
        said: String,
    },
}

impl Probe {
    /// Prepares to ask the gateway at `address`, with `tls` for https.
    ///
    /// # Errors
    /// The address is invalid, or no client can be made.
    pub fn new(
        address: &str,
        key: Option<Secret>,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Probe, ProbeError> {
        let with_scheme =
            if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
        let unusable = || ProbeError::Address(address.to_owned());
        let base = Url::parse(with_scheme.trim_end_matches('/')).map_err(|_| unusable())?;
        if !matches!(base.scheme(), "http" | "https") || base.path() != "/" || base.query().is_some() {
            return Err(unusable());
        }
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A proxy must not answer for the gateway.
        let builder = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("hanzo-engine/", env!("CARGO_PKG_VERSION")))
            .timeout(ANSWER_TIMEOUT)
            .no_proxy();
        let builder = match tls {
            Some(tls) => builder.tls_backend_preconfigured(Arc::unwrap_or_clone(tls)),
            None => builder,
        };
        let client = builder.build().map_err(|error| ProbeError::Client(error.to_string()))?;
        Ok(Probe { base, client, key })
    }

    /// Asks `/health` and `/v1/models`.
    ///
    /// # Errors
    /// The gateway does not serve, or cannot be reached.
    pub async fn ask(&self) -> Result<Serves, ProbeError> {
        let health = self.get("health").await?;
        let models = self.get("v1/models").await?;
        let of = |model: &Value| Some((text(&model["id"])?, text(&model["state"]).unwrap_or_default()));
        Ok(Serves {
            status: text(&health["status"]).unwrap_or_default(),
            models: models["data"].as_array().into_iter().flatten().filter_map(of).collect(),
        })
    }

    async fn get(&self, path: &str) -> Result<Value, ProbeError> {
        let mut url = self.base.clone();
        url.set_path(path);
        let unreached =
            |error: reqwest::Error| ProbeError::Unreached { url: url.clone(), why: last_cause(&error) };
        let mut request = self.client.get(url.clone());
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.text());
        }
        let mut answer = request.send().await.map_err(unreached)?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(unreached)? {
            if body.len() + piece.len() > ANSWER_BYTES_MAX {
                let why = format!("its answer is longer than {ANSWER_BYTES_MAX} bytes");
                return Err(ProbeError::Unreached { url, why });
            }
            body.extend_from_slice(&piece);
        }
        match serde_json::from_slice::<Value>(&body) {
            Ok(value) if status == StatusCode::OK && value.is_object() => Ok(value),
            value => {
                let value = value.unwrap_or_default();
                let said = text(&value["error"]["message"])
                    .or_else(|| text(&value["reason"]))
                    .or_else(|| text(&value["status"]));
                Err(ProbeError::Refused { url, status, said: said.unwrap_or_default() })
            }
        }
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Innermost cause: "connection refused" instead of "error sending request".
fn last_cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", ANSWER_TIMEOUT.as_secs());
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Json, Router, http::HeaderMap, routing::get};
    use serde_json::json;

    async fn gateway(health: StatusCode, status: &'static str) -> String {
        let models = |headers: HeaderMap| async move {
            match headers.get("authorization").is_some_and(|key| key == "Bearer sk-right") {
                true => (
                    StatusCode::OK,
                    Json(json!({"data": [{"id": "a", "state": "ready"}, {"id": "b", "state": "stored"}]})),
                ),
                false => (StatusCode::UNAUTHORIZED, Json(json!({"error": {"message": "a key is wanted"}}))),
            }
        };
        let routes = Router::new()
            .route(
                "/health",
                get(move || async move {
                    (health, Json(json!({"status": status, "reason": "no engine answers"})))
                }),
            )
            .route("/v1/models", get(models));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        address
    }

    async fn ask(address: &str, key: &str) -> Result<Serves, String> {
        let probe =
            Probe::new(address, Some(Secret::new(key).unwrap()), None).map_err(|error| error.to_string())?;
        probe.ask().await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn what_serves_is_told_from_what_does_not() {
        let serving = gateway(StatusCode::OK, "ok").await;
        let models = [("a", "ready"), ("b", "stored")].map(|(id, state)| (id.to_owned(), state.to_owned()));
        let serves = Serves { status: "ok".to_owned(), models: models.into() };
        assert_eq!(ask(&serving, "sk-right").await.unwrap(), serves);
        assert_eq!(ask(&format!("http://{serving}/"), "sk-right").await.unwrap(), serves);
        let wrong = ask(&serving, "sk-wrong").await.unwrap_err();
        assert_eq!(wrong, format!("http://{serving}/v1/models says 401 Unauthorized: a key is wanted"));
        let away = gateway(StatusCode::SERVICE_UNAVAILABLE, "unavailable").await;
        let said = ask(&away, "sk-right").await.unwrap_err();
        assert_eq!(said, format!("http://{away}/health says 503 Service Unavailable: no engine answers"));
        let nobody = ask("127.0.0.1:1", "sk-right").await.unwrap_err();
        assert!(nobody.starts_with("http://127.0.0.1:1/health: ") && nobody.contains("refused"), "{nobody}");
        for no_address in ["", "ftp://a", "http://a/v1", "http://a?b", "http://"] {
            let error = ask(no_address, "sk-right").await.unwrap_err();
            assert_eq!(error, format!("{no_address} is no address such as http://127.0.0.1:36900"));
        }
    }
}
