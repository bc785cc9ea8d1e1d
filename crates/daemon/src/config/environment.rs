//! Settings from the environment.

use figment::{
    Figment,
    providers::{Env, Serialized},
};
use hanzo_engine_access::Secret;
use hanzo_engine_process::settings::DeclaredSettings as _;

use super::Config;

/// Sections that `HANZO_ENGINE_{SECTION}_{KEY}` can set: those with scalar keys. Other variables with the prefix
/// `HANZO_ENGINE_` belong to the other programs, which share the environment.
const ENV_SECTIONS: [&str; 5] = ["server", "store", "engine", "log", "traces"];
/// Key in those sections that belongs to `serve`.
const ENV_ELSEWHERE: &str = "server.port";

/// Settings from the environment, or the key in it that is invalid.
pub(super) fn layer() -> Result<Figment, String> {
    let is_set = |variable: &str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let mut layer = Figment::new();
    let (secrets, others): (Vec<_>, Vec<_>) =
        Config::settings().into_iter().partition(|setting| setting.is_secret);
    // An empty variable counts as unset.
    for setting in others {
        if let Some(variable) = setting.variables.iter().find(|variable| is_set(variable)) {
            let key = setting.key;
            layer = layer.merge(Env::raw().only(&[*variable]).map(move |_| key.into()));
        }
    }
    let secret_keys: Vec<_> = secrets.iter().map(|setting| setting.key).collect();
    let known = move |key: &str| {
        let section = key.split_once('.').map_or(key, |(section, _)| section);
        ENV_SECTIONS.contains(&section) && key != ENV_ELSEWHERE && !secret_keys.contains(&key)
    };
    let sections = Env::prefixed("HANZO_ENGINE_")
        .map(|key| key.as_str().to_ascii_lowercase().replacen('_', ".", 1).into())
        .filter(move |key| known(key.as_str()));
    layer = layer.merge(sections);
    // Taken verbatim: a key may look like a number, and no error may repeat it.
    for setting in &secrets {
        if let Some(key) = Secret::of_first_env(setting.variables)? {
            // Uses figment's default profile, as the layers that override it do.
            layer = layer.merge(Serialized::default(setting.key, key.text()));
        }
    }
    Ok(layer)
}
