//! `POST /api/generate`: one prompt, as a chat message, as plain text (`raw`), or with a suffix to fill in the
//! middle.

use std::{sync::Arc, time::Instant};

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1::{self, infer_request::Prompt};

use super::{
    chat::{ChatRequest, common, run},
    error::OllamaError,
    format::think,
    messages::{images, part},
    reply::AnswerField,
};
use crate::{
    app::App,
    asker::Asker,
    body::{self, IncomingBody},
    config::Config,
    error::ApiError,
    fields::{Field, Fields},
    openai::prompt::template_kwargs,
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

fn read(mut fields: Fields, config: &Config, id: &RequestId) -> Result<ChatRequest, ApiError> {
    let mut asked = common(&mut fields, config, id)?;
    let text = |fields: &mut Fields, name: &str| -> Result<String, ApiError> {
        Ok(fields.take(name).map(Field::string).transpose()?.unwrap_or_default())
    };
    let (prompt, suffix) = (text(&mut fields, "prompt")?, text(&mut fields, "suffix")?);
    let (system, raw) = (text(&mut fields, "system")?, fields.flag("raw")?);
    refused(&mut fields)?;
    let pictures = fields.take("images").map(images).transpose()?.unwrap_or_default();
    let (thinking, thinks) = think(&mut fields)?;
    let kwargs = fields.take("chat_template_kwargs").map(Field::object).transpose()?;
    let template_kwargs_json = template_kwargs(kwargs.as_ref(), &thinking);
    // A templated prompt is never truncated, because that would break its template.
    let truncate = fields.take("truncate").map(Field::boolean).transpose()?;
    fields.finish()?;
    if raw && !system.is_empty() {
        return Err(ApiError::field("system", "raw mode does not support template, system, or context"));
    }
    if (raw || !suffix.is_empty()) && !pictures.is_empty() {
        return Err(ApiError::field("images", "only allowed without raw and suffix"));
    }
    asked.nothing = prompt.is_empty() && suffix.is_empty() && pictures.is_empty();
    asked.thinks = thinks;
    let request = &mut asked.plan.requests[0];
    request.reasoning = thinking.bounds();
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

/// Refuses unsupported fields unless they are empty.
fn refused(fields: &mut Fields) -> Result<(), ApiError> {
    if let Some(field) = fields.take("template")
        && field.value().as_str().as_deref() != Some("")
    {
        let problem = "templates in Go's language are not supported by this build; send raw: true with the prompt as the model wants it";
        return Err(ApiError::unsupported("template", problem));
    }
    if let Some(field) = fields.take("context")
        && field.as_list().is_none_or(|mut list| list.next().is_some())
    {
        let problem =
            "not supported by this build, which answers without one; send the conversation to /api/chat";
        return Err(ApiError::unsupported("context", problem));
    }
    for name in ["width", "height", "steps"] {
        if fields.take(name).is_some_and(|field| field.value().as_f64() != Some(0.0)) {
            return Err(ApiError::unsupported(name, "images are not made by this build"));
        }
    }
    Ok(())
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
