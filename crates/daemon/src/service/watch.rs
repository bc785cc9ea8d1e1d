//! The call Watch: the current state of each model, then every change. A watcher that lags behind receives a fresh
//! snapshot instead of the changes it missed.

use std::{collections::VecDeque, sync::Arc};

use futures_util::{Stream, stream};
use hanzo_engine_proto::v1;
use hanzo_engine_store::{Match, find_name};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tonic::Status;

use super::Core;
use crate::{convert::reply, error::Error, limits::RETRY_AFTER_MS_UNMEASURED, views::ModelView};

struct Watcher {
    core: Arc<Core>,
    model: String,
    ready: VecDeque<ModelView>,
    changes: Receiver<ModelView>,
    over: bool,
}

/// Response stream; it ends with UNAVAILABLE when the daemon drains.
pub(super) fn watch(
    core: &Arc<Core>,
    model: String,
) -> impl Stream<Item = Result<v1::WatchEvent, Status>> + use<> {
    let (views, changes) = core.models.registry.watch();
    let watcher = Watcher { core: core.clone(), model, ready: views.into(), changes, over: false };
    stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await?;
        Some((event, watcher))
    })
}

impl Watcher {
    async fn next(&mut self) -> Option<Result<v1::WatchEvent, Status>> {
        if self.over {
            return None;
        }
        loop {
            while let Some(view) = self.ready.pop_front() {
                if self.wants(&view) {
                    return Some(Ok(v1::WatchEvent { model: Some(reply::model_status(&view)) }));
                }
            }
            let changed = tokio::select! {
                changed = self.changes.recv() => changed,
                () = self.core.drain.begun() => Err(RecvError::Closed),
            };
            match changed {
                Ok(view) => self.ready.push_back(view),
                Err(RecvError::Lagged(_)) => {
                    let (views, changes) = self.core.models.registry.watch();
                    (self.ready, self.changes) = (views.into(), changes);
                }
                Err(RecvError::Closed) => {
                    self.over = true;
                    let retry_after_ms = RETRY_AFTER_MS_UNMEASURED;
                    return Some(Err(Error::Draining { retry_after_ms }.into()));
                }
            }
        }
    }

    fn wants(&self, view: &ModelView) -> bool {
        self.model.is_empty() || find_name(&self.model, [view.name.as_str()]) != Match::None
    }
}
