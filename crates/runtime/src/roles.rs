//! Conversations in the words that a chat template knows. Templates are older than some roles: one that has never
//! heard of `developer` or of tools would leave such a message out of the prompt without a word.

use std::borrow::Cow;

use serde_json::json;

use crate::{
    chat::{Chat, Message},
    template::Rendered,
};

/// What a template's source speaks of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownRoles {
    developer: bool,
    tools: bool,
    tool_calls: bool,
}

impl KnownRoles {
    /// Of a template's source.
    pub(crate) fn of(source: &str) -> KnownRoles {
        KnownRoles {
            developer: source.contains("developer"),
            tools: source.contains("tool"),
            tool_calls: source.contains("tool_calls"),
        }
    }

    /// The conversation with what the template cannot know said otherwise: a developer is the system, and the calls
    /// an assistant made stand in its text.
    pub(crate) fn spoken<'a>(&self, chat: &'a Chat) -> Cow<'a, Chat> {
        let is_unknown =
            |message: &Message| !self.developer && message.role == "developer" || self.hides_calls(message);
        if !chat.messages.iter().any(is_unknown) {
            return Cow::Borrowed(chat);
        }
        let mut spoken = chat.clone();
        for message in &mut spoken.messages {
            if self.hides_calls(message) {
                let calls: Vec<_> = message.tool_calls.iter().map(|call| &call["function"]).collect();
                let calls = json!({"tool_calls": calls}).to_string();
                message.content = joined(&message.content, &calls);
                message.tool_calls.clear();
            }
            if !self.developer && message.role == "developer" {
                message.role = "system".to_owned();
            }
        }
        Cow::Owned(spoken)
    }

    fn hides_calls(&self, message: &Message) -> bool {
        !self.tool_calls && !message.tool_calls.is_empty()
    }

    /// The same conversation for a template that refuses it, or leaves a part out: system messages in a row are one,
    /// and to a template that knows no tools the user says what they answered. None where that changes nothing.
    pub(crate) fn reworded(&self, chat: &Chat) -> Option<Chat> {
        let mut messages: Vec<Message> = Vec::with_capacity(chat.messages.len());
        let mut changed = false;
        for message in &chat.messages {
            match messages.last_mut() {
                Some(last) if last.role == "system" && message.role == "system" => {
                    last.content = joined(&last.content, &message.content);
                    changed = true;
                }
                _ if message.role == "tool" && !self.tools => {
                    messages.push(told(message));
                    changed = true;
                }
                _ => messages.push(message.clone()),
            }
        }
        changed.then(|| Chat { messages, ..chat.clone() })
    }
}

/// A tool's answer as the user says it.
fn told(message: &Message) -> Message {
    let mut response = json!({"content": message.content});
    for (key, value) in [("tool", &message.name), ("tool_call_id", &message.tool_call_id)] {
        if let Some(value) = value {
            response[key] = value.as_str().into();
        }
    }
    let content = json!({"tool_response": response}).to_string();
    Message { role: "user".to_owned(), content, ..Message::default() }
}

fn joined(first: &str, second: &str) -> String {
    if first.is_empty() || second.is_empty() {
        [first, second].concat()
    } else {
        format!("{first}\n\n{second}")
    }
}

/// Whether the prompt of a conversation lacks what its system, or a tool, says.
pub(crate) fn lacks_a_part(rendered: &Rendered, chat: &Chat) -> bool {
    let is_there = |message: &Message| rendered.text.contains(message.content.trim());
    chat.messages
        .iter()
        .any(|message| matches!(message.role.as_str(), "system" | "tool") && !is_there(message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{
        chat::{Chat, Message},
        load::ModelFiles,
        text::TextModel,
    };

    /// The prompt that a template makes of a conversation.
    fn prompt(template: &str, messages: &[Message]) -> Result<String, String> {
        let demo = "../../models/hanzo-demo/hanzo-demo-Q8_0.gguf";
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(demo);
        let mut files = ModelFiles::open(&path).expect("the demo model opens");
        files.text.chat_template = Some(template.to_owned());
        let model = TextModel::load(&files).expect("loads");
        let chat = Chat { messages: messages.to_vec(), ..Chat::default() };
        model.render(&chat, &|| false).map(|rendered| rendered.text).map_err(|error| error.to_string())
    }

    fn message(role: &str, content: &str) -> Message {
        Message { role: role.into(), content: content.into(), ..Message::default() }
    }

    /// Knows three roles and is silent on others.
    const SILENT: &str = "{% for m in messages %}{% if m.role == 'system' %}S:{{ m.content }};\
                          {% elif m.role == 'user' %}U:{{ m.content }};{% elif m.role == 'assistant' %}A:{{ m.content }};\
                          {% endif %}{% endfor %}";
    /// Takes one system message, the first.
    const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
                          {{ raise_exception('system comes first') }}{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}";
    /// Looks at the first message alone.
    const FIRST: &str = "{% if messages[0].role == 'system' %}S:{{ messages[0].content }};{% endif %}\
                         {% for m in messages if m.role == 'user' %}U:{{ m.content }};{% endfor %}";
    const OPENAI: &str = "{% for m in messages %}{% if m.role in ['system', 'developer'] %}{{ m.role }}!{{ m.content }};\
                          {% else %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}";

    #[test]
    fn a_developer_is_the_system_where_a_template_knows_no_other() {
        let [developer, system, user] =
            [message("developer", "Obey."), message("system", "Be kind."), message("user", "hi")];
        let both = [system.clone(), developer.clone(), user.clone()];
        let one = [developer, user];
        assert_eq!(prompt(SILENT, &one).as_deref(), Ok("S:Obey.;U:hi;"));
        assert_eq!(prompt(STRICT, &one).as_deref(), Ok("system:Obey.;user:hi;"));
        assert_eq!(prompt(OPENAI, &one).as_deref(), Ok("developer!Obey.;user:hi;"));
        // As it is where the template takes it, together where it refuses or forgets one.
        assert_eq!(prompt(SILENT, &both).as_deref(), Ok("S:Be kind.;S:Obey.;U:hi;"));
        assert_eq!(prompt(STRICT, &both).as_deref(), Ok("system:Be kind.\n\nObey.;user:hi;"));
        assert_eq!(prompt(FIRST, &both).as_deref(), Ok("S:Be kind.\n\nObey.;U:hi;"));
        assert_eq!(prompt(OPENAI, &both).as_deref(), Ok("system!Be kind.;developer!Obey.;user:hi;"));
        // What it refuses for another reason is refused in its own words.
        let late = [message("user", "hi"), message("developer", "Obey.")];
        assert!(prompt(STRICT, &late).expect_err("refused").contains("system comes first"));
    }

    #[test]
    fn tools_are_not_left_out_by_a_template_that_has_never_heard_of_them() {
        let calls = vec![json!({"id": "1", "type": "function",
                                "function": {"name": "weather", "arguments": {"city": "Rome"}}})];
        let messages = [
            message("user", "Rome?"),
            Message { tool_calls: calls, ..message("assistant", "") },
            Message { tool_call_id: Some("1".into()), ..message("tool", "sunny") },
        ];
        let said = prompt(SILENT, &messages).expect("renders");
        assert!(said.contains(r#"A:{"tool_calls":[{"#) && said.contains(r#""city":"Rome""#), "{said}");
        assert!(said.contains(r#"U:{"tool_response":{"content":"sunny","tool_call_id":"1"}};"#), "{said}");
        // One that writes any role has lost nothing.
        let any = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
        assert!(prompt(any, &messages).expect("renders").ends_with("tool:sunny;"));
        let knows = "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}\
                     {% if m.role != 'tool' %}{{ m.content }}{% endif %};{% endfor %}";
        assert_eq!(
            prompt(knows, &messages).as_deref(),
            Ok("Rome?;weather;;"),
            "what it leaves out is its own choice"
        );
    }
}
