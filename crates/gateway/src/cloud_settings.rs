//! Settings of the upstream server, and their validation.

use std::net::IpAddr;

use hanzo_engine_access::Secret;
use reqwest::Url;

use crate::limits::{CLOUD_MODELS_MAX, MODEL_NAME_BYTES_MAX};

/// Settings as configured.
#[derive(Debug, Clone)]
pub(crate) struct CloudSettings {
    pub(crate) url: Option<String>,
    pub(crate) key: Option<Secret>,
    pub(crate) models: Vec<String>,
    pub(crate) overflow: Vec<String>,
}

/// Local and upstream name of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelMapping {
    pub(crate) here: String,
    pub(crate) there: String,
}

impl ModelMapping {
    /// Whether a request names this model, ignoring case.
    pub(crate) fn is(&self, asked: &str) -> bool {
        self.here.eq_ignore_ascii_case(asked)
    }
}

impl CloudSettings {
    /// Base URL of the upstream server, ending in `/`.
    pub(crate) fn base(&self) -> Result<Option<Url>, String> {
        let Some(url) = &self.url else { return Ok(None) };
        let refuse = |problem: &str| Err(format!("cloud_url: {problem}, such as https://api.openai.com/v1"));
        let Ok(url) = Url::parse(&format!("{}/", url.trim_end_matches('/'))) else {
            return refuse("expected an address");
        };
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return refuse("expected an address at https:// or http://");
        }
        if !url.username().is_empty()
            || url.password().is_some()
            || url.query().is_some()
            || url.fragment().is_some()
        {
            return refuse("expected an address without names, keys and queries");
        }
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let near = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        if url.scheme() == "http" && self.key.is_some() && !near {
            return refuse("cloud_api_key would go in the clear: expected an address at https://");
        }
        Ok(Some(url))
    }
}

/// Checks the settings. The error names the fault.
pub(crate) fn check(settings: &CloudSettings) -> Result<(), String> {
    if settings.base()?.is_none() {
        let set = [
            ("cloud_api_key", settings.key.is_some()),
            ("cloud_models", !settings.models.is_empty()),
            ("cloud_overflow", !settings.overflow.is_empty()),
        ];
        return match set.iter().find(|(_, set)| *set) {
            Some((name, _)) => Err(format!("{name}: it needs cloud_url")),
            None => Ok(()),
        };
    }
    if settings.models.is_empty() && settings.overflow.is_empty() {
        return Err("cloud_url: nothing goes there: name models in cloud_models or cloud_overflow".to_owned());
    }
    for (key, list) in [("cloud_models", &settings.models), ("cloud_overflow", &settings.overflow)] {
        named(list).map_err(|problem| format!("{key}: {problem}"))?;
    }
    let both = settings.models.iter().find(|one| settings.overflow.contains(one));
    both.map_or(Ok(()), |both| Err(format!("cloud_models, cloud_overflow: {both} is in both")))
}

/// Parses the names in `NAME` and `NAME=THEIRS`.
pub(crate) fn named(list: &[String]) -> Result<Vec<ModelMapping>, String> {
    if list.len() > CLOUD_MODELS_MAX {
        return Err(format!("has {} models, at most {CLOUD_MODELS_MAX}", list.len()));
    }
    let one = |text: &String| {
        let (here, there) = text.split_once('=').unwrap_or((text, text));
        let (here, there) = (here.trim(), there.trim());
        let is_name = |name: &str| {
            !name.is_empty()
                && name.len() <= MODEL_NAME_BYTES_MAX
                && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        match is_name(here) && is_name(there) {
            true => Ok(ModelMapping { here: here.to_owned(), there: there.to_owned() }),
            false => Err(format!("{text:?}: expected NAME, or NAME=WHAT-IT-IS-CALLED-THERE")),
        }
    };
    list.iter().map(one).collect()
}
