//! Administrative calls to the engine: loading, unloading, pulling, removing and naming models. Keys without
//! the admin scope are refused here.

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, future::Either, stream};
use hanzo_engine_proto::v1;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{Engine, Link, of_the_gateway, within_state};
use crate::{carrier::DaemonClient, fleet::Has};

impl Engine {
    /// The engine, if there is only one.
    fn only(&self) -> Result<DaemonClient, Status> {
        match &self.link {
            Link::One(client) => Ok(client.clone()),
            Link::Fleet(_) => Err(of_several()),
        }
    }

    /// Loads a model, without a time limit but `deadline`. With several engines, each one that has the model
    /// loads it. The model must be loaded or stored already, so that HTTP clients cannot explore the engine's
    /// disk.
    pub(crate) async fn load(
        &mut self,
        request: v1::LoadRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::LoadResponse, Status> {
        self.admin("to load models")?;
        self.show(request.model.clone()).await?;
        if !request.draft_model.is_empty() {
            let of_draft = |status: Status| match status.code() {
                Code::NotFound => Status::not_found(format!("draft_model: {}", status.message())),
                _ => status,
            };
            self.show(request.draft_model.clone()).await.map_err(of_draft)?;
        }
        let (model, head) = (request.model.clone(), self.head(deadline));
        let call = |mut client: DaemonClient, request| {
            let head = head.clone();
            async move { client.load(head.over(request)).await }
        };
        self.said(self.link.ask_all(&model, is_there, request, call).await)
    }

    /// Unloads a model from memory.
    pub(crate) async fn unload(
        &mut self,
        request: v1::UnloadRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::UnloadResponse, Status> {
        self.admin("to unload models")?;
        self.use_model(&request.model)?;
        let (model, head) = (request.model.clone(), self.head(deadline));
        let call = |mut client: DaemonClient, request| {
            let head = head.clone();
            async move { client.unload(head.over(request)).await }
        };
        self.said(self.link.ask_all(&model, Has::is_loaded, request, call).await)
    }

    /// Downloads a model into the store of each engine. The download is cancelled when its last client leaves,
    /// by dropping the stream.
    pub(crate) async fn pull(
        &mut self,
        mut request: v1::PullRequest,
    ) -> Result<impl Stream<Item = Result<v1::PullProgress, Status>> + Send + use<>, Status> {
        self.admin("to pull models")?;
        request.cancel_with_client = true;
        let remote = self.is_remote();
        let progress = match &self.link {
            Link::One(client) => {
                let answer = client.clone().pull(request).await;
                Either::Left(self.said(answer)?)
            }
            Link::Fleet(fleet) => {
                let progress = fleet.pull(request).await;
                Either::Right(Box::pin(progress.map_err(|status| of_the_gateway(remote, status))?))
            }
        };
        Ok(progress.map_err(move |status| of_the_gateway(remote, status)))
    }

    /// Running downloads of all clients. Empty for keys without the admin scope.
    pub(crate) async fn pulls(&mut self) -> Result<Vec<v1::PullProgress>, Status> {
        if !self.pass.is_admin() {
            return Ok(Vec::new());
        }
        let answer = match &self.link {
            Link::One(client) => {
                let mut store = client.store.clone();
                self.said(within_state(store.pulls(v1::PullsRequest::default())).await)
            }
            Link::Fleet(fleet) => {
                fleet.pulls().await.map_err(|status| of_the_gateway(self.is_remote(), status))
            }
        };
        match answer {
            Ok(answer) => Ok(answer.running),
            Err(status) if is_without_store(&status) => Ok(Vec::new()),
            Err(status) => Err(status),
        }
    }

    /// Removes a stored model or an alias.
    pub(crate) async fn remove(&mut self, model: String) -> Result<v1::RemoveResponse, Status> {
        self.admin("to remove models")?;
        self.use_model(&model)?;
        let call = |mut client: DaemonClient, request| async move { client.remove(request).await };
        let request = v1::RemoveRequest { model: model.clone() };
        self.said(self.link.ask_all(&model, is_there, request, call).await)
    }

    /// Creates an alias of a model.
    pub(crate) async fn copy(&mut self, model: String, alias: String) -> Result<v1::Alias, Status> {
        self.admin("to name models")?;
        self.use_model(&model)?;
        let call =
            |mut client: DaemonClient, request| async move { within_state(client.store.copy(request)).await };
        let request = v1::CopyRequest { model: model.clone(), alias };
        self.said(self.link.ask_all(&model, is_there, request, call).await)
    }

    /// Creates a model from another one or from blobs, whose bytes are read and checked again.
    pub(crate) async fn derive(&mut self, request: v1::DeriveRequest) -> Result<v1::StoredModel, Status> {
        self.admin("to make models")?;
        if !request.model.is_empty() {
            self.use_model(&request.model)?;
        }
        let call = |mut client: DaemonClient, request| async move { client.store.derive(request).await };
        if !request.files.is_empty() {
            return self.said(call(self.only()?, request).await);
        }
        let model = request.model.clone();
        self.said(self.link.ask_all(&model, is_there, request, call).await)
    }

    /// Whether the store has a blob with that digest. Its bytes may have to be read to tell.
    pub(crate) async fn has_blob(&mut self, sha256: String) -> Result<bool, Status> {
        self.admin("to make models")?;
        let answer = self.only()?.store.find_blob(v1::FindBlobRequest { sha256 }).await;
        Ok(self.said(answer)?.found)
    }

    /// Stores a blob from the stream `bytes`.
    pub(crate) async fn put_blob(
        &mut self,
        sha256: String,
        bytes: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<(), Status> {
        self.admin("to make models")?;
        let first = v1::PutBlobRequest { sha256, data: Bytes::new() };
        let rest = bytes.map(|data| v1::PutBlobRequest { sha256: String::new(), data });
        let answer = self.only()?.store.put_blob(stream::iter([first]).chain(rest)).await;
        self.said(answer).map(drop)
    }

    /// Aliases of models, as far as the gateway's key for the engine may see them.
    pub(crate) async fn aliases(&mut self) -> Result<Vec<v1::Alias>, Status> {
        let answer = match &self.link {
            Link::One(client) => {
                let mut store = client.store.clone();
                self.said(within_state(store.aliases(v1::AliasesRequest::default())).await)
            }
            Link::Fleet(fleet) => {
                fleet.aliases().await.map_err(|status| of_the_gateway(self.is_remote(), status))
            }
        };
        let mut aliases = match answer {
            Ok(answer) => answer.aliases,
            Err(status) if is_without_store(&status) => Vec::new(),
            Err(status) => return Err(status),
        };
        aliases.retain(|alias| self.pass.sees_model(&alias.alias));
        Ok(aliases)
    }
}

/// Whether a status only means that the engine has no store, or hides it from this gateway's key.
fn is_without_store(status: &Status) -> bool {
    matches!(status.code(), Code::PermissionDenied | Code::FailedPrecondition | Code::Unimplemented)
}

/// Whether an engine has a model loaded or stored.
fn is_there(has: Has) -> bool {
    has != Has::Nothing
}

/// Error for blobs with several engines: each has its own store, and a blob goes to only one.
fn of_several() -> Status {
    Status::unimplemented(
        "there are several engines behind this gateway: make models of files at each of them, or pull them",
    )
}
