//! Programs that have flags for settings, with the order of the flags in `--help`.

use super::flags::Program;

/// `engined`.
#[derive(Debug)]
pub enum EngineDaemon {}

/// `engine-gateway`.
#[derive(Debug)]
pub enum EngineGateway {}

/// `hanzo-engine serve`.
#[derive(Debug)]
pub enum Serve {}

/// Commands of `hanzo-engine` that load a model: `serve`, `run` and `load`.
#[derive(Debug)]
pub enum ModelCommand {}

#[rustfmt::skip]
impl Program for EngineDaemon {
    const NAME: &'static str = "engined";
    const ORDER: &'static [&'static str] = &[
        "config", "print-config", "check-config", "host", "grpc-port", "admin-port", "api-key", "api-keys-file", "tls-cert",
        "tls-key", "tls-client-ca", "insecure", "private-metrics", "metrics-compat", "model", "model-dir", "threads",
        "max-context", "memory-budget", "fixed-memory", "prefix-cache-dir", "prefix-cache-bytes", "device", "gpu-layers",
        "split-mode", "isolation", "context-shift", "picture-pixels", "picture-pixels-max", "on-demand", "keep-alive",
        "drain", "log-level", "traces-endpoint",
    ];
}

#[rustfmt::skip]
impl Program for EngineGateway {
    const NAME: &'static str = "engine-gateway";
    const ORDER: &'static [&'static str] = &[
        "config", "print-config", "check-config", "log-level", "log-format", "traces-endpoint", "host", "port",
        "allowed-host", "api-key", "api-keys-file", "tls-cert", "tls-key", "tls-client-ca", "cors-origin", "media-hosts",
        "insecure", "private-metrics", "no-access-log", "engine-ca", "engine-cert", "engine-cert-key", "engine-api-key",
        "engine", "upstream", "cloud-url", "cloud-model", "cloud-overflow", "lenient", "no-page", "adapter-updates",
        "responses-dir", "enable-mcp", "mcp-config", "mcp-enabled", "mcp-port", "drain-s", "request-timeout-s",
    ];
}

#[rustfmt::skip]
impl Program for Serve {
    const NAME: &'static str = "serve";
    const ORDER: &'static [&'static str] = &[
        "model", "adapter", "tool-format", "draft-model", "adapter-updates", "yes", "port", "grpc-port", "admin-port",
        "enable-mcp", "mcp-config", "mcp-enabled", "mcp-port", "host", "api-key", "api-keys-file", "tls-cert", "tls-key",
        "tls-client-ca", "cors-origin", "media-hosts", "insecure", "private-metrics", "metrics-compat", "no-page",
        "model-dir", "threads", "max-context", "memory-budget", "fixed-memory", "kv-type", "speculation",
        "prefix-cache-dir", "prefix-cache-bytes", "device", "gpu-layers", "split-mode", "isolation", "context-shift",
        "on-demand", "keep-alive", "log-level", "traces-endpoint", "config", "print-config", "check-config",
        "allowed-host", "lenient", "responses-dir",
    ];
}

#[rustfmt::skip]
impl Program for ModelCommand {
    const NAME: &'static str = "load";
    const ORDER: &'static [&'static str] = &[
        "chat-template", "tokenizer", "mmproj", "override-kv", "rope-scaling", "rope-scale", "rope-freq-scale",
        "rope-freq-base", "yarn-orig-ctx", "yarn-attn-factor", "yarn-beta-fast", "yarn-beta-slow", "isq", "topology",
        "imatrix",
    ];
}
