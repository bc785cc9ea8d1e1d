//! The `hanzo.engine.v1.Speech` service.

use std::sync::Arc;

use hanzo_engine_access::Need;
use hanzo_engine_proto::v1::{self, speech_server::Speech};
use hanzo_engine_sound::Limits;
use tonic::{Request, Response, Streaming};

use super::{Core, Events, Reply, reply, speak, transcribe};

/// gRPC service of speech.
pub(crate) struct SpeechService {
    pub(crate) core: Arc<Core>,
    /// Limits of uploaded sounds.
    pub(crate) sounds: Limits,
}

#[tonic::async_trait]
impl Speech for SpeechService {
    type TranscribeStream = Events<v1::TranscribeEvent>;
    type SpeakStream = Events<v1::SpeakEvent>;

    async fn transcribe(
        &self,
        request: Request<Streaming<v1::TranscribeRequest>>,
    ) -> Reply<Self::TranscribeStream> {
        let events = transcribe::transcribe(&self.core, request, self.sounds).await?;
        Ok(Response::new(Box::pin(events)))
    }

    async fn speak(&self, mut request: Request<v1::SpeakRequest>) -> Reply<Self::SpeakStream> {
        let pass = self.core.use_model(&request, &request.get_ref().model)?;
        request.get_mut().priority = pass.priority(request.get_ref().priority);
        let reservation = self.core.granted(pass.reserve(Need::speak(request.get_ref())))?;
        let events = speak::speak(&self.core, request, reservation).await;
        reply(events.map(|events| Box::pin(events) as Self::SpeakStream))
    }

    async fn voices(&self, request: Request<v1::VoicesRequest>) -> Reply<v1::VoicesResponse> {
        self.core.use_model(&request, &request.get_ref().model)?;
        reply(speak::voices(&self.core, request).await)
    }
}
