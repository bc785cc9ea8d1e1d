//! Life cycle of one MCP server: it is started, asked for its tools, called, and restarted when it ends.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use http::{HeaderName, HeaderValue};
use rmcp::{
    RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest,
        Implementation, JsonObject, ServerResult,
    },
    service::{Peer, PeerRequestOptions, RunningService},
    transport::{
        async_rw::AsyncRwTransport,
        streamable_http_client::{StreamableHttpClientTransport, StreamableHttpClientTransportConfig},
    },
};
use tokio_util::sync::CancellationToken;

use crate::{
    child::{self, Process},
    config::ServerConfig,
    limits::{BACKOFF, HEALTHY, LOOK, MESSAGE_BYTES_MAX, TOOL_BYTES_MAX, TOOLS_OF_SERVER_MAX},
};

/// MCP server in any state.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    config: ServerConfig,
    state: Mutex<ServerState>,
    /// Cancelled when the first start has succeeded or failed.
    tried: CancellationToken,
}

/// Connection and tools of a server.
#[derive(Debug, Default)]
struct ServerState {
    peer: Option<Peer<RoleClient>>,     // None: not connected
    tools: Arc<Vec<rmcp::model::Tool>>, // last known; a call fails while the server is down
}

/// Open connection, closed on drop.
struct ServerConnection {
    service: RunningService<RoleClient, ClientConfig>,
    process: Option<Process>,
}

impl Server {
    pub(crate) fn new(name: String, config: ServerConfig) -> Server {
        Server { name, config, state: Mutex::default(), tried: CancellationToken::new() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ServerState> {
        // The state is consistent even if a thread panicked while holding the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Last known tools.
    pub(crate) fn tools(&self) -> Arc<Vec<rmcp::model::Tool>> {
        Arc::clone(&self.state().tools)
    }

    /// Waits until the first start has succeeded or failed, within its timeout.
    pub(crate) async fn tried(&self) {
        self.tried.cancelled().await;
    }

    /// Keeps the server connected until `ended`.
    pub(crate) async fn live(self: Arc<Self>, ended: CancellationToken) {
        let mut pause = BACKOFF[0];
        // Releases the waiters of `tried` however this ends.
        let mut first = Some(self.tried.clone().drop_guard());
        loop {
            let begun = Instant::now();
            let connected = tokio::select! {
                () = ended.cancelled() => return,
                connected = tokio::time::timeout(self.config.start_timeout(), self.connect()) => connected,
            };
            drop(first.take());
            match connected {
                Ok(Ok(mut connected)) => {
                    tracing::info!(server = self.name, tools = self.tools().len(), "an MCP server is there");
                    tokio::select! {
                        () = ended.cancelled() => {}
                        () = connected.gone() => tracing::warn!(server = self.name, "an MCP server has gone"),
                    }
                    self.state().peer = None;
                    connected.end().await;
                }
                Ok(Err(reason)) => tracing::warn!(server = self.name, reason, "an MCP server does not start"),
                Err(_) => tracing::warn!(
                    server = self.name,
                    reason = "it says nothing",
                    "an MCP server does not start"
                ),
            }
            if begun.elapsed() >= HEALTHY {
                pause = BACKOFF[0];
            }
            tokio::select! {
                () = ended.cancelled() => return,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(BACKOFF[1]),
            }
        }
    }

    /// Connects and lists the tools. An error contains no URL and no header.
    async fn connect(&self) -> Result<ServerConnection, String> {
        let name = Implementation::new("hanzo-engine", env!("CARGO_PKG_VERSION"));
        let client = ClientConfig::new(ClientCapabilities::default(), name);
        let (service, process) = match (&self.config.command, &self.config.url) {
            (Some(command), _) => {
                let started = child::start(&self.name, command, &self.config);
                let (process, output, input) = started.map_err(|error| format!("{command}: {error}"))?;
                let lines =
                    AsyncRwTransport::new_client(output, input).with_max_line_length(MESSAGE_BYTES_MAX);
                let service = rmcp::serve_client(client, lines).await;
                (service.map_err(|error| error.to_string())?, Some(process))
            }
            (None, Some(url)) => {
                let service = rmcp::serve_client(client, self.http(url)?).await;
                // The error contains the URL, which may contain a key.
                (service.map_err(|error| error.to_string().replace(url.as_str(), "URL"))?, None)
            }
            (None, None) => return Err("it has neither a command nor a url".to_owned()),
        };
        let mut tools = Vec::new();
        let mut cursor = None;
        loop {
            let page = rmcp::model::PaginatedRequestParams::default().with_cursor(cursor);
            let page = service.peer().list_tools(Some(page)).await.map_err(|error| error.to_string())?;
            tools.extend(page.tools.into_iter().filter(|tool| self.config.offers(&tool.name)));
            cursor = page.next_cursor;
            if cursor.is_none() || tools.len() > TOOLS_OF_SERVER_MAX {
                break;
            }
        }
        let fits = |tool: &rmcp::model::Tool| {
            serde_json::to_vec(tool).is_ok_and(|text| text.len() <= TOOL_BYTES_MAX)
        };
        let all = tools.len();
        tools.retain(fits);
        tools.truncate(TOOLS_OF_SERVER_MAX);
        if tools.len() < all {
            tracing::warn!(
                server = self.name,
                left_out = all - tools.len(),
                "tools are too many or too large to be offered"
            );
        }
        let mut state = self.state();
        state.tools = Arc::new(tools);
        state.peer = Some(service.peer().clone());
        drop(state);
        Ok(ServerConnection { service, process })
    }

    fn http(&self, url: &str) -> Result<StreamableHttpClientTransport<reqwest::Client>, String> {
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A redirect would send the headers to another server.
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build();
        let client = client.map_err(|error| error.without_url().to_string())?;
        let mut config = StreamableHttpClientTransportConfig::with_uri(url);
        config.max_sse_event_size = MESSAGE_BYTES_MAX;
        config.max_json_response_size = MESSAGE_BYTES_MAX;
        let header = |(name, value): (&String, &String)| {
            let mut value = HeaderValue::try_from(value).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::try_from(name).ok()?, value))
        };
        config.custom_headers = self.config.headers.iter().filter_map(header).collect::<HashMap<_, _>>();
        Ok(StreamableHttpClientTransport::with_client(client, config))
    }

    /// Calls a tool by the server's own name for it.
    pub(crate) async fn call(
        &self,
        tool: &str,
        arguments: JsonObject,
    ) -> Result<rmcp::model::CallToolResult, String> {
        let peer = self.state().peer.clone();
        let Some(peer) = peer else { return Err("its server is not there; it may come back".to_owned()) };
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let limit = self.config.call_timeout();
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        // After the timeout the server is told to cancel.
        let asked = peer.send_cancellable_request(request, PeerRequestOptions::with_timeout(limit)).await;
        let answer = match asked {
            Ok(handle) => handle.await_response().await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(ServerResult::CallToolResult(result)) => Ok(result),
            Ok(_) => Err("it answered what is no result of a tool".to_owned()),
            Err(rmcp::service::ServiceError::Timeout { .. }) => {
                Err(format!("it did not answer within {} seconds", limit.as_secs()))
            }
            Err(error) => {
                let url = self.config.url.as_deref().unwrap_or("\0");
                Err(error.to_string().replace(url, "URL"))
            }
        }
    }
}

impl ServerConnection {
    /// Closes the connection, and waits until the process is gone.
    async fn end(self) {
        let _ = self.service.cancel().await;
        if let Some(process) = self.process {
            process.end().await;
        }
    }

    /// Resolves when the server is gone.
    async fn gone(&mut self) {
        loop {
            let ended = self.process.as_mut().is_some_and(|process| !process.runs());
            if ended || self.service.is_closed() || self.service.peer().is_transport_closed() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

const _: () = assert!(
    BACKOFF[0].as_nanos() <= BACKOFF[1].as_nanos() && LOOK.as_nanos() <= Duration::from_secs(1).as_nanos()
);
