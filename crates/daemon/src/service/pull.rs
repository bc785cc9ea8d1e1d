//! The calls Pull, its preview, cancellation and list. Progress goes to all clients that asked for the same model.
//! A client that disconnects stops nothing, unless it asked for that.

use std::sync::Arc;

use futures_util::{Stream, stream};
use hanzo_engine_proto::v1;
use hanzo_engine_store::{Pull, PullState};
use tonic::Status;

use super::Core;
use crate::{
    convert::{reply::stored_model, store as convert},
    error::Error,
    limits::RETRY_AFTER_MS_UNMEASURED,
};

struct Watcher {
    core: Arc<Core>,
    pull: Pull,
    joined: bool,
    over: bool,
}

/// Begins a pull or joins it. The stream ends with the model or a status.
pub(super) async fn pull(
    core: &Arc<Core>,
    request: v1::PullRequest,
) -> Result<impl Stream<Item = Result<v1::PullProgress, Status>> + use<>, Error> {
    let _active = core.drain.enter()?;
    let ends_with_clients = request.cancel_with_client;
    let (reference, options) = convert::pull_request(request);
    let puller = core.pulls.puller()?;
    let pull = match ends_with_clients {
        true => puller.pull_while_watched(&reference, &options)?,
        false => puller.pull(&reference, &options)?,
    };
    let joined = pull.joined();
    let watcher = Watcher { core: core.clone(), pull, joined, over: false };
    Ok(stream::unfold(watcher, |mut watcher| async move {
        let said = watcher.next().await?;
        Some((said, watcher))
    }))
}

impl Watcher {
    async fn next(&mut self) -> Option<Result<v1::PullProgress, Status>> {
        if self.over {
            return None;
        }
        let state = tokio::select! {
            state = self.pull.next() => state,
            () = self.core.drain.begun() => {
                self.over = true;
                let retry_after_ms = RETRY_AFTER_MS_UNMEASURED;
                return Some(Err(Error::Draining { retry_after_ms }.into()));
            }
        };
        Some(match state {
            PullState::Running(progress) => Ok(convert::pull_progress(progress, self.joined)),
            PullState::Done(record, progress) => {
                self.over = true;
                let stored = Some(stored_model(&record, false));
                Ok(v1::PullProgress { stored, ..convert::pull_progress(progress, self.joined) })
            }
            PullState::Failed(error) => {
                self.over = true;
                Err(Error::Pull(error).into())
            }
        })
    }
}

/// Previews a pull.
pub(super) async fn propose(core: &Arc<Core>, request: v1::PullRequest) -> Result<v1::PullProposal, Error> {
    let (reference, options) = convert::pull_request(request);
    let proposal = core.pulls.puller()?.propose(&reference, &options).await?;
    Ok(convert::proposal(proposal))
}

/// Cancels pulls.
pub(super) fn cancel(
    core: &Arc<Core>,
    request: v1::CancelPullRequest,
) -> Result<v1::CancelPullResponse, Error> {
    let (reference, options) = convert::cancel_request(request);
    let cancelled = core.pulls.puller()?.cancel(&reference, &options)?;
    Ok(v1::CancelPullResponse { cancelled: u32::try_from(cancelled).unwrap_or(u32::MAX) })
}

/// Lists running and interrupted pulls.
pub(super) async fn pulls(core: &Arc<Core>) -> Result<v1::PullsResponse, Error> {
    let running = core.pulls.puller()?.running();
    let known = core.models.with_store(|store| store.pulls()).await?;
    Ok(convert::pulls(running, known))
}
