//! Progress notifications of a running tool, including the load of its model, for clients that ask for them.

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

/// Progress channel of one call.
pub(super) struct ProgressChannel {
    to: Option<(Peer<RoleServer>, ProgressToken)>, // None: not requested
    reached: f64,
    message: String, // text since the last notification
    told: Option<Instant>,
}

impl ProgressChannel {
    /// Progress channel that the call asks for.
    pub(super) fn of(context: &RequestContext<RoleServer>) -> ProgressChannel {
        let token = context.meta.get_progress_token();
        let to = token.map(|token| (context.peer.clone(), token));
        ProgressChannel { to, reached: 0.0, message: String::new(), told: None }
    }

    /// Whether progress was requested.
    pub(super) fn is_wanted(&self) -> bool {
        self.to.is_some()
    }

    /// Like [`ProgressChannel::tell`], but `word` is not joined with earlier text.
    pub(super) async fn say(&mut self, reached: f64, total: Option<f64>, word: &str, last: bool) {
        self.message.clear();
        self.tell(reached, total, word, last).await;
        self.message.clear();
    }

    /// Reports the load of the model in percent, or that it waits for memory. The value stays below one unit of
    /// the tool's own progress.
    pub(super) async fn loads(&mut self, model: &str, percent: u32, waits: bool) {
        let word = match waits {
            true => format!("{model} waits until other models have made room for it"),
            false => format!("{model} is loading: {percent} %"),
        };
        self.say(f64::from(percent.min(100) + 1) / 102.0, None, &word, false).await;
    }

    /// Runs `work`. Meanwhile it reports the load of `model`, which the work may wait for.
    pub(super) async fn beside<T>(
        &mut self,
        app: &App,
        asker: &Asker,
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

    /// Reports the load of the model at intervals.
    async fn watch(&mut self, app: &App, asker: &Asker, model: &str) -> Infallible {
        let mut engine = app.engine(asker);
        let mut names = vec![model.to_owned()];
        if let Ok(shown) = engine.show(model.to_owned()).await {
            // It loads under its name in the store, unless the configuration gives it this name.
            names.extend(shown.model.map(|stored| stored.name));
            names.extend(shown.status.map(|status| status.name));
        }
        let is_meant =
            |status: &ModelStatus| names.iter().any(|name| name.eq_ignore_ascii_case(&status.name));
        loop {
            // After an error, the next check may succeed.
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

    /// Reports progress, at most once in [`MCP_PROGRESS_INTERVAL`] unless it is the `last` time. Text in
    /// between is sent with the next notification.
    pub(super) async fn tell(&mut self, reached: f64, total: Option<f64>, message: &str, last: bool) {
        let Some((peer, token)) = &self.to else { return };
        self.message.push_str(message);
        let soon = self.told.is_some_and(|told| told.elapsed() < MCP_PROGRESS_INTERVAL);
        // The protocol requires that progress increases.
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
        // A client that does not read gets no more notifications.
        let told = tokio::time::timeout(PATIENCE, peer.notify_progress(said)).await;
        if !matches!(told, Ok(Ok(()))) {
            self.to = None;
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(10);
