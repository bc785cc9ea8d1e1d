//! Requests to load models: a client's, or the configuration's.

use crate::{adapters::WantedAdapter, config::ModelConfig, keep_alive::KeepAlive, sizing::LoadOptions};

/// Request to load a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadRequest {
    /// Name in the store, `hanzo-demo`, or path.
    pub(crate) source: String,
    /// Name that the model is served under.
    pub(crate) alias: Option<String>,
    /// Options of the load.
    pub(crate) want: LoadOptions,
    /// Adapters to load with the model.
    pub(crate) adapters: Vec<WantedAdapter>,
    /// Idle time after which it is unloaded; `None`: it stays until it is unloaded.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Whether the load is for a coming request, which may set another idle time.
    pub(crate) as_request: bool,
    /// Whether the configuration loads it at startup.
    pub(crate) at_start: bool,
}

/// Load requests for the configured models, to load at startup or on demand.
pub(crate) fn configured(models: &[ModelConfig]) -> Vec<LoadRequest> {
    let request = |model: &ModelConfig| {
        let overrides = match model.overrides.read() {
            Ok(overrides) => overrides,
            Err(error) => {
                tracing::error!(model = model.source, %error, "a model of the configuration cannot be loaded");
                return None;
            }
        };
        Some(LoadRequest {
            source: model.source.clone(),
            alias: model.alias.clone(),
            want: LoadOptions {
                context_tokens_max: model.context_tokens_max,
                kv_bytes: model.kv_bytes,
                tool_format: model.format_of_calls(),
                picture_pixels: model.picture_pixels,
                draft_model: model.draft_model.clone(),
                gpu_layers: model.gpu_layers,
                gpu_devices: model.gpu_devices.clone(),
                overrides,
            },
            adapters: model
                .adapters
                .iter()
                .map(|(name, path)| WantedAdapter { name: name.clone(), path: path.clone() })
                .collect(),
            keep_alive: model.keep_alive,
            as_request: false,
            at_start: model.at_start,
        })
    };
    models.iter().filter_map(request).collect()
}
