//! Conversations adapted to templates that only support certain roles, or insist on their order.

use serde_json::json;

use crate::chat::{Chat, Message};

/// Message of the user that reports a tool's result.
pub(crate) fn told(message: &Message) -> Message {
    let mut response = json!({"content": message.content});
    for (key, value) in [("tool", &message.name), ("tool_call_id", &message.tool_call_id)] {
        if let Some(value) = value {
            response[key] = value.as_str().into();
        }
    }
    let content = json!({"tool_response": response}).to_string();
    Message { role: "user".to_owned(), content, ..Message::default() }
}

/// Variants of a conversation with tool results under other roles: `observation` if the template has it, and the
/// user's if it refuses the role of tools.
pub fn with_answers_renamed(chat: &Chat, observes: bool, refuses: bool) -> Vec<Chat> {
    if chat.messages.iter().all(|message| message.role != "tool") {
        return Vec::new();
    }
    let renamed = |rename: &dyn Fn(&Message) -> Message| {
        let is_answer = |message: &Message| message.role == "tool";
        let messages = chat.messages.iter().map(|of| if is_answer(of) { rename(of) } else { of.clone() });
        Chat { messages: messages.collect(), ..chat.clone() }
    };
    let observed = |of: &Message| Message { role: "observation".to_owned(), ..of.clone() };
    let observed = observes.then(|| renamed(&observed));
    observed.into_iter().chain(refuses.then(|| renamed(&told))).collect()
}

/// Conversation in which consecutive messages of the user, or of the assistant, are joined; `None` if there are
/// none. Many templates refuse other conversations.
pub fn alternating(chat: &Chat) -> Option<Chat> {
    let mut messages: Vec<Message> = Vec::with_capacity(chat.messages.len());
    for message in &chat.messages {
        let is_turn = matches!(message.role.as_str(), "user" | "assistant");
        match messages.last_mut().filter(|last| is_turn && last.role == message.role) {
            Some(last) => {
                join(&mut last.content, &message.content);
                last.tool_calls.extend(message.tool_calls.iter().cloned());
            }
            None => messages.push(message.clone()),
        }
    }
    let is_shorter = messages.len() < chat.messages.len();
    is_shorter.then(|| Chat { messages, ..chat.clone() })
}

/// Appends a paragraph to a text in place.
pub(crate) fn join(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(more);
}
