//! A conversation as a chat template sees it: the model's words, not a protocol's.

use serde::Serialize;
use serde_json::{Map, Value};

/// A conversation to be rendered into a prompt.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// The messages, oldest first; not empty.
    pub messages: Vec<Message>,
    /// Tools the template may offer, as the JSON objects it expects.
    pub tools: Vec<Value>,
    /// Extra template variables, such as `enable_thinking`.
    pub kwargs: Map<String, Value>,
    /// End the prompt where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Leave the last message open for the model to go on with.
    pub continue_final_message: bool,
}

/// One message. Absent fields are not defined in the template, as its tests for definedness expect.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Message {
    /// system, developer, user, assistant or tool.
    pub role: String,
    /// The text.
    pub content: String,
    /// The speaker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Calls the assistant made: `{"id", "type": "function", "function": {"name", "arguments"}}`, arguments as
    /// a JSON object where they parse as one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Value>,
    /// The call a tool's message answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The assistant's reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}
