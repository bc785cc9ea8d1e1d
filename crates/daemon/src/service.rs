//! The `hanzo.engine.v1.Engine` service. Each call is one function in a module below that returns
//! [`crate::error::Error`]; gRPC statuses are made here.

mod adapters;
mod batches;
mod both;
mod embed;
mod envelope;
mod guard;
mod infer;
mod models;
mod pull;
mod record;
mod speak;
mod speech;
mod stats;
mod storage;
mod tokens;
mod transcribe;
mod watch;

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use both::Both;
pub(crate) use envelope::Envelope;
pub(crate) use guard::GuardedService;
#[cfg(test)]
pub(crate) use infer::infer;
pub(crate) use infer::{LocalInfer, local_infer};

#[cfg(test)]
pub(crate) use transcribe::stand_in;

pub(crate) use speech::SpeechService;
pub(crate) use storage::StoreService;

use futures_util::Stream;
use hanzo_engine_access::{InputsNeed, Pass, Refusal, Reservation, Spend, bound_inputs, inputs_bound};
use hanzo_engine_proto::v1::{self, engine_server::Engine};
use hanzo_engine_telemetry::Traces;
use tonic::{Request, Response, Status};

use crate::{
    convert::{self, client::Clients},
    drain::Drain,
    error::Error,
    limits::DEADLINE_MARGIN,
    models::Models,
    nvml::Cards,
    pulls::Pulls,
    voice_activity::VoiceActivity,
};

/// State that every call can access.
pub(crate) struct Core {
    pub(crate) models: Arc<Models>,
    pub(crate) pulls: Pulls,
    pub(crate) drain: Drain,
    pub(crate) started: Instant,
    /// Identities of clients, for fair scheduling.
    pub(crate) clients: Clients,
    /// Metrics of this machine's GPUs.
    pub(crate) cards: Arc<Cards>,
    /// Exporter of request spans.
    pub(crate) traces: Traces,
    /// Voice activity detector.
    pub(crate) voice_activity: VoiceActivity,
}

/// gRPC service of the engine.
pub(crate) struct EngineService(pub(crate) Arc<Core>);

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

fn reply<T>(result: Result<T, Error>) -> Reply<T> {
    result.map(Response::new).map_err(Status::from)
}

/// Permissions of a call's key. Calls from this process may do everything.
fn pass_of<T>(request: &Request<T>) -> Pass {
    request.extensions().get::<Pass>().cloned().unwrap_or_default()
}

/// Bounds the tokens of a call's inputs by its reservation.
fn bounded<T>(request: Request<T>, reservation: &Reservation) -> Request<T> {
    let (own, reserved) = (inputs_bound(request.metadata()), reservation.inputs_bound());
    bound_inputs(request, own.into_iter().chain(reserved).min())
}

impl Core {
    /// Charges an answer's tokens to its reservation, or ends that with the error.
    fn settled<T>(
        &self,
        mut reservation: Reservation,
        answer: Result<T, Error>,
        tokens: impl FnOnce(&T) -> u32,
    ) -> Reply<T> {
        match answer {
            Ok(answer) => {
                reservation.charge(tokens(&answer));
                Ok(Response::new(answer))
            }
            Err(error) => self.granted(Err(reservation.failed(error.into())?)),
        }
    }

    /// Checks that a call may use the model, and returns its permissions.
    fn use_model<T>(&self, request: &Request<T>, model: &str) -> Result<Pass, Status> {
        let pass = pass_of(request);
        self.granted(pass.use_model(model))?;
        Ok(pass)
    }

    /// Converts the result of a permission check; refusals are counted.
    fn granted<T>(&self, granted: Result<T, Refusal>) -> Result<T, Status> {
        granted.map_err(|refusal| {
            self.models.metrics.refused(&refusal);
            Status::from(refusal)
        })
    }
}

/// Deadline for the response: a moment before the transport's own.
fn answer_by(deadline: Option<Instant>) -> Option<Instant> {
    deadline.map(|deadline| deadline.checked_sub(DEADLINE_MARGIN).unwrap_or(deadline))
}

/// Deadline from the `grpc-timeout` of a call that arrived at `arrived`.
fn deadline<T>(request: &Request<T>, arrived: Instant) -> Result<Option<Instant>, Error> {
    let timeout: Option<Duration> = convert::request::timeout(request.metadata())?;
    // A timeout beyond the clock's range means no deadline.
    Ok(timeout.and_then(|timeout| arrived.checked_add(timeout)))
}

/// Awaits `work`, with a deadline.
async fn within<T>(by: Option<Instant>, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match by {
        Some(by) => tokio::time::timeout_at(by.into(), work).await.unwrap_or(Err(Error::Deadline)),
        None => work.await,
    }
}

#[tonic::async_trait]
impl Engine for EngineService {
    type InferStream = Events<v1::InferEvent>;
    type PullStream = Events<v1::PullProgress>;
    type WatchStream = Events<v1::WatchEvent>;

    async fn load(&self, request: Request<v1::LoadRequest>) -> Reply<v1::LoadResponse> {
        reply(models::load(&self.0, request).await)
    }

    async fn unload(&self, request: Request<v1::UnloadRequest>) -> Reply<v1::UnloadResponse> {
        reply(models::unload(&self.0, request).await)
    }

    async fn load_adapter(&self, request: Request<v1::LoadAdapterRequest>) -> Reply<v1::LoadAdapterResponse> {
        reply(adapters::load(&self.0, request).await)
    }

    async fn unload_adapter(
        &self,
        request: Request<v1::UnloadAdapterRequest>,
    ) -> Reply<v1::UnloadAdapterResponse> {
        reply(adapters::unload(&self.0, request.into_inner()).await)
    }

    async fn list_adapters(
        &self,
        request: Request<v1::ListAdaptersRequest>,
    ) -> Reply<v1::ListAdaptersResponse> {
        self.0.use_model(&request, &request.get_ref().model)?;
        reply(adapters::list(&self.0, &request.into_inner().model).await)
    }

    async fn infer(&self, mut request: Request<v1::InferRequest>) -> Reply<Self::InferStream> {
        let pass = self.0.use_model(&request, &request.get_ref().model)?;
        let asked = request.get_mut();
        asked.priority = pass.priority(asked.priority);
        let spend = self.0.granted(Spend::reserve(pass, asked))?;
        let events = infer::infer(&self.0, request).await;
        reply(events.map(|events| Box::pin(spend.over(events)) as Self::InferStream))
    }

    async fn embed(&self, mut request: Request<v1::EmbedRequest>) -> Reply<v1::EmbedResponse> {
        let pass = self.0.use_model(&request, &request.get_ref().model)?;
        request.get_mut().priority = pass.priority(request.get_ref().priority);
        let reservation = self.0.granted(pass.reserve_inputs(InputsNeed::embed(request.get_ref())))?;
        let answer = embed::embed(&self.0, bounded(request, &reservation)).await;
        self.0.settled(reservation, answer, |answer| answer.prompt_tokens)
    }

    async fn rerank(&self, mut request: Request<v1::RerankRequest>) -> Reply<v1::RerankResponse> {
        let pass = self.0.use_model(&request, &request.get_ref().model)?;
        request.get_mut().priority = pass.priority(request.get_ref().priority);
        let reservation = self.0.granted(pass.reserve_inputs(InputsNeed::rerank(request.get_ref())))?;
        let answer = embed::rerank(&self.0, bounded(request, &reservation)).await;
        self.0.settled(reservation, answer, |answer| answer.prompt_tokens)
    }

    async fn classify(&self, mut request: Request<v1::ClassifyRequest>) -> Reply<v1::ClassifyResponse> {
        let pass = self.0.use_model(&request, &request.get_ref().model)?;
        request.get_mut().priority = pass.priority(request.get_ref().priority);
        let reservation = self.0.granted(pass.reserve_inputs(InputsNeed::classify(request.get_ref())))?;
        let answer = embed::classify(&self.0, bounded(request, &reservation)).await;
        self.0.settled(reservation, answer, |answer| answer.prompt_tokens)
    }

    async fn stats(&self, request: Request<v1::StatsRequest>) -> Reply<v1::StatsResponse> {
        let pass = pass_of(&request);
        let mut answer = stats::stats(&self.0, &request.into_inner().model).await;
        if let Ok(stats) = &mut answer {
            stats
                .models
                .retain(|model| model.status.as_ref().is_none_or(|status| pass.sees_model(&status.name)));
        }
        reply(answer)
    }

    async fn pull(&self, request: Request<v1::PullRequest>) -> Reply<Self::PullStream> {
        let pulled = pull::pull(&self.0, request.into_inner()).await;
        reply(pulled.map(|stream| Box::pin(stream) as Self::PullStream))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Reply<v1::ListResponse> {
        let pass = pass_of(&request);
        let mut answer = models::list(&self.0).await;
        if let Ok(list) = &mut answer {
            list.models.retain(|model| pass.sees_model(&model.name));
        }
        reply(answer)
    }

    async fn show(&self, mut request: Request<v1::ShowRequest>) -> Reply<v1::ShowResponse> {
        let pass = self.0.use_model(&request, &request.get_ref().model)?;
        // A path would reveal which files exist.
        request.get_mut().known_only |= !pass.is_admin();
        reply(models::show(&self.0, request.into_inner()).await)
    }

    async fn remove(&self, request: Request<v1::RemoveRequest>) -> Reply<v1::RemoveResponse> {
        reply(models::remove(&self.0, request.into_inner().model).await)
    }

    async fn tokenize(&self, request: Request<v1::TokenizeRequest>) -> Reply<v1::TokenizeResponse> {
        self.0.use_model(&request, &request.get_ref().model)?;
        reply(tokens::tokenize(&self.0, request).await)
    }

    async fn detokenize(&self, request: Request<v1::DetokenizeRequest>) -> Reply<v1::DetokenizeResponse> {
        self.0.use_model(&request, &request.get_ref().model)?;
        reply(tokens::detokenize(&self.0, request).await)
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Reply<Self::WatchStream> {
        self.0.use_model(&request, &request.get_ref().model)?;
        let model = self.0.models.loaded_name(&request.into_inner().model).await;
        reply(Ok(Box::pin(watch::watch(&self.0, model)) as Self::WatchStream))
    }
}
