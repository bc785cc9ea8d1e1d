//! OpenAI's `POST /v1/audio/transcriptions` and `/v1/audio/translations`. The form's audio file is streamed to
//! the engine as it arrives. The answer is JSON, text, subtitles or events. The opposite direction is
//! [`speech`].

pub(crate) mod form;
mod languages;
mod live;
mod reply;
pub(crate) mod request;
pub(crate) mod speech;
pub mod subtitles;
mod work;

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use hanzo_engine_proto::v1::Capability;

use crate::{app::App, asker::Asker, body::IncomingBody, error::ApiError, select::select};
use request::{Task, TranscriptionRequest};

/// Transcribes speech.
pub(crate) async fn transcriptions(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    handle(app, asker, incoming, Task::Transcribe).await
}

/// Translates speech into English.
pub(crate) async fn translations(
    State(app): State<Arc<App>>,
    Extension(asker): Extension<Asker>,
    incoming: IncomingBody,
) -> Result<Response, ApiError> {
    handle(app, asker, incoming, Task::Translate).await
}

async fn handle(
    app: Arc<App>,
    asker: Asker,
    incoming: IncomingBody,
    task: Task,
) -> Result<Response, ApiError> {
    let until = app.until();
    let peer = incoming.peer();
    let mut form = form::read(&app, incoming).await?;
    let started = async {
        let TranscriptionRequest { mut config, shape, stream } =
            request::read(&form, task, app.config.lenient)?;
        config.request_id = asker.id.as_str().to_owned();
        config.client = asker.id.client();
        config.model = select(&app, &asker, config.model, &[Capability::Transcribe]).await?.model;
        let transcription = work::begin(&app, &asker, config, &mut form, until.clone(), stream, task).await?;
        Ok((transcription, shape, stream))
    };
    match started.await {
        Ok((transcription, _, true)) => Ok(live::response(
            transcription,
            std::time::Duration::from_secs(app.config.sse_keep_alive_s),
            peer,
        )),
        Ok((transcription, shape, false)) => Ok(reply::response(&transcription.events, shape, task)),
        Err(error) => {
            // Many clients send the whole body before they read the answer.
            form.discard(&app).await;
            Err(error)
        }
    }
}
