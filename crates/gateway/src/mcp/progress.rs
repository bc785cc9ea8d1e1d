//! What a client is told while a tool works: how far it is, where the client has asked for that.

use std::time::Duration;

use rmcp::{
    RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::{Peer, RequestContext},
};
use tokio::time::Instant;

use crate::limits::MCP_PROGRESS_INTERVAL;

/// The way to one client for one call.
pub(super) struct Progress {
    to: Option<(Peer<RoleServer>, ProgressToken)>, // None: nobody asked
    reached: f64,
    message: String, // since the last time
    told: Option<Instant>,
}

impl Progress {
    /// As the call asks for it.
    pub(super) fn of(context: &RequestContext<RoleServer>) -> Progress {
        let token = context.meta.get_progress_token();
        let to = token.map(|token| (context.peer.clone(), token));
        Progress { to, reached: 0.0, message: String::new(), told: None }
    }

    /// As [`Progress::tell`], with a word that stands for itself.
    pub(super) async fn say(&mut self, reached: f64, total: Option<f64>, word: &str, last: bool) {
        self.message.clear();
        self.tell(reached, total, word, last).await;
    }

    /// Says that it is so far; not more often than clients can use, unless it is the `last` time. Text that comes in between
    /// goes with the next.
    pub(super) async fn tell(&mut self, reached: f64, total: Option<f64>, message: &str, last: bool) {
        let Some((peer, token)) = &self.to else { return };
        self.message.push_str(message);
        let soon = self.told.is_some_and(|told| told.elapsed() < MCP_PROGRESS_INTERVAL);
        // It may only grow.
        if reached <= self.reached || soon && !last {
            return;
        }
        let mut said = ProgressNotificationParam::new(token.clone(), reached);
        if let Some(total) = total.filter(|total| *total >= reached) {
            said = said.with_total(total);
        }
        if !self.message.is_empty() {
            said = said.with_message(std::mem::take(&mut self.message));
        }
        (self.reached, self.told) = (reached, Some(Instant::now()));
        // A client that does not read is told nothing more.
        let told = tokio::time::timeout(PATIENCE, peer.notify_progress(said)).await;
        if !matches!(told, Ok(Ok(()))) {
            self.to = None;
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(10);
