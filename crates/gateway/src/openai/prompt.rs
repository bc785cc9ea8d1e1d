//! Prompt of a chat for chat completions and `/tokenize`: its messages, its template variables, and its ending.

use hanzo_engine_proto::v1;

use crate::{
    error::ApiError,
    fields::{Field, Fields},
    media_bounds::MediaBounds,
    openai::{messages, thinking::ReasoningSettings},
};

/// Reads the fields of a chat's prompt: messages, template variables and ending. Also returns the reasoning
/// settings.
pub(crate) fn chat(fields: &mut Fields) -> Result<(v1::Chat, ReasoningSettings), ApiError> {
    let mut messages = messages::read(fields.require("messages")?)?;
    MediaBounds::of_request(fields)?.apply(&mut messages);
    let thinking = ReasoningSettings::read(fields)?;
    let template_kwargs_json = template_kwargs(fields, &thinking)?;
    let generation = fields.take("add_generation_prompt").map(Field::boolean).transpose()?;
    let continue_final_message = fields.flag("continue_final_message")?;
    if continue_final_message && generation == Some(true) {
        let problem = "cannot be true together with add_generation_prompt";
        return Err(ApiError::field("continue_final_message", problem));
    }
    let chat = v1::Chat {
        messages,
        tools_json: Vec::new(),
        template_kwargs_json,
        // A continued message is not followed by a new turn.
        add_generation_prompt: if continue_final_message { Some(false) } else { generation },
        continue_final_message,
    };
    Ok((chat, thinking))
}

/// Template variables: those of the request, and those derived from its reasoning settings.
pub(crate) fn template_kwargs(fields: &mut Fields, thinking: &ReasoningSettings) -> Result<String, ApiError> {
    let given = fields.take("chat_template_kwargs").map(Field::object).transpose()?;
    let mut json = given.as_ref().map_or_else(|| "{}".to_owned(), |given| given.object().to_text());
    // Variables derived from other fields are appended, unless the object has them already.
    for (name, value) in thinking.variables() {
        if given.as_ref().is_none_or(|given| !given.has(name)) {
            json.pop();
            json.push_str(if json.len() > 1 { "," } else { "" });
            json.push_str(&format!("\"{name}\":{value}}}"));
        }
    }
    Ok(if json == "{}" { String::new() } else { json })
}
