//! Rewrites conversations for chat templates that lack some roles. Templates are older than some roles. A template
//! that does not know `developer` or tools would silently leave such a message out of the prompt.

use std::{borrow::Cow, collections::HashMap};

use hanzo_engine_formats::{CallPart, Made, ToolFormat};
use serde_json::{Map, Value, json};

use crate::{
    chat::{Chat, Message},
    error::RequestError,
    limits::PARTS_SEARCHED_BYTES_MAX,
    template::{
        ChatTemplate, RenderedPrompt, past_calls,
        turns::{join, told},
    },
};

/// Roles and variables that a template's source mentions.
#[derive(Clone, Copy, Debug)]
pub struct KnownRoles {
    developer: bool,
    tools: bool,
    tool_calls: bool,
    offers: bool,        // reads the list of tools
    parts: bool,         // checks the types of a message's content parts
    xml_tools: bool,     // reads the tools from the variable `xml_tools`
    message_tools: bool, // reads the tools from a field of the system message
    one_call: bool,      // writes only the first call of a message
    /// The role of tool results is `observation`.
    pub observes: bool,
    lost_calls: [bool; 2], // drops calls of messages without text, and with text
}

/// Letters that stand for a tool format's marks in a conversation until the template has written it. They are
/// noncharacters.
const MARK_LETTERS: std::ops::RangeInclusive<char> = '\u{fde0}'..='\u{fdef}';

/// Conversation rewritten for a template.
pub struct Spoken<'a> {
    /// The conversation.
    pub chat: Cow<'a, Chat>,
    /// Letters in its texts, and the marks that they stand for.
    marks: Vec<(char, &'static str)>,
    /// Whether its system prompt lists the tools.
    offers: bool,
}

impl Spoken<'_> {
    /// Replaces the letters by their marks, as if the template had written them.
    pub fn place_marks(&self, rendered: &mut RenderedPrompt) {
        self.marks.iter().for_each(|(letter, mark)| rendered.place_each(*letter, mark));
    }

    /// Variant with the tool list in the user's first message instead of the system prompt, for a template that
    /// refuses or drops system prompts.
    pub fn within_user(&self) -> Option<Chat> {
        let system = self.chat.messages.first().filter(|first| self.offers && first.role == "system")?;
        let mut chat = self.chat.clone().into_owned();
        chat.messages.remove(0);
        let user = chat.messages.iter_mut().find(|message| message.role == "user")?;
        user.content = format!("{}\n\n{}", system.content, user.content);
        Some(chat)
    }

    /// Whether the prompt lacks the system prompt that lists the tools.
    pub fn lacks_offer(&self, rendered: &RenderedPrompt) -> bool {
        let offer = self.chat.messages.first().filter(|_| self.offers);
        offer.is_some_and(|offer| !rendered.text.contains(offer.content.trim()))
    }
}

impl KnownRoles {
    /// Detects the roles in a template's source.
    pub fn of(source: &str) -> KnownRoles {
        KnownRoles {
            developer: source.contains("developer"),
            tools: source.contains("tool"),
            tool_calls: names_calls(source),
            offers: source.contains("tools"),
            parts: source.contains("type") && ["'text'", "\"text\""].iter().any(|word| source.contains(word)),
            xml_tools: source.contains("xml_tools"),
            message_tools: has_message_tools(source),
            one_call: past_calls::writes_one(source),
            observes: source.contains("observation"),
            lost_calls: [false; 2],
        }
    }

    /// Adds facts that only a trial run of the template shows.
    pub fn tried(mut self, template: &ChatTemplate) -> KnownRoles {
        if self.tool_calls {
            self.lost_calls = past_calls::are_lost(template, self.offers);
        }
        self
    }

    /// Whether the template reads the tools from the system message.
    pub fn has_message_tools(&self) -> bool {
        self.message_tools
    }

    /// Whether the template lists tools itself.
    pub fn offers_tools(&self) -> bool {
        self.offers
    }

    /// Whether it may iterate over the parts of a message, and find none in a plain text.
    pub fn reads_parts(&self) -> bool {
        self.parts
    }

    /// Rewrites the parts of a conversation that the template cannot express. A developer becomes the system. An
    /// assistant's calls become text in the model's own format, if tools are offered.
    pub fn spoken<'a>(&self, chat: &'a Chat, format: Option<ToolFormat>) -> Spoken<'a> {
        let is_unknown =
            |message: &Message| !self.developer && message.role == "developer" || self.hides_calls(message);
        let hides_tools = !self.offers && !chat.tools.is_empty();
        let lists = self.xml_tools && !chat.tools.is_empty() && !chat.kwargs.contains_key("xml_tools");
        let within = self.message_tools && !chat.tools.is_empty();
        let splits = self.one_call && chat.messages.iter().any(|message| message.tool_calls.len() > 1);
        let names =
            format == Some(ToolFormat::Kimi) && chat.messages.iter().any(|of| !of.tool_calls.is_empty());
        let mut marks = Vec::new();
        if !hides_tools && !lists && !within && !splits && !names && !chat.messages.iter().any(is_unknown) {
            return Spoken { chat: Cow::Borrowed(chat), marks, offers: false };
        }
        let mut spoken = chat.clone();
        if hides_tools {
            offer(&mut spoken);
        }
        if within && spoken.messages.first().is_none_or(|first| first.role != "system") {
            spoken.messages.insert(0, Message { role: "system".to_owned(), ..Message::default() });
        }
        if names {
            spoken.messages = past_calls::with_named_ids(spoken.messages);
        }
        if splits {
            spoken.messages = past_calls::one_by_one(spoken.messages);
        }
        if lists && !chat.kwargs.contains_key("python_tools") {
            spoken.kwargs.insert("xml_tools".to_owned(), chat.tools.clone().into());
        }
        let format = if hides_tools { Some(ToolFormat::Hermes) } else { format.filter(|_| self.offers) };
        let mut letters = MARK_LETTERS.filter(|letter| !has_letter(chat, *letter));
        for message in &mut spoken.messages {
            if self.hides_calls(message) {
                // A model whose template has no tools has no tokens for the marks.
                let mut place = |mark: &'static str| match marks.iter().find(|(_, known)| *known == mark) {
                    Some((letter, _)) => String::from(*letter),
                    None => match letters.next().filter(|_| !hides_tools) {
                        Some(letter) => {
                            marks.push((letter, mark));
                            String::from(letter)
                        }
                        None => mark.to_owned(),
                    },
                };
                write_calls(message, format, &mut place);
            }
            if !self.developer && message.role == "developer" {
                message.role = "system".to_owned();
            }
        }
        Spoken { chat: Cow::Owned(spoken), marks, offers: hides_tools }
    }

    fn hides_calls(&self, message: &Message) -> bool {
        let is_lost = !self.tool_calls || self.lost_calls[usize::from(!message.content.is_empty())];
        is_lost && !message.tool_calls.is_empty()
    }

    /// Whether [`KnownRoles::reworded`] changes a conversation.
    pub fn can_reword(&self, chat: &Chat) -> bool {
        let is_system = |message: &Message| message.role == "system";
        chat.messages.windows(2).any(|pair| pair.iter().all(is_system))
            || chat.messages.iter().any(|message| message.role == "tool" || !message.tool_calls.is_empty())
    }

    /// Rewrites a conversation that a template refuses or drops parts of. Consecutive system messages become one.
    /// If the template knows no tools, their results become user messages; otherwise each result gets the name of
    /// its tool. IDs of calls become nine letters and digits, because some templates refuse others.
    ///
    /// # Errors
    /// [`RequestError::Interrupted`].
    pub fn reworded(&self, chat: &Chat, interrupted: &dyn Fn() -> bool) -> Result<Chat, RequestError> {
        let mut messages: Vec<Message> = Vec::with_capacity(chat.messages.len());
        let mut calls = Calls::default();
        for message in &chat.messages {
            if interrupted() {
                return Err(RequestError::Interrupted);
            }
            match messages.last_mut() {
                Some(last) if last.role == "system" && message.role == "system" => {
                    join(&mut last.content, &message.content);
                }
                _ if message.role == "tool" && !self.tools => messages.push(told(message)),
                _ => messages.push(calls.reworded(message)),
            }
        }
        Ok(Chat {
            messages,
            tools: chat.tools.clone(),
            kwargs: chat.kwargs.clone(),
            add_generation_prompt: chat.add_generation_prompt,
            continue_final_message: chat.continue_final_message,
            pictures: chat.pictures,
            sounds: chat.sounds,
        })
    }
}

/// Whether a template's source reads the tools from a message.
fn has_message_tools(source: &str) -> bool {
    source.contains("['tools']") || source.contains("[\"tools\"]")
}

/// Whether a template reads the field `tool_calls`, instead of only writing a tag of that name.
fn names_calls(source: &str) -> bool {
    source.match_indices("tool_calls").any(|(at, _)| !source[..at].ends_with(['<', '/']))
}

/// Whether a letter occurs in any message of a conversation.
fn has_letter(chat: &Chat, letter: char) -> bool {
    let calls = |message: &Message| message.tool_calls.iter().any(|call| call.to_string().contains(letter));
    chat.messages.iter().any(|message| message.content.contains(letter) || calls(message))
}

/// Moves the calls of a message into its text in the model's format, with marks as returned by `place`; as JSON
/// without a format.
fn write_calls(
    message: &mut Message,
    format: Option<ToolFormat>,
    place: &mut impl FnMut(&'static str) -> String,
) {
    let calls = std::mem::take(&mut message.tool_calls);
    let Some(format) = format else {
        let calls: Vec<_> = calls.iter().map(|call| &call["function"]).collect();
        return join(&mut message.content, &json!({"tool_calls": calls}).to_string());
    };
    let none = Map::new();
    let arguments: Vec<Value> = calls
        .iter()
        .map(|call| match &call["function"]["arguments"] {
            Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
            arguments => arguments.clone(),
        })
        .collect();
    let made = calls.iter().zip(&arguments).map(|(call, arguments)| Made {
        name: call["function"]["name"].as_str().unwrap_or_default(),
        arguments: arguments.as_object().unwrap_or(&none),
    });
    let mut written = String::new();
    for part in format.write(&made.collect::<Vec<_>>()) {
        match part {
            CallPart::Mark(mark) => written.push_str(&place(mark)),
            CallPart::Text(text) => written.push_str(&text),
        }
    }
    let said = std::mem::take(&mut message.content);
    message.content = match format.between() {
        None => written + &said,
        Some(_) if said.is_empty() => written,
        Some(between) => format!("{said}{between}{written}"),
    };
}

/// Variant with the arguments of calls as JSON text, for a template that concatenates them with strings; `None` if
/// there are no calls.
pub fn with_spelled_arguments(chat: &Chat) -> Option<Chat> {
    if chat.messages.iter().all(|message| message.tool_calls.is_empty()) {
        return None;
    }
    let mut spelled = chat.clone();
    for call in spelled.messages.iter_mut().flat_map(|message| &mut message.tool_calls) {
        if let Some(arguments) =
            call.pointer_mut("/function/arguments").filter(|arguments| arguments.is_object())
        {
            *arguments = arguments.to_string().into();
        }
    }
    Some(spelled)
}

/// Calls of a conversation by ID: the name of the tool, and an ID of nine letters and digits.
#[derive(Default)]
struct Calls(HashMap<String, (String, String)>);

impl Calls {
    fn reworded(&mut self, message: &Message) -> Message {
        let mut message = message.clone();
        for call in &mut message.tool_calls {
            let id = call["id"].as_str().unwrap_or_default().to_owned();
            let name = call["function"]["name"].as_str().unwrap_or_default().to_owned();
            let fits = id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
            let short = if fits { id.clone() } else { format!("c{:08}", self.0.len() + 1) };
            call["id"] = short.as_str().into();
            self.0.insert(id, (name, short));
        }
        let answered = message.tool_call_id.as_ref().and_then(|id| self.0.get(id));
        if let Some((name, short)) = answered.filter(|_| message.role == "tool").cloned() {
            message.tool_call_id = Some(short);
            message.name.get_or_insert(name);
        }
        message
    }
}

/// Adds the list of tools, and how to call them, to the system prompt, for a template without tools.
fn offer(chat: &mut Chat) {
    let mut offered =
        String::from("You may call functions to help with the user's request. They are, as JSON:\n<tools>\n");
    for tool in std::mem::take(&mut chat.tools) {
        offered.push_str(&format!("{tool}\n"));
    }
    offered.push_str(
        "</tools>\n\nTo call one, write its name and its arguments as a JSON object between tags, and nothing after \
         them:\n<tool_call>\n{\"name\": <function name>, \"arguments\": <JSON object>}\n</tool_call>",
    );
    match chat.messages.first_mut() {
        Some(first) if matches!(first.role.as_str(), "system" | "developer") => {
            join(&mut first.content, &offered)
        }
        _ => chat
            .messages
            .insert(0, Message { role: "system".to_owned(), content: offered, ..Message::default() }),
    }
}

/// Whether rendering succeeded and the prompt holds the user's last message.
pub fn asks(rendered: &Result<RenderedPrompt, RequestError>, chat: &Chat) -> bool {
    let last = chat.messages.iter().rfind(|message| message.role == "user");
    let said = last.map_or("", |message| message.content.trim());
    rendered.as_ref().is_ok_and(|rendered| rendered.text.contains(said))
}

/// Whether the prompt lacks a message of the system or a tool. Templates write messages in order, so each search
/// starts where the last one ended. If they are out of order, whatever is unchecked after
/// [`PARTS_SEARCHED_BYTES_MAX`] bytes counts as present.
///
/// # Errors
/// [`RequestError::Interrupted`].
pub fn lacks_a_part(
    rendered: &RenderedPrompt,
    chat: &Chat,
    interrupted: &dyn Fn() -> bool,
) -> Result<bool, RequestError> {
    let text = &rendered.text;
    let (mut at, mut searched) = (0, 0);
    let is_part = |message: &&Message| matches!(message.role.as_str(), "system" | "tool" | "observation");
    for message in chat.messages.iter().filter(is_part) {
        if interrupted() {
            return Err(RequestError::Interrupted);
        }
        let content = message.content.trim();
        // Equal messages may count as one.
        let found = match text[at..].find(content) {
            Some(after) => {
                searched += after + content.len();
                Some(at + after)
            }
            None => {
                let found = text.find(content);
                searched += text.len() - at + found.map_or(text.len(), |found| found + content.len());
                found
            }
        };
        match found {
            None => return Ok(true),
            Some(_) if searched > PARTS_SEARCHED_BYTES_MAX => return Ok(false),
            Some(found) => at = found,
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn message(role: &str, content: &str) -> Message {
        Message { role: role.into(), content: content.into(), ..Message::default() }
    }

    /// Knows three roles and drops the others.
    const SILENT: &str = "{% for m in messages %}{% if m.role == 'system' %}S:{{ m.content }};\
                          {% elif m.role == 'user' %}U:{{ m.content }};{% elif m.role == 'assistant' %}A:{{ m.content }};\
                          {% endif %}{% endfor %}";

    #[test]
    fn tools_are_offered_where_a_template_speaks_of_none() {
        let tool = json!({"type": "function", "function": {"name": "weather"}});
        let call = json!({"id": "1", "type": "function", "function": {"name": "weather", "arguments": {}}});
        let messages =
            vec![message("user", "Rome?"), Message { tool_calls: vec![call], ..message("assistant", "") }];
        let chat = Chat { messages, tools: vec![tool], ..Chat::default() };
        let spoken = KnownRoles::of(SILENT).spoken(&chat, None).chat.into_owned();
        let said = &spoken.messages[0];
        assert!(said.role == "system" && said.content.contains(r#"{"name":"weather"}"#), "{said:?}");
        assert!(said.content.contains("<tool_call>") && spoken.tools.is_empty());
        assert!(spoken.messages[2].content.starts_with("<tool_call>\n{"), "{spoken:?}");
        let known = KnownRoles::of("{% if tools %}{{ tools }}{% endif %}{{ message.tool_calls }}");
        assert_eq!(known.spoken(&chat, None).chat.messages.len(), 2);
    }

    #[test]
    fn many_messages_are_joined_and_looked_for_in_one_pass() {
        // A pass for each message would copy and search 16 MiB of text each time: 8 GiB for every thousand
        // messages.
        let roles = KnownRoles::of("");
        let contents: Vec<String> =
            (0..16_384).map(|number| format!("{number:08} {}", "x".repeat(1015))).collect();
        let messages: Vec<Message> = contents.iter().map(|content| message("system", content)).collect();
        let chat = Chat { messages, ..Chat::default() };
        assert!(roles.can_reword(&chat));
        let began = Instant::now();
        let reworded = roles.reworded(&chat, &|| false).expect("not interrupted");
        let said = reworded.messages[0].content.clone();
        assert_eq!((reworded.messages.len(), said.len()), (1, contents.join("\n\n").len()));
        let mut rendered = RenderedPrompt { text: said, from_request: Vec::new() };
        assert_eq!(lacks_a_part(&rendered, &chat, &|| false), Ok(false));
        assert_eq!(lacks_a_part(&rendered, &reworded, &|| false), Ok(false));
        // Out of order, the search gives up.
        let mut backwards = chat.clone();
        backwards.messages.reverse();
        assert_eq!(lacks_a_part(&rendered, &backwards, &|| false), Ok(false));
        rendered.text.truncate(rendered.text.len() - 1);
        assert_eq!(lacks_a_part(&rendered, &chat, &|| false), Ok(true));
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    }

    #[test]
    fn rewording_can_be_left_at_each_message() {
        let roles = KnownRoles::of("");
        let chat = Chat { messages: vec![message("system", "x"); 100], ..Chat::default() };
        let rendered = RenderedPrompt { text: "x".into(), from_request: Vec::new() };
        let asked = std::cell::Cell::new(0);
        let interrupted = || {
            asked.set(asked.get() + 1);
            asked.get() % 10 == 0
        };
        assert_eq!(lacks_a_part(&rendered, &chat, &interrupted), Err(RequestError::Interrupted));
        assert_eq!(roles.reworded(&chat, &interrupted).err(), Some(RequestError::Interrupted));
        assert_eq!(asked.get(), 20);
        // In any order, and equal messages once.
        let chat = Chat {
            messages: vec![message("system", "a"), message("tool", "b"), message("system", "a")],
            ..chat
        };
        for (text, lacks) in [("ab", false), ("ba", false), ("aab", false), ("b", true), ("a", true)] {
            let rendered = RenderedPrompt { text: text.into(), from_request: Vec::new() };
            assert_eq!(lacks_a_part(&rendered, &chat, &|| false), Ok(lacks), "{text}");
        }
    }
}
