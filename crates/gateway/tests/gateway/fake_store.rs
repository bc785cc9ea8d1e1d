//! The Store of the scripted engine: other names of models, and nothing else.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
};

use hanzo_engine_proto::v1::{self, store_server::Store};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

/// Remembers what was named.
pub(crate) struct FakeStore(pub(crate) Arc<Mutex<Vec<v1::CopyRequest>>>);

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

fn none<T>() -> Result<T, Status> {
    Err(Status::unimplemented("nothing here"))
}

#[tonic::async_trait]
impl Store for FakeStore {
    type VerifyStream = Events<v1::VerifyProgress>;
    type ExportStream = Events<v1::ArchiveChunk>;

    async fn copy(&self, request: Request<v1::CopyRequest>) -> Reply<v1::Alias> {
        let request = request.into_inner();
        if request.model == "nothing" {
            return Err(Status::not_found("model: there is no nothing; stored: a-stored"));
        }
        self.0.lock().unwrap().push(request.clone());
        Ok(Response::new(v1::Alias { alias: request.alias, target: request.model, builtin: false }))
    }

    async fn aliases(&self, _: Request<v1::AliasesRequest>) -> Reply<v1::AliasesResponse> {
        let alias = |alias: &str, target: &str, builtin| v1::Alias {
            alias: alias.to_owned(),
            target: target.to_owned(),
            builtin,
        };
        let aliases = vec![alias("mine", "a-stored", false), alias("zen-nano", "hf://a/b:Q8_0", true)];
        Ok(Response::new(v1::AliasesResponse { aliases }))
    }

    async fn propose(&self, _: Request<v1::PullRequest>) -> Reply<v1::PullProposal> {
        none()
    }

    async fn cancel_pull(&self, _: Request<v1::CancelPullRequest>) -> Reply<v1::CancelPullResponse> {
        none()
    }

    async fn pulls(&self, _: Request<v1::PullsRequest>) -> Reply<v1::PullsResponse> {
        none()
    }

    async fn resolve(&self, _: Request<v1::ResolveRequest>) -> Reply<v1::ResolveResponse> {
        none()
    }

    async fn collect(&self, _: Request<v1::CollectRequest>) -> Reply<v1::CollectResponse> {
        none()
    }

    async fn verify(&self, _: Request<v1::VerifyRequest>) -> Reply<Self::VerifyStream> {
        none()
    }

    async fn disk_usage(&self, _: Request<v1::DiskUsageRequest>) -> Reply<v1::DiskUsageResponse> {
        none()
    }

    async fn export(&self, _: Request<v1::ExportRequest>) -> Reply<Self::ExportStream> {
        none()
    }

    async fn import(&self, _: Request<Streaming<v1::ArchiveChunk>>) -> Reply<v1::ImportResponse> {
        none()
    }
}
