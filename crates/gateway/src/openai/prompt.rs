//! Prompt of a chat for chat completions and `/tokenize`: its messages, its template variables, and its ending.

use hanzo_engine_proto::v1;

use crate::{
    declare::{Read, fields},
    error::ApiError,
    fields::{Field, Fields},
    media_bounds::MediaFields,
    openai::thinking::{ReasoningFields, ReasoningSettings},
};

fields! {
    /// Fields that make a prompt of a chat's messages: those of its rendering, and of reasoning.
    pub(crate) struct TemplateFields<'a> {
        ..rendering: RenderingFields<'a>,
        ..reasoning: ReasoningFields,
    }
}

fields! {
    /// Fields of a prompt's rendering: template variables, bounds on media, and the ending.
    pub(crate) struct RenderingFields<'a> {
        ..media: MediaFields<'a>,
        /// Whether the template begins the answer.
        add_generation_prompt?: bool,
        /// Whether the model continues the last message.
        continue_final_message: bool,
        /// Additional variables of the template.
        chat_template_kwargs?: Fields<'a> = Read("object", Field::object),
    }
}

impl TemplateFields<'_> {
    /// Prompt of `messages`, and the reasoning settings.
    pub(crate) fn chat(self, messages: Vec<v1::Message>) -> Result<(v1::Chat, ReasoningSettings), ApiError> {
        let thinking = self.reasoning.settings()?;
        Ok((self.rendering.chat(messages, &thinking)?, thinking))
    }
}

impl RenderingFields<'_> {
    /// Prompt of `messages`.
    pub(crate) fn chat(
        self,
        mut messages: Vec<v1::Message>,
        thinking: &ReasoningSettings,
    ) -> Result<v1::Chat, ApiError> {
        self.media.bounds()?.apply(&mut messages);
        let (generation, continue_final_message) = (self.add_generation_prompt, self.continue_final_message);
        if continue_final_message && generation == Some(true) {
            let problem = "cannot be true together with add_generation_prompt";
            return Err(ApiError::field("continue_final_message", problem));
        }
        Ok(v1::Chat {
            messages,
            tools_json: Vec::new(),
            template_kwargs_json: template_kwargs(self.chat_template_kwargs.as_ref(), thinking),
            // A continued message is not followed by a new turn.
            add_generation_prompt: if continue_final_message { Some(false) } else { generation },
            continue_final_message,
        })
    }
}

/// Template variables: those that are given, and those derived from the reasoning settings.
pub(crate) fn template_kwargs(given: Option<&Fields>, thinking: &ReasoningSettings) -> String {
    let mut json = given.map_or_else(|| "{}".to_owned(), |given| given.object().to_text());
    // Variables derived from other fields are appended, unless the object has them already.
    for (name, value) in thinking.variables() {
        if given.is_none_or(|given| !given.has(name)) {
            json.pop();
            json.push_str(if json.len() > 1 { "," } else { "" });
            json.push_str(&format!("\"{name}\":{value}}}"));
        }
    }
    if json == "{}" { String::new() } else { json }
}
