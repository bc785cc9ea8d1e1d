//! Size of prompts in bytes. Fewer large prompts are built at the same time.

use hanzo_engine_runtime::chat::{Chat, Message};
use serde_json::Value;

use super::{GenerationRequest, PromptSource, TokenizeInput};
use crate::prompt_builder::is_large;

impl GenerationRequest {
    /// Whether building the prompt takes much memory.
    pub(crate) fn is_large(&self) -> bool {
        !self.media.is_empty() || is_large(self.prompt.bytes() + self.prediction.len())
    }
}

impl PromptSource {
    fn bytes(&self) -> usize {
        match self {
            Self::Chat(chat) => chat_bytes(chat),
            Self::Text { text, .. } => text.len(),
            Self::Tokens(tokens) => size_of_val(&tokens[..]),
            Self::Gap(gap) => {
                let files = gap.files.iter().map(|(name, text)| name.len() + text.len());
                gap.prefix.len() + gap.suffix.len() + gap.middle.len() + files.sum::<usize>()
            }
        }
    }
}

impl TokenizeInput {
    /// Whether tokenizing the input takes much memory.
    pub(crate) fn is_large(&self) -> bool {
        match self {
            Self::Chat(chat, media) => !media.is_empty() || is_large(chat_bytes(chat)),
            Self::Text { text, .. } => is_large(text.len()),
        }
    }
}

fn chat_bytes(chat: &Chat) -> usize {
    let message = |message: &Message| {
        let reasoning = message.reasoning_content.as_ref().map_or(0, String::len);
        message.content.len() + reasoning + message.tool_calls.iter().map(json_bytes).sum::<usize>()
    };
    let messages: usize = chat.messages.iter().map(message).sum();
    let variables = chat.kwargs.iter().map(|(name, value)| name.len() + json_bytes(value));
    messages + chat.tools.iter().map(json_bytes).sum::<usize>() + variables.sum::<usize>()
}

/// Estimated memory of a JSON value in bytes.
fn json_bytes(value: &Value) -> usize {
    let content = match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(json_bytes).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + json_bytes(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    content + size_of::<Value>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{limits::PROMPT_LARGE_BYTES, prompt::RequestedMedia};

    #[test]
    fn megabytes_are_large_wherever_they_stand() {
        let text = || "x".repeat(PROMPT_LARGE_BYTES);
        let message = Message { role: "user".into(), content: "x".into(), ..Message::default() };
        let chat = Chat { messages: vec![message.clone()], ..Chat::default() };
        let of = |chat: Chat| TokenizeInput::Chat(chat, RequestedMedia::default()).is_large();
        assert!(!of(chat.clone()));
        let changed = |change: fn(&mut Message, String)| {
            let mut changed = chat.clone();
            change(&mut changed.messages[0], text());
            of(changed)
        };
        assert!(changed(|message, text| message.content = text));
        assert!(changed(|message, text| message.reasoning_content = Some(text)));
        assert!(changed(|message, text| message.tool_calls = vec![json!({"function": {"arguments": text}})]));
        assert!(of(Chat { tools: vec![json!({"description": text()})], ..chat.clone() }));
        assert!(of(Chat {
            kwargs: [("documents".to_owned(), json!([text()]))].into_iter().collect(),
            ..chat.clone()
        }));
        // Many short messages count like long ones.
        let many = Chat { messages: vec![Message { content: "x".repeat(500), ..message }; 3_000], ..chat };
        assert!(of(many));
        assert!(PromptSource::Tokens(vec![0; PROMPT_LARGE_BYTES / 4]).bytes() >= PROMPT_LARGE_BYTES);
    }
}
