//! The `hanzo.engine.v1.Speech` service.

use std::sync::Arc;

use hanzo_engine_proto::v1::{self, speech_server::Speech};
use hanzo_engine_sound::Limits;
use tonic::{Request, Status, Streaming};

use super::{Core, Events, Reply, transcribe};

/// The service.
pub(crate) struct SpeechService {
    pub(crate) core: Arc<Core>,
    /// What a sound may be.
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
        Ok(tonic::Response::new(Box::pin(events)))
    }

    async fn speak(&self, _: Request<v1::SpeakRequest>) -> Reply<Self::SpeakStream> {
        Err(Status::unimplemented("this engine has no voices"))
    }

    async fn voices(&self, _: Request<v1::VoicesRequest>) -> Reply<v1::VoicesResponse> {
        Err(Status::unimplemented("this engine has no voices"))
    }
}
