//! MCP sessions over HTTP: the SDK's sessions, bounded in number, each tied to the key that opened it. An idle
//! one ends after a while, or earlier if another client needs its place.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures_util::Stream;
use rmcp::{
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        common::server_side_http::{ServerSseMessage, SessionId},
        streamable_http_server::{
            SessionManager,
            session::local::{LocalSessionManager, LocalSessionManagerError},
        },
    },
};

use crate::{
    error::ApiError,
    limits::{MCP_CHANNEL_MESSAGES, MCP_INITIALIZE_TIMEOUT},
};

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    local: LocalSessionManager,
    known: Mutex<HashMap<SessionId, SessionState>>,
    max: usize,
}

/// State of a session.
#[derive(Debug)]
struct SessionState {
    owner: Option<String>, // name of the opener's key
    client: String,        // the opener; empty if unknown
    used: Instant,
    calls: usize, // running calls
}

impl Sessions {
    /// Creates the manager of up to `max` sessions.
    pub(super) fn new(max: usize, idle: Duration) -> Sessions {
        let mut local = LocalSessionManager::default();
        local.session_config.keep_alive = Some(idle);
        local.session_config.channel_capacity = MCP_CHANNEL_MESSAGES;
        local.session_config.init_timeout = Some(MCP_INITIALIZE_TIMEOUT);
        Sessions { local, known: Mutex::default(), max }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<SessionId, SessionState>> {
        // The state is consistent even if a thread panicked while holding the lock.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the session exists and was opened with that key. Marks it as used.
    pub(super) fn used_by(&self, id: &str, owner: Option<&str>) -> bool {
        match self.known().get_mut(id) {
            Some(known) if known.owner.as_deref() == owner => {
                known.used = Instant::now();
                true
            }
            _ => false,
        }
    }

    /// Records the key and the client that opened a session.
    pub(super) fn opened_by(&self, id: &str, owner: Option<String>, client: String) {
        if let Some(known) = self.known().get_mut(id) {
            (known.owner, known.client) = (owner, client);
        }
    }

    /// Ends a session if there is no place for another one: the longest idle one of the client that has the
    /// most, so that one client cannot end the sessions of the others.
    ///
    /// # Errors
    /// 503 if all are in use.
    pub(super) async fn make_room(&self) -> Result<(), ApiError> {
        let oldest = {
            let known = self.known();
            if known.len() < self.max {
                return Ok(());
            }
            longest_idle_of_most(&known)
        };
        let Some(oldest) = oldest else {
            return Err(ApiError::busy("the server has as many sessions of MCP as it may; try again"));
        };
        tracing::info!("an idle session of MCP makes room for another");
        // The session may have ended by itself meanwhile.
        self.close_session(&oldest).await.or(Ok(()))
    }

    /// Counts a tool call of a session until dropped.
    pub(super) fn call(self: &Arc<Self>, id: &str) -> ToolCallGuard {
        let id: SessionId = Arc::from(id);
        if let Some(known) = self.known().get_mut(&id) {
            known.calls += 1;
        }
        ToolCallGuard { sessions: Arc::clone(self), id }
    }
}

/// Longest idle session of the client with the most sessions, among the clients that have an idle one.
fn longest_idle_of_most(known: &HashMap<SessionId, SessionState>) -> Option<SessionId> {
    let mut counts = HashMap::<&str, usize>::new();
    for one in known.values() {
        *counts.entry(&one.client).or_default() += 1;
    }
    let count = |one: &SessionState| counts.get(one.client.as_str()).copied().unwrap_or_default();
    let idle = known.iter().filter(|(_, one)| one.calls == 0);
    let first = idle.min_by_key(|(_, one)| (Reverse(count(one)), one.used));
    first.map(|(id, _)| Arc::clone(id))
}

/// Running tool call.
pub(super) struct ToolCallGuard {
    sessions: Arc<Sessions>,
    id: SessionId,
}

impl Drop for ToolCallGuard {
    fn drop(&mut self) {
        if let Some(known) = self.sessions.known().get_mut(&self.id) {
            known.calls = known.calls.saturating_sub(1);
            known.used = Instant::now();
        }
    }
}

impl SessionManager for Sessions {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let (id, transport) = self.local.create_session().await?;
        let known = SessionState { owner: None, client: String::new(), used: Instant::now(), calls: 0 };
        self.known().insert(Arc::clone(&id), known);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.local.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.local.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.known().remove(id);
        self.local.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.create_stream(id, message).await
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.local.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.resume(id, last_event_id).await
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashMap,
        sync::Arc,
        time::{Duration, Instant},
    };

    use super::{SessionState, longest_idle_of_most};

    #[test]
    fn a_client_with_many_sessions_makes_room_itself() {
        let start = Instant::now();
        let known = |client: &str, seconds, calls| SessionState {
            owner: None,
            client: client.to_owned(),
            used: start + Duration::from_secs(seconds),
            calls,
        };
        let sessions = [
            ("other", known("10.0.0.1", 0, 0)),
            ("busy", known("10.0.0.2", 1, 1)),
            ("second", known("10.0.0.2", 3, 0)),
            ("first", known("10.0.0.2", 2, 0)),
        ];
        let mut all: HashMap<Arc<str>, SessionState> =
            sessions.into_iter().map(|(id, known)| (Arc::from(id), known)).collect();
        for left in ["first", "second", "other"] {
            assert_eq!(longest_idle_of_most(&all).as_deref(), Some(left));
            all.remove(left);
        }
        // A session with a running call stays.
        assert_eq!(longest_idle_of_most(&all), None);
    }
}
