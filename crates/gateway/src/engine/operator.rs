//! What the operator asks of the engine: loading and unloading, and pulling. A key without the admin scope is refused here.

use futures_util::{Stream, TryStreamExt as _};
use hanzo_engine_proto::v1;
use tokio::time::Instant;
use tonic::Status;

use super::{Client, Engine, Link, of_the_gateway};

impl Engine {
    /// Loads a model, which takes as long as it takes. Only one that is loaded or stored: an HTTP client is not to look around on
    /// the engine's disk.
    pub(crate) async fn load(
        &mut self,
        request: v1::LoadRequest,
        deadline: Option<Instant>,
    ) -> Result<v1::LoadResponse, Status> {
        self.admin("to load models")?;
        for model in [&request.model, &request.draft_model] {
            if !model.is_empty() {
                self.show(model.clone()).await?;
            }
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
        let Link::One(client) = &self.link else {
            let problem = "several daemons are behind this gateway, each with a store of its own: ask one of them to pull";
            return Err(Status::unimplemented(problem));
        };
        let answer = client.clone().pull(request).await;
        let (progress, remote) = (self.said(answer)?, self.remote);
        Ok(progress.map_err(move |status| of_the_gateway(remote, status)))
    }
}
