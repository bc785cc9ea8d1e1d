//! Configuration of traces: settings, and OpenTelemetry's own variables where those are unset.

use std::{str::FromStr, time::Duration};

use hanzo_engine_access::ClientTls;
use hanzo_engine_process::settings;
use opentelemetry_sdk::trace::Sampler;
use serde::{Deserialize, Serialize};

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

settings! {
    /// Request traces.
    pub struct TracesConfig("traces.") {
        /// Address that request traces are sent to by OTLP, such as `http://localhost:4317`. Unset:
        /// `OTEL_EXPORTER_OTLP_ENDPOINT`; without that, traces are off.
        endpoint: Option<String> = None => named("traces-endpoint")
            .engined("URL", "Address that request traces are sent to by OTLP, such as http://localhost:4317 \
                             [default: OTEL_EXPORTER_OTLP_ENDPOINT]")
            .serve("URL", "Address for request traces by OTLP, such as http://localhost:4317 [default: \
                           OTEL_EXPORTER_OTLP_ENDPOINT]").example("http://localhost:4317");
        /// Protocol: `grpc` or `http/protobuf`. Unset: `OTEL_EXPORTER_OTLP_PROTOCOL`, else `grpc`.
        protocol: Option<Protocol> = None => example("grpc");
        /// Share of requests that are traced, from 0 to 1. A request that is part of a trace already follows that
        /// trace's own decision. Unset: `OTEL_TRACES_SAMPLER`, else all.
        ratio: Option<f64> = None => example(0.1);
    }
}

/// Protocol for sending spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// gRPC.
    #[serde(rename = "grpc")]
    Grpc,
    /// Protocol buffers over HTTP.
    #[serde(rename = "http/protobuf")]
    Http,
}

/// Error of the configuration of traces.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// A setting or variable has an invalid value.
    #[error("{key}: {reason}")]
    Value {
        /// Name of the setting or variable.
        key: &'static str,
        /// Valid values.
        reason: String,
    },
    /// A TLS file is unusable.
    #[error("traces: {0}")]
    Tls(#[from] hanzo_engine_access::TlsError),
    /// The library refuses the value of one of its variables.
    #[error("traces: {0}")]
    Exporter(String),
}

/// Effective configuration from settings and variables.
#[derive(Debug)]
pub(crate) struct ExportTarget {
    pub(crate) endpoint: String, // complete, with the path for HTTP
    pub(crate) protocol: Protocol,
    pub(crate) sampler: Sampler,
    pub(crate) timeout: Duration,
    pub(crate) tls: ClientTls,
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "grpc" => Ok(Protocol::Grpc),
            "http/protobuf" => Ok(Protocol::Http),
            _ => Err(format!("must be grpc or http/protobuf, not {text:?}")),
        }
    }
}

impl TracesConfig {
    /// Checks every value, environment variables included.
    ///
    /// # Errors
    /// [`TracesError`] with the first invalid one.
    pub fn check(&self) -> Result<(), TracesError> {
        self.target(&variable).map(drop)
    }

    /// Builds the effective configuration. None: traces are off.
    pub(crate) fn target(
        &self,
        variable: &impl Fn(&str) -> Option<String>,
    ) -> Result<Option<ExportTarget>, TracesError> {
        if let Some(ratio) = self.ratio {
            share("traces.ratio", ratio)?;
        }
        let first = |names: [&'static str; 2]| {
            names.into_iter().find_map(|name| variable(name).map(|value| (name, value)))
        };
        let said = self.endpoint.clone().filter(|endpoint| !endpoint.is_empty());
        let said = said.map(|endpoint| ("traces.endpoint", endpoint));
        let Some((key, endpoint)) =
            said.or_else(|| first(["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]))
        else {
            return Ok(None);
        };
        let off = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        match variable("OTEL_TRACES_EXPORTER").as_deref() {
            _ if off => return Ok(None),
            Some("none") => return Ok(None),
            None | Some("otlp") => {}
            Some(other) => {
                let reason = format!("must be otlp or none, not {other:?}");
                return Err(TracesError::Value { key: "OTEL_TRACES_EXPORTER", reason });
            }
        }
        let sampler = self.sampler(variable)?;
        let protocol = match self.protocol {
            Some(protocol) => protocol,
            None => match first(["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]) {
                Some((key, value)) => value.parse().map_err(|reason| TracesError::Value { key, reason })?,
                None => Protocol::Grpc,
            },
        };
        let uri: Option<http::Uri> = endpoint.parse().ok();
        let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
        let Some(uri) = uri.filter(|uri| uri.host().is_some_and(|host| !host.is_empty())) else {
            let reason = format!("must be http://HOST:PORT or https://HOST:PORT, not {endpoint:?}");
            return Err(TracesError::Value { key, reason });
        };
        // An address for traces alone is complete. To any other, `/v1/traces` is appended.
        let whole = protocol == Protocol::Grpc
            || key == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
            || (key == "traces.endpoint" && !matches!(uri.path(), "" | "/"));
        let endpoint = match whole {
            true => endpoint,
            false => format!("{}/v1/traces", endpoint.trim_end_matches('/')),
        };
        let timeout = match first(["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"]) {
            Some((key, value)) => match value.parse() {
                Ok(milliseconds) => Duration::from_millis(milliseconds),
                Err(_) => {
                    let reason = format!("must be a number of milliseconds, not {value:?}");
                    return Err(TracesError::Value { key, reason });
                }
            },
            None => TIMEOUT_DEFAULT,
        };
        let file = |traces, all| first([traces, all]).map(|(_, path)| path.into());
        let tls = ClientTls {
            ca: file("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"),
            cert: file(
                "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
            ),
            key: file("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
        };
        Ok(Some(ExportTarget { endpoint, protocol, sampler, timeout, tls }))
    }

    fn sampler(&self, variable: &impl Fn(&str) -> Option<String>) -> Result<Sampler, TracesError> {
        if let Some(ratio) = self.ratio {
            return Ok(Sampler::ParentBased(Box::new(share("traces.ratio", ratio)?)));
        }
        const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
        let argument = || match variable(ARGUMENT).map(|value| value.parse().map_err(|_| value)) {
            Some(Ok(ratio)) => share(ARGUMENT, ratio),
            Some(Err(value)) => {
                Err(TracesError::Value { key: ARGUMENT, reason: format!("must be 0 to 1, not {value:?}") })
            }
            None => share(ARGUMENT, 1.0),
        };
        let of_parent = |root| Sampler::ParentBased(Box::new(root));
        Ok(match variable("OTEL_TRACES_SAMPLER").as_deref() {
            None | Some("parentbased_always_on") => of_parent(Sampler::AlwaysOn),
            Some("parentbased_always_off") => of_parent(Sampler::AlwaysOff),
            Some("parentbased_traceidratio") => of_parent(argument()?),
            Some("always_on") => Sampler::AlwaysOn,
            Some("always_off") => Sampler::AlwaysOff,
            Some("traceidratio") => argument()?,
            Some(other) => {
                let reason = format!(
                    "{other:?} is none of always_on, always_off, traceidratio, parentbased_always_on, \
                     parentbased_always_off and parentbased_traceidratio"
                );
                return Err(TracesError::Value { key: "OTEL_TRACES_SAMPLER", reason });
            }
        })
    }
}

/// Sampler for a share of all traces.
fn share(key: &'static str, value: f64) -> Result<Sampler, TracesError> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(Sampler::TraceIdRatioBased(value)),
        false => Err(TracesError::Value { key, reason: format!("must be 0 to 1, not {value}") }),
    }
}

/// Environment variable. An empty one counts as unset.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{ExportTarget, Protocol, TracesConfig};

    fn target(config: &TracesConfig, variables: &[(&str, &str)]) -> Result<Option<ExportTarget>, String> {
        let read = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        config.target(&read).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_go_before_variables_and_without_either_nothing_is_sent() {
        let nothing = TracesConfig::default();
        assert!(target(&nothing, &[]).unwrap().is_none());
        assert!(target(&nothing, &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap().is_none());
        let endpoint = |config: &TracesConfig, variables: &[(&str, &str)]| {
            target(config, variables).unwrap().map(|target| (target.endpoint, target.protocol))
        };
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        for (variables, expected) in [
            (vec![all], ("http://collector:4318/", Protocol::Grpc)),
            (vec![all, http], ("http://collector:4318/v1/traces", Protocol::Http)),
            (
                vec![all, http, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://other/here")],
                ("https://other/here", Protocol::Http),
            ),
        ] {
            assert_eq!(endpoint(&nothing, &variables), Some((expected.0.to_owned(), expected.1)));
        }
        for (said, expected) in [
            ("http://mine:1", "http://mine:1/v1/traces"),
            ("http://mine:1/", "http://mine:1/v1/traces"),
            ("http://mine:1/api/otlp", "http://mine:1/api/otlp"),
        ] {
            let config =
                TracesConfig { endpoint: Some(said.into()), protocol: Some(Protocol::Http), ratio: None };
            assert_eq!(endpoint(&config, &[all]), Some((expected.to_owned(), Protocol::Http)));
        }
        for off in [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(endpoint(&nothing, &[all, off]), None);
        }
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let of = |endpoint: &str, ratio| TracesConfig {
            endpoint: Some(endpoint.to_owned()),
            protocol: None,
            ratio,
        };
        let refused =
            |config: &TracesConfig, variables: &[(&str, &str)]| target(config, variables).unwrap_err();
        for wrong in ["localhost:4317", "grpc://a:1", "http://", "http://a b", "/v1/traces"] {
            assert!(
                refused(&of(wrong, None), &[]).starts_with("traces.endpoint: must be http://"),
                "{wrong}"
            );
        }
        assert_eq!(refused(&of("http://a:1", Some(1.5)), &[]), "traces.ratio: must be 0 to 1, not 1.5");
        let fine = of("http://a:1", None);
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ] {
            let error = refused(&fine, &[(name, value)]);
            assert!(error.starts_with(name) && error.contains(value), "{error}");
        }
        let ratio = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")];
        assert!(refused(&fine, &ratio).starts_with("OTEL_TRACES_SAMPLER_ARG: must be 0 to 1"));
    }
}
