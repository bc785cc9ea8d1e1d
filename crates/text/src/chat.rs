//! Conversation for a chat template, in the model's terms rather than a protocol's.

use serde::Serialize;
use serde_json::{Map, Value};

/// Placeholder for a picture in the content of a message. It is a noncharacter (Unicode 16.0, 23.7), so no text
/// contains it.
pub const PICTURE: char = '\u{fdd0}';

/// Placeholder for a sound in the content of a message. It is a noncharacter (Unicode 16.0, 23.7), so no text
/// contains it.
pub const SOUND: char = '\u{fdd1}';

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
    /// Leave the last message open for the model to continue.
    pub continue_final_message: bool,
    /// Number of pictures in the messages; each is a [`PICTURE`] in their contents. If 0, that
    /// letter is ordinary text.
    pub pictures: usize,
    /// Number of sounds in the messages; each is a [`SOUND`] in their contents, as for pictures.
    pub sounds: usize,
}

/// Default opening of the model's makers, put before every conversation.
#[derive(Clone, Debug, Default)]
pub struct ChatOpening {
    /// A system prompt, for conversations that begin without one.
    pub system: Option<String>,
    /// Messages between the system prompt and the conversation's first.
    pub messages: Vec<Message>,
}

/// Message of a conversation. Absent fields are undefined in the template, so that its tests for definedness work.
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

impl Message {
    fn is_system(&self) -> bool {
        matches!(self.role.as_str(), "system" | "developer")
    }
}

impl ChatOpening {
    /// The conversation with this opening in front, or `None` if the opening adds nothing.
    pub fn before(&self, chat: &Chat) -> Option<Chat> {
        let own = chat.messages.iter().take_while(|message| message.is_system()).count();
        let system = self.system.as_ref().filter(|_| own == 0);
        if system.is_none() && self.messages.is_empty() {
            return None;
        }
        let (first, rest) = chat.messages.split_at(own);
        let system = system.map(|text| Message {
            role: "system".to_owned(),
            content: text.clone(),
            ..Message::default()
        });
        let messages = system.iter().chain(first).chain(&self.messages).chain(rest).cloned().collect();
        Some(Chat { messages, ..chat.clone() })
    }

    /// Variant for templates that do not know system prompts: this system prompt is prepended to the user's first
    /// message, as templates without system prompts do. Returns `None` if the conversation has its own system
    /// prompt.
    pub fn within(&self, chat: &Chat) -> Option<Chat> {
        let system = self.system.as_ref()?;
        let mut chat =
            self.before(chat).filter(|_| !chat.messages.first().is_some_and(Message::is_system))?;
        chat.messages.remove(0);
        let user = chat.messages.iter_mut().find(|message| message.role == "user")?;
        user.content = format!("{system}\n\n{}", user.content);
        Some(chat)
    }
}
