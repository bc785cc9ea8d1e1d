//! What is asked of the service Speech.

use futures_util::{Stream, TryStreamExt as _};
use hanzo_engine_proto::v1::{self, speak_event::Event, speech_client::SpeechClient};
use tokio::time::Instant;
use tonic::Status;

use super::{Engine, of_the_gateway};
use crate::carrier::Carrier;

impl Engine {
    /// The service of one engine.
    fn speech(&self) -> Result<SpeechClient<Carrier>, Status> {
        self.speech.clone().ok_or_else(|| {
            Status::failed_precondition(
                "this gateway has several engines before it; speech is asked of one alone",
            )
        })
    }

    /// Has a text said. Dropping the future or the stream cancels it in the engine.
    pub(crate) async fn speak(
        &self,
        mut request: v1::SpeakRequest,
        deadline: Option<Instant>,
    ) -> Result<impl Stream<Item = Result<v1::SpeakEvent, Status>> + Send + Unpin + use<>, Status> {
        self.use_model(&request.model)?;
        request.priority = self.pass.priority(request.priority);
        let asked = request.model.clone();
        let answer = self.speech()?.speak(self.head(deadline).over(request)).await;
        let events = self.said(answer)?;
        let (remote, record, pass) = (self.remote, self.record.clone(), self.pass.clone());
        Ok(events
            .inspect_ok(move |event| {
                if let Some(Event::Finished(finished)) = &event.event {
                    pass.spend(finished.input_tokens);
                    record.answered(&asked, finished.input_tokens);
                }
            })
            .map_err(move |status| of_the_gateway(remote, status)))
    }

    /// The voices of a model.
    pub(crate) async fn voices(&self, model: String) -> Result<v1::VoicesResponse, Status> {
        self.use_model(&model)?;
        let answer = self.speech()?.voices(self.head(None).over(v1::VoicesRequest { model })).await;
        self.said(answer)
    }
}
