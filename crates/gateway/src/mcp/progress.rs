//! What a client is told while a tool works: how far it is, and before that how far the load of its model, where the client has
//! asked for that.

use std::{convert::Infallible, pin::pin, time::Duration};

use hanzo_engine_proto::v1::{ModelState, ModelStatus};
use rmcp::{
    RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::{Peer, RequestContext},
};
use tokio::time::Instant;

use crate::{
    app::App,
    asker::Asker,
    limits::{MCP_LOAD_LOOK, MCP_PROGRESS_INTERVAL},
};

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

    /// Whether anybody has asked.
    pub(super) fn is_wanted(&self) -> bool {
        self.to.is_some()
    }

    /// As [`Progress::tell`], with a word that stands for itself.
    pub(super) async fn say(&mut self, reached: f64, total: Option<f64>, word: &str, last: bool) {
        self.message.clear();
        self.tell(reached, total, word, last).await;
        self.message.clear();
    }

    /// Says that the model is so far on its way, in percent, or waits for room: less than one of whatever the tool counts.
    pub(super) async fn loads(&mut self, model: &str, percent: u32, waits: bool) {
        let word = match waits {
            true => format!("{model} waits until other models have made room for it"),
            false => format!("{model} is loading: {percent} %"),
        };
        self.say(f64::from(percent.min(100) + 1) / 102.0, None, &word, false).await;
    }

    /// What `work` comes to; it may wait for the load of the model that has the name, and the client hears of that meanwhile.
    pub(super) async fn beside<T>(
        &mut self,
        (app, asker): (&App, &Asker),
        model: &str,
        work: impl Future<Output = T>,
    ) -> T {
        if !self.is_wanted() || model.is_empty() {
            return work.await;
        }
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = &mut work => done,
            never = self.watch(app, asker, model) => match never {},
        }
    }

    /// Tells how the load of the model goes, as often as it is looked.
    async fn watch(&mut self, app: &App, asker: &Asker, model: &str) -> Infallible {
        let mut engine = app.engine(asker);
        let mut names = vec![model.to_owned()];
        if let Ok(shown) = engine.show(model.to_owned()).await {
            // It loads under the name that it has in the store, unless the configuration has given it this one.
            names.extend(shown.model.map(|stored| stored.name));
            names.extend(shown.status.map(|status| status.name));
        }
        let is_meant =
            |status: &ModelStatus| names.iter().any(|name| name.eq_ignore_ascii_case(&status.name));
        loop {
            // What cannot be told now may be told by the next look.
            let models = engine.stats().await.map(|stats| stats.models).unwrap_or_default();
            let status = models.into_iter().filter_map(|model| model.status).find(is_meant);
            if let Some(status) = status {
                let percent = (status.load_progress.clamp(0.0, 1.0) * 100.0) as u32;
                match status.state() {
                    ModelState::Queued => self.loads(&status.name, percent, true).await,
                    ModelState::Loading => self.loads(&status.name, percent, false).await,
                    _ => {}
                }
            }
            tokio::time::sleep(MCP_LOAD_LOOK).await;
        }
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
