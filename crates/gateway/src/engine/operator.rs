//! What the operator asks of the engine: loading and unloading, pulling, removing and naming models. A key without the admin
//! scope is refused here.

use futures_util::{Stream, TryStreamExt as _};
use hanzo_engine_proto::v1::{self, store_client::StoreClient};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{Engine, Link, of_the_gateway, within_state};
use crate::carrier::{Carrier, Client};

impl Engine {
    /// The engine, where there is but one.
    fn only(&self) -> Result<Client, Status> {
        match &self.link {
            Link::One(client) => Ok(client.clone()),
            Link::Fleet(_) => Err(of_several()),
        }
    }

    /// Its store.
    fn store(&self) -> Result<StoreClient<Carrier>, Status> {
        self.store.clone().ok_or_else(of_several)
    }

    /// Loads a model, which takes as long as it takes. Only one that is loaded or stored: an HTTP client is not to look around on
    /// the engine's disk.
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
        let call = |mut client: Client, request| {
            let head = head.clone();
            async move { client.load(head.over(request)).await }
        };
        self.said(self.link.ask(&model, request, call).await)
    }

    /// Removes a model from memory.
    pub(crate) async fn unload(
        &mut self,
        request: v1::UnloadRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::UnloadResponse, Status> {
        self.admin("to unload models")?;
        self.use_model(&request.model)?;
        let (model, head) = (request.model.clone(), self.head(deadline));
        let call = |mut client: Client, request| {
            let head = head.clone();
            async move { client.unload(head.over(request)).await }
        };
        self.said(self.link.ask_all(&model, request, call).await)
    }

    /// Fetches a model into the store. The pull ends when its last client has left: dropping the stream is leaving.
    pub(crate) async fn pull(
        &mut self,
        mut request: v1::PullRequest,
    ) -> Result<impl Stream<Item = Result<v1::PullProgress, Status>> + Send + use<>, Status> {
        self.admin("to pull models")?;
        request.cancel_with_client = true;
        let answer = self.only()?.pull(request).await;
        let (progress, remote) = (self.said(answer)?, self.remote);
        Ok(progress.map_err(move |status| of_the_gateway(remote, status)))
    }

    /// Forgets a stored model, or an alias.
    pub(crate) async fn remove(&mut self, model: String) -> Result<v1::RemoveResponse, Status> {
        self.admin("to remove models")?;
        self.use_model(&model)?;
        let answer = self.only()?.remove(v1::RemoveRequest { model }).await;
        self.said(answer)
    }

    /// Gives a model another name.
    pub(crate) async fn copy(&mut self, model: String, alias: String) -> Result<v1::Alias, Status> {
        self.admin("to name models")?;
        self.use_model(&model)?;
        let answer = within_state(self.store()?.copy(v1::CopyRequest { model, alias })).await;
        self.said(answer)
    }

    /// Names that stand for models or references, as far as this gateway's key for the engine lets it see them.
    pub(crate) async fn aliases(&mut self) -> Result<Vec<v1::Alias>, Status> {
        let Ok(mut store) = self.store() else { return Ok(Vec::new()) };
        let answer = within_state(store.aliases(v1::AliasesRequest::default())).await;
        let mut aliases = match self.said(answer) {
            Ok(answer) => answer.aliases,
            // The store is the operator's, and a daemon without one has none.
            Err(status) if matches!(status.code(), Code::PermissionDenied | Code::FailedPrecondition) => {
                Vec::new()
            }
            Err(status) => return Err(status),
        };
        aliases.retain(|alias| self.pass.sees_model(&alias.alias));
        Ok(aliases)
    }
}

/// What is stored is each engine's own, and where it is to be is not the gateway's to choose.
fn of_several() -> Status {
    Status::unimplemented(
        "there are several engines behind this gateway: pull, remove and name models at each of them",
    )
}
