//! The Store of the scripted engine: other names of models, models that are made of others, and nothing else.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex},
};

use hanzo_engine_proto::v1::{self, store_server::Store};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

/// Remembers what was named and made.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeStore {
    copies: Arc<Mutex<Vec<v1::CopyRequest>>>,
    derived: Arc<Mutex<Vec<v1::DeriveRequest>>>,
    blobs: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl FakeStore {
    /// What was given other names so far.
    pub(crate) fn copies(&self) -> Vec<v1::CopyRequest> {
        self.copies.lock().unwrap().clone()
    }

    /// The files that were put there.
    pub(crate) fn blobs(&self) -> BTreeMap<String, Vec<u8>> {
        self.blobs.lock().unwrap().clone()
    }

    /// What was made of others so far.
    pub(crate) fn derived(&self) -> Vec<v1::DeriveRequest> {
        self.derived.lock().unwrap().clone()
    }
}

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
        self.copies.lock().unwrap().push(request.clone());
        Ok(Response::new(v1::Alias { alias: request.alias, target: request.model, builtin: false }))
    }

    async fn derive(&self, request: Request<v1::DeriveRequest>) -> Reply<v1::StoredModel> {
        let request = request.into_inner();
        match request.params_json.as_deref() {
            Some(params) if params.contains("tfs") => {
                Err(Status::invalid_argument("params_json.tfs: no such option"))
            }
            _ if request.name == "a-stored" => {
                Err(Status::already_exists("the name a-stored is another model's"))
            }
            _ => {
                self.derived.lock().unwrap().push(request.clone());
                Ok(Response::new(v1::StoredModel { name: request.name, ..Default::default() }))
            }
        }
    }

    async fn find_blob(&self, request: Request<v1::FindBlobRequest>) -> Reply<v1::FindBlobResponse> {
        let found = self.blobs.lock().unwrap().contains_key(&request.into_inner().sha256);
        Ok(Response::new(v1::FindBlobResponse { found }))
    }

    async fn put_blob(&self, request: Request<Streaming<v1::PutBlobRequest>>) -> Reply<v1::PutBlobResponse> {
        let mut pieces = request.into_inner();
        let (mut sha256, mut bytes) = (None, Vec::new());
        while let Some(piece) = pieces.message().await? {
            sha256.get_or_insert(piece.sha256);
            bytes.extend_from_slice(&piece.data);
        }
        if bytes.starts_with(b"other") {
            return Err(Status::invalid_argument("the bytes have SHA-256 1, and were to have 2"));
        }
        self.blobs.lock().unwrap().insert(sha256.unwrap(), bytes);
        Ok(Response::new(v1::PutBlobResponse {}))
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
        let pull = |bytes_done| v1::PullProgress {
            model: "x/running".to_owned(),
            phase: v1::pull_progress::Phase::Downloading.into(),
            bytes_done,
            bytes_total: 10,
            eta_s: -1.0,
            ..Default::default()
        };
        Ok(Response::new(v1::PullsResponse { running: vec![pull(4)], broken_off: Vec::new() }))
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
