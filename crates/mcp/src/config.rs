//! Configuration of MCP servers, in the format of Claude Desktop and others: `{"mcpServers": {NAME: …}}`.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;

use crate::limits::{CALL_TIMEOUT, CONFIG_BYTES_MAX, SERVERS_MAX, START_TIMEOUT, TIMEOUT_S_MAX};

/// Error of a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The content is invalid.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// Fault, without values: they may be secrets.
        reason: String,
    },
}

/// Configured servers by name.
#[derive(Debug, Clone, Default)]
pub struct ServersConfig {
    /// Servers that are not disabled.
    pub servers: BTreeMap<String, ServerConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    mcp_servers: BTreeMap<String, ServerConfig>,
}

/// Configuration of one server. Unknown fields, which other programs write into such files, are refused by
/// name, so that no setting is silently ignored.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Program to start. It talks over stdin and stdout.
    #[serde(default)]
    pub command: Option<String>,
    /// Arguments of the program.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables in addition to `PATH`, `HOME` and the like of this process.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory of the program.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// URL of a server that talks streamable HTTP.
    #[serde(default)]
    pub url: Option<String>,
    /// Request headers, such as authorization.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Transport: `stdio`, or `http` (`streamable-http`, `streamableHttp`). Default: by `command` or `url`.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// Ignore this server.
    #[serde(default)]
    pub disabled: bool,
    /// Names of the only tools to offer, as the server names them.
    #[serde(default, alias = "allowedTools")]
    pub allowed_tools: Option<Vec<String>>,
    /// Timeout of a call in seconds.
    #[serde(default)]
    pub timeout: Option<u64>,
    /// Timeout of the start in seconds.
    #[serde(default, alias = "startTimeout")]
    pub start_timeout: Option<u64>,
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments, variables, headers and URLs may contain secrets.
        f.debug_struct("ServerConfig").field("command", &self.command).finish_non_exhaustive()
    }
}

impl ServerConfig {
    pub(crate) fn call_timeout(&self) -> Duration {
        self.timeout.map_or(CALL_TIMEOUT, Duration::from_secs)
    }

    pub(crate) fn start_timeout(&self) -> Duration {
        self.start_timeout.map_or(START_TIMEOUT, Duration::from_secs)
    }

    pub(crate) fn offers(&self, tool: &str) -> bool {
        self.allowed_tools.as_ref().is_none_or(|allowed| allowed.iter().any(|name| name == tool))
    }

    fn check(&self) -> Result<(), String> {
        let http = match self.kind.as_deref() {
            None => self.url.is_some(),
            Some("stdio") => false,
            Some("http" | "streamable-http" | "streamableHttp" | "streamable_http") => true,
            Some("sse") => return Err("type: sse is the transport of 2024-11-05, which is not spoken; use the server's streamable HTTP".to_owned()),
            Some(_) => return Err("type: expected stdio or http".to_owned()),
        };
        match (http, &self.command, &self.url) {
            (true, None, Some(url)) if url.starts_with("http://") || url.starts_with("https://") => {}
            (true, None, _) => return Err("url: expected http:// or https://".to_owned()),
            (true, Some(_), _) | (false, Some(_), Some(_)) => {
                return Err("command and url: expected one of them".to_owned());
            }
            (false, None, _) => return Err("command: required, or else url".to_owned()),
            (false, Some(command), None) if command.is_empty() => {
                return Err("command: must not be empty".to_owned());
            }
            (false, Some(_), None) => {}
        }
        if http && !(self.args.is_empty() && self.env.is_empty() && self.cwd.is_none()) {
            return Err("args, env, cwd: only with command".to_owned());
        }
        if !http && !self.headers.is_empty() {
            return Err("headers: only with url".to_owned());
        }
        for (name, value) in &self.headers {
            let sound =
                http::HeaderName::try_from(name).is_ok() && http::HeaderValue::try_from(value).is_ok();
            if !sound {
                return Err("headers: one is no header of HTTP".to_owned());
            }
        }
        let seconds = [("timeout", self.timeout), ("start_timeout", self.start_timeout)];
        match seconds.iter().find(|(_, s)| s.is_some_and(|s| s == 0 || s > TIMEOUT_S_MAX)) {
            Some((name, _)) => Err(format!("{name}: expected seconds, 1 to {TIMEOUT_S_MAX}")),
            None => Ok(()),
        }
    }
}

impl ServersConfig {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`], with the server and the field.
    pub fn read(path: &Path) -> Result<ServersConfig, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        fs::File::open(path)
            .map_err(failed)?
            .take(CONFIG_BYTES_MAX + 1)
            .read_to_string(&mut text)
            .map_err(failed)?;
        ServersConfig::parse(&text).map_err(|reason| ConfigError::Invalid { path: path.to_owned(), reason })
    }

    fn parse(text: &str) -> Result<ServersConfig, String> {
        if text.len() as u64 > CONFIG_BYTES_MAX {
            return Err(format!("it is over {CONFIG_BYTES_MAX} bytes long"));
        }
        // The message of serde_json may repeat a value, which may be a secret: only a field name and the place
        // are reported.
        let Written { mut mcp_servers } = serde_json::from_str::<Written>(text).map_err(|error| {
            let said = error.to_string();
            let field = said.starts_with("unknown field") || said.starts_with("missing field");
            let what = if field { said.split(" at line").next().unwrap_or_default() } else { "not such a file" };
            format!("{what} at line {} column {}; expected {{\"mcpServers\": {{NAME: {{\"command\": …}} or {{\"url\": …}}}}}}", error.line(), error.column())
        })?;
        for (name, server) in &mcp_servers {
            if name.is_empty() || name.len() > 64 {
                return Err("mcpServers: a name has 1 to 64 bytes".to_owned());
            }
            server.check().map_err(|reason| format!("mcpServers.{name}: {reason}"))?;
        }
        mcp_servers.retain(|_, server| !server.disabled);
        if mcp_servers.len() > SERVERS_MAX {
            return Err(format!("mcpServers: has {}, at most {SERVERS_MAX}", mcp_servers.len()));
        }
        Ok(ServersConfig { servers: mcp_servers })
    }
}

#[cfg(test)]
mod tests {
    // In tests, an unwrap that panics is a failure.
    #![allow(clippy::unwrap_used)]

    use super::ServersConfig;

    #[test]
    fn the_layout_that_others_have() {
        let text = r#"{"other": 1, "mcpServers": {
            "files": {"command": "npx", "args": ["-y", "x"], "env": {"TOKEN": "t"}, "allowed_tools": ["read"], "timeout": 5},
            "web": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer s"}},
            "off": {"command": "x", "disabled": true}
        }}"#;
        let config = ServersConfig::parse(text).unwrap();
        assert_eq!(config.servers.keys().collect::<Vec<_>>(), ["files", "web"]);
        let files = &config.servers["files"];
        assert!(files.offers("read") && !files.offers("write"));
        assert_eq!(files.call_timeout().as_secs(), 5);
        assert!(!format!("{config:?}").contains("Bearer"));
    }

    #[test]
    fn what_is_no_server_is_refused_by_name_and_no_secret_is_repeated() {
        for (server, says) in [
            (r#"{}"#, "a: command: required"),
            (r#"{"command": ""}"#, "a: command: must"),
            (r#"{"command": "x", "url": "http://y"}"#, "expected one of them"),
            (r#"{"url": "ftp://hush"}"#, "a: url"),
            (r#"{"url": "http://x", "type": "sse"}"#, "a: type: sse"),
            (r#"{"url": "http://x", "args": ["hush"]}"#, "a: args"),
            (r#"{"command": "x", "headers": {"a": "hush"}}"#, "a: headers"),
            (r#"{"url": "http://x", "headers": {"a": "hush\n"}}"#, "a: headers"),
            (r#"{"command": "x", "timeout": 0}"#, "a: timeout"),
            (r#"{"command": "x", "autoApprove": []}"#, "unknown field `autoApprove`"),
            (r#"{"command": ["hush"]}"#, "not such a file at line 1"),
            (r#"{"command": "x", "env": {"A": {"hush": 1}}}"#, "not such a file"),
        ] {
            let error = ServersConfig::parse(&format!(r#"{{"mcpServers": {{"a": {server}}}}}"#)).unwrap_err();
            assert!(error.contains(says) && !error.contains("hush"), "{server}: {error}");
        }
        assert!(ServersConfig::parse("{}").unwrap_err().contains("mcpServers"));
    }
}
