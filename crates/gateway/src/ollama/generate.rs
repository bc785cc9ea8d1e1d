//! `POST /api/generate`: one prompt, as a chat message, as plain text (`raw`), or with a suffix to fill in the
//! middle.

use std::{sync::Arc, time::Instant};

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1::{self, infer_request::Prompt};

use super::{
    chat::{ChatRequest, OllamaFields, run},
    error::OllamaError,
    messages::{images, part},
    reply::AnswerField,
};
use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    config::Config,
    declare::{Declaration as _, Read, fields},
    error::ApiError,
    fields::{Field, Fields},
    names::SentFields,
    request_id::RequestId,
};

/// Handler of the route.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, OllamaError> {
    let (peer, id, began) = (incoming.peer(), asker.id.clone(), Instant::now());
    let read = move |fields: Fields<'_>, config: &Config| read(fields, config, &id);
    let (asked, room) = body::read(&app, incoming).await?.into(read).await?;
    Ok(run(&app, &asker, asked, room, peer, AnswerField::Prompt, began).await?)
}

fields! {
    /// Body of `POST /api/generate`.
    pub(crate) struct OllamaGenerateRequest<'a> {
        ..common: OllamaFields<'a>,
        /// Text to answer. Without one, the model is only loaded.
        prompt?: String,
        /// Text that follows the gap which the model fills.
        suffix?: String,
        /// System prompt.
        system?: String,
        /// Whether the model gets the prompt without its template.
        raw: bool,
        /// Images in base64.
        images?: Vec<v1::ContentPart> = Read("string[]", images),
        /// Template, which is refused.
        #[expect(dead_code, reason = "only checked")]
        template?: () = Read("\"\"", no_template),
        /// Context of an earlier answer, which is refused.
        #[expect(dead_code, reason = "only checked")]
        context?: () = Read("integer[0]", no_context),
        /// Width of an image, which is refused.
        #[expect(dead_code, reason = "only checked")]
        width?: () = Read("0", no_image),
        /// Height of an image, which is refused.
        #[expect(dead_code, reason = "only checked")]
        height?: () = Read("0", no_image),
        /// Steps of an image, which are refused.
        #[expect(dead_code, reason = "only checked")]
        steps?: () = Read("0", no_image),
    }
}

fn read(mut fields: Fields, config: &Config, id: &RequestId) -> Result<ChatRequest, ApiError> {
    let sent = SentFields::of_ollama(&fields);
    let given = OllamaGenerateRequest::read(&mut fields)?;
    fields.finish()?;
    // A templated prompt is never truncated, because that would break its template.
    let truncate = given.common.truncate;
    let (mut asked, template_kwargs_json) = given.common.plan(sent, config, id)?;
    let (prompt, suffix) = (given.prompt.unwrap_or_default(), given.suffix.unwrap_or_default());
    let (system, raw) = (given.system.unwrap_or_default(), given.raw);
    let pictures = given.images.unwrap_or_default();
    if raw && !system.is_empty() {
        return Err(ApiError::field("system", "raw mode does not support template, system, or context"));
    }
    if (raw || !suffix.is_empty()) && !pictures.is_empty() {
        return Err(ApiError::field("images", "only allowed without raw and suffix"));
    }
    asked.nothing = prompt.is_empty() && suffix.is_empty() && pictures.is_empty();
    let request = &mut asked.plan.requests[0];
    request.prompt = Some(match () {
        () if raw || !suffix.is_empty() => {
            // Keeps as much of the end as fits.
            request.truncate_prompt_tokens = (suffix.is_empty() && truncate == Some(true)).then_some(-1);
            request.suffix = suffix;
            Prompt::Text(prompt)
        }
        () => {
            if pictures.is_empty() {
                let bare = if system.is_empty() { prompt.clone() } else { format!("{system}\n\n{prompt}") };
                asked.bare = Some(bare);
            }
            let message = |role: &str, content| v1::Message {
                role: role.to_owned(),
                content,
                ..v1::Message::default()
            };
            let system = (!system.is_empty()).then(|| message("system", vec![part(system)]));
            let asks = message("user", pictures.into_iter().chain([part(prompt)]).collect());
            let messages = system.into_iter().chain([asks]).collect();
            Prompt::Chat(v1::Chat { messages, template_kwargs_json, ..v1::Chat::default() })
        }
    });
    Ok(asked)
}

fn no_template(field: Field) -> Result<(), ApiError> {
    if field.value().as_str().as_deref() == Some("") {
        return Ok(());
    }
    let problem = "templates in Go's language are not supported by this build; send raw: true with the prompt as the model wants it";
    Err(ApiError::unsupported("template", problem))
}

fn no_context(field: Field) -> Result<(), ApiError> {
    if field.as_list().is_some_and(|mut list| list.next().is_none()) {
        return Ok(());
    }
    let problem =
        "not supported by this build, which answers without one; send the conversation to /api/chat";
    Err(ApiError::unsupported("context", problem))
}

fn no_image(field: Field) -> Result<(), ApiError> {
    if field.value().as_f64() == Some(0.0) {
        return Ok(());
    }
    Err(ApiError::unsupported(&field.path(), "images are not made by this build"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use serde_json::{Value, json};

    use super::*;
    use crate::fields::fields_of;

    fn check(change: Value) -> Result<ChatRequest, String> {
        let mut body = json!({"model": "m", "prompt": "p"});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let id = RequestId::of(&HeaderMap::new());
        read(fields_of(&body, false), &Config::default(), &id).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_prompt_is_a_message_a_text_or_around_a_gap() {
        let asked = check(json!({"system": "s", "template": "", "context": [], "stream": false})).unwrap();
        assert!(!asked.plan.stream && !asked.nothing);
        assert_eq!(asked.bare.as_deref(), Some("s\n\np"));
        let Some(Prompt::Chat(chat)) = &asked.plan.requests[0].prompt else { panic!("{asked:?}") };
        let roles: Vec<&str> = chat.messages.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user"]);
        let raw = check(json!({"raw": true, "truncate": true})).unwrap().plan.requests.remove(0);
        assert_eq!((raw.prompt, raw.truncate_prompt_tokens), (Some(Prompt::Text("p".to_owned())), Some(-1)));
        let gap = check(json!({"suffix": "z"})).unwrap().plan.requests.remove(0);
        assert_eq!((gap.prompt, gap.suffix.as_str()), (Some(Prompt::Text("p".to_owned())), "z"));
        assert!(
            check(json!({"prompt": ""})).unwrap().nothing && check(json!({"prompt": null})).unwrap().nothing
        );
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_its_name() {
        for (change, start) in [
            (json!({"template": "{{ .Prompt }}"}), "template: templates in Go's language"),
            (json!({"context": [1, 2]}), "context: not supported"),
            (json!({"raw": true, "system": "s"}), "system: raw mode does not support"),
            (json!({"suffix": "z", "images": ["aGk="]}), "images: only allowed without raw"),
            (json!({"steps": 4}), "steps: images are not made"),
            (json!({"format": "xml"}), "format: expected json or a JSON schema"),
            (json!({"think": "loud"}), "think: expected one of low, medium, high, max"),
            (json!({"think": 1}), "think: expected a boolean"),
            (json!({"top_logprobs": 2}), "top_logprobs: only allowed with logprobs"),
            (json!({"model": ""}), "model is required"),
            (json!({"promt": "x"}), "promt: unknown field"),
        ] {
            let error = check(change.clone()).unwrap_err();
            assert!(error.starts_with(start), "{change}: {error}");
        }
    }
}
