//! The `hanzo.engine.v1.Engine` service: each call is one function of a module below, which speaks of
//! [`crate::error::Error`]; statuses are made here.

mod adapters;
mod batches;
mod embed;
mod envelope;
mod infer;
mod models;
mod pull;
mod record;
mod stats;
mod storage;
mod tokens;
mod watch;

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use envelope::Envelope;
#[cfg(test)]
pub(crate) use infer::infer;

pub(crate) use storage::StoreService;

use futures_util::Stream;
use hanzo_engine_proto::v1::{self, engine_server::Engine};
use tonic::{Request, Response, Status};

use crate::{
    convert::{self, client::Clients},
    drain::Drain,
    error::Error,
    limits::DEADLINE_MARGIN,
    models::Models,
    pulls::Pulls,
};

/// What every call can reach.
pub(crate) struct Core {
    pub(crate) models: Arc<Models>,
    pub(crate) pulls: Pulls,
    pub(crate) drain: Drain,
    pub(crate) started: Instant,
    /// Who asks, for the scheduler's fairness.
    pub(crate) clients: Clients,
}

/// The service.
pub(crate) struct EngineService(pub(crate) Arc<Core>);

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

fn reply<T>(result: Result<T, Error>) -> Reply<T> {
    result.map(Response::new).map_err(Status::from)
}

/// When a call that arrived now must be answered: its deadline, a moment before the transport's own.
fn answer_by(deadline: Option<Instant>) -> Option<Instant> {
    deadline.map(|deadline| deadline.checked_sub(DEADLINE_MARGIN).unwrap_or(deadline))
}

/// `grpc-timeout` of a call that arrived at `arrived`.
fn deadline<T>(request: &Request<T>, arrived: Instant) -> Result<Option<Instant>, Error> {
    let timeout: Option<Duration> = convert::request::timeout(request.metadata())?;
    // Further away than time can be told: no deadline.
    Ok(timeout.and_then(|timeout| arrived.checked_add(timeout)))
}

/// Awaits `work` until `by`.
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
        reply(adapters::list(&self.0, &request.into_inner().model).await)
    }

    async fn infer(&self, request: Request<v1::InferRequest>) -> Reply<Self::InferStream> {
        reply(infer::infer(&self.0, request).await.map(|stream| Box::pin(stream) as Self::InferStream))
    }

    async fn embed(&self, request: Request<v1::EmbedRequest>) -> Reply<v1::EmbedResponse> {
        reply(embed::embed(&self.0, request).await)
    }

    async fn rerank(&self, request: Request<v1::RerankRequest>) -> Reply<v1::RerankResponse> {
        reply(embed::rerank(&self.0, request).await)
    }

    async fn classify(&self, request: Request<v1::ClassifyRequest>) -> Reply<v1::ClassifyResponse> {
        reply(embed::classify(&self.0, request).await)
    }

    async fn stats(&self, request: Request<v1::StatsRequest>) -> Reply<v1::StatsResponse> {
        reply(stats::stats(&self.0, &request.into_inner().model).await)
    }

    async fn pull(&self, request: Request<v1::PullRequest>) -> Reply<Self::PullStream> {
        let pulled = pull::pull(&self.0, request.into_inner()).await;
        reply(pulled.map(|stream| Box::pin(stream) as Self::PullStream))
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Reply<v1::ListResponse> {
        reply(models::list(&self.0).await)
    }

    async fn show(&self, request: Request<v1::ShowRequest>) -> Reply<v1::ShowResponse> {
        reply(models::show(&self.0, request.into_inner()).await)
    }

    async fn remove(&self, request: Request<v1::RemoveRequest>) -> Reply<v1::RemoveResponse> {
        reply(models::remove(&self.0, request.into_inner().model).await)
    }

    async fn tokenize(&self, request: Request<v1::TokenizeRequest>) -> Reply<v1::TokenizeResponse> {
        reply(tokens::tokenize(&self.0, request).await)
    }

    async fn detokenize(&self, request: Request<v1::DetokenizeRequest>) -> Reply<v1::DetokenizeResponse> {
        reply(tokens::detokenize(&self.0, request).await)
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Reply<Self::WatchStream> {
        let model = self.0.models.loaded_name(&request.into_inner().model).await;
        reply(Ok(Box::pin(watch::watch(&self.0, model)) as Self::WatchStream))
    }
}
