//! Starts the configured MCP servers, names their tools for models (`SERVER__TOOL`, of letters, digits, `_` and
//! `-`), and calls the tools.

use std::{collections::HashSet, sync::Arc};

use rmcp::model::{ContentBlock, JsonObject, ResourceContents};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::{
    config::ServersConfig,
    limits::{CALL_RESULT_BYTES_MAX, TOOL_NAME_BYTES_MAX},
    server::Server,
};

/// Running MCP servers. Dropping this stops them without waiting; [`Servers::close`] waits.
#[derive(Debug)]
pub struct Servers {
    servers: Vec<Arc<Server>>,
    lives: TaskTracker,
    ended: CancellationToken,
    _dropped: DropGuard,
}

/// Tool as a model sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Name for the model.
    pub name: String,
    /// Description for the model.
    pub description: String,
    /// JSON schema of the arguments.
    pub parameters: JsonObject,
    /// Name of the server that has the tool.
    pub server: String,
    /// Name of the tool on that server.
    pub tool: String,
}

/// Result of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Text for the model, at most [`CALL_RESULT_BYTES_MAX`] bytes.
    pub text: String,
    /// The tool failed or could not be called.
    pub is_error: bool,
}

impl Servers {
    /// Starts the servers without waiting for them.
    pub fn start(config: ServersConfig) -> Servers {
        let (ended, lives) = (CancellationToken::new(), TaskTracker::new());
        let server = |(name, config)| {
            let server = Arc::new(Server::new(name, config));
            lives.spawn(Arc::clone(&server).live(ended.clone()));
            server
        };
        let servers = config.servers.into_iter().map(server).collect();
        lives.close();
        let dropped = ended.clone().drop_guard();
        Servers { servers, lives, ended, _dropped: dropped }
    }

    /// Ends the servers, and waits until their processes are gone.
    pub async fn close(&self) {
        self.ended.cancel();
        self.lives.wait().await;
    }

    /// Waits until every server's first start has succeeded or failed, each within its `start_timeout`. Later
    /// restarts are not waited for.
    pub async fn started(&self) {
        for server in &self.servers {
            server.tried().await;
        }
    }

    /// Up to `max` of the servers' last known tools. If two names are equal after cleaning and cutting, the first
    /// tool is kept.
    pub fn tools(&self, max: usize) -> Vec<Tool> {
        let (mut tools, mut names) = (Vec::new(), HashSet::new());
        for server in &self.servers {
            for tool in server.tools().iter() {
                let name = name(&server.name, &tool.name);
                if tools.len() < max && names.insert(name.clone()) {
                    tools.push(Tool {
                        name,
                        description: tool.description.as_deref().unwrap_or_default().to_owned(),
                        parameters: (*tool.input_schema).clone(),
                        server: server.name.clone(),
                        tool: tool.name.to_string(),
                    });
                }
            }
        }
        tools
    }

    /// Calls a tool. Every failure is reported as an outcome. Dropping the future abandons the call: the server is
    /// not told, and may still complete it.
    pub async fn call(&self, tool: &Tool, arguments_json: &str) -> Outcome {
        let failed =
            |problem: String| Outcome { text: cut(format!("{}: {problem}", tool.tool)), is_error: true };
        let arguments = match arguments_json.trim() {
            "" => Ok(JsonObject::new()),
            text => serde_json::from_str(text),
        };
        let Ok(arguments) = arguments else { return failed("the arguments are no JSON object".to_owned()) };
        let Some(server) = self.servers.iter().find(|server| server.name == tool.server) else {
            return failed("there is no such server".to_owned());
        };
        match server.call(&tool.tool, arguments).await {
            Ok(result) => {
                let text = match (&result.content[..], &result.structured_content) {
                    ([], Some(value)) => value.to_string(),
                    (content, _) => content.iter().map(text).collect::<Vec<_>>().join("\n"),
                };
                Outcome { text: cut(text), is_error: result.is_error == Some(true) }
            }
            Err(problem) => failed(problem),
        }
    }
}

/// Text of a part of a result, for a model.
fn text(content: &ContentBlock) -> String {
    match content {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            _ => "[a resource that is no text]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[resource {}]", link.uri),
        ContentBlock::Image(_) => "[an image]".to_owned(),
        ContentBlock::Audio(_) => "[audio]".to_owned(),
        _ => "[content of another kind]".to_owned(),
    }
}

fn cut(mut text: String) -> String {
    const CUT: &str = "\n[cut off]";
    if text.len() > CALL_RESULT_BYTES_MAX {
        let fits = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=CALL_RESULT_BYTES_MAX - CUT.len()).rev().find(fits).unwrap_or(0);
        text.truncate(end);
        text.push_str(CUT);
    }
    text
}

fn name(server: &str, tool: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    let mut name: String = server.chars().chain("__".chars()).chain(tool.chars()).map(plain).collect();
    name.truncate(TOOL_NAME_BYTES_MAX);
    name
}

#[cfg(test)]
mod tests {
    use super::{CALL_RESULT_BYTES_MAX, cut, name};

    #[test]
    fn names_are_such_as_models_take() {
        assert_eq!(name("my server", "read.file"), "my_server__read_file");
        assert_eq!(name("é", &"x".repeat(99)).len(), 64);
    }

    #[test]
    fn results_are_bounded() {
        assert_eq!(cut("é".to_owned()), "é");
        let long = cut("é".repeat(CALL_RESULT_BYTES_MAX));
        assert!(long.len() <= CALL_RESULT_BYTES_MAX && long.ends_with("[cut off]"));
    }
}
