//! Handler of MCP requests.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use axum::http::{HeaderMap, request::Parts};
use hanzo_engine_access::Pass;
// Types of the protocol versions before 2026-07-28, which clients use.
#[allow(deprecated)]
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, SetLevelRequestParams};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, ListResourceTemplatesResult,
        ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams,
        ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde_json::json;

use crate::{
    app::App,
    asker::Asker,
    error::ApiError,
    mcp::{
        SESSION, calls, infer,
        progress::ProgressChannel,
        resources,
        sessions::Sessions,
        tools::{self, Name},
    },
    record::Record,
    request_id::RequestId,
};

const INSTRUCTIONS: &str = "Language models on this server's machine. hanzo_list_models says which there are; one that is \
                            stored is loaded by the first request that names it. hanzo_infer writes text, hanzo_embed makes \
                            vectors and hanzo_rerank orders documents by relevance.";

/// Log level if the client has requested none.
const UNSET: u8 = u8::MAX;

/// MCP server of one client.
pub(crate) struct Server {
    app: Arc<App>,
    sessions: Option<Arc<Sessions>>, // None over stdio
    level: AtomicU8,                 // minimum level of log messages to send
}

impl Server {
    /// Server for a client over HTTP.
    pub(super) fn over_http(app: Arc<App>, sessions: Arc<Sessions>) -> Server {
        Server { app, sessions: Some(sessions), level: AtomicU8::new(UNSET) }
    }

    /// Server for the parent process.
    pub(super) fn over_stdio(app: Arc<App>) -> Server {
        Server { app, sessions: None, level: AtomicU8::new(UNSET) }
    }

    /// Requester of a call.
    fn asker(&self, context: &RequestContext<RoleServer>) -> Result<Asker, ErrorData> {
        let asker = context.extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<Asker>());
        match (asker, &self.sessions) {
            (Some(asker), _) => Ok(asker.clone()),
            (None, None) => Ok(Asker {
                id: RequestId::of(&HeaderMap::new()),
                pass: Pass::anyone(),
                record: Record::default(),
                trace: None,
            }),
            (None, Some(_)) => Err(ErrorData::internal_error("a request without an asker", None)),
        }
    }

    /// Runs a tool. While it runs, it counts as a request of the key.
    async fn run(
        &self,
        tool: Name,
        request: CallToolRequestParams,
        asker: &Asker,
        progress: ProgressChannel,
    ) -> Result<CallToolResult, ApiError> {
        let _admitted = self.app.drain.admit()?;
        let _running = asker.pass.enter().map_err(|refusal| self.app.refuse(&refusal))?;
        let arguments = request.arguments.unwrap_or_default();
        match tool {
            Name::Infer => infer::infer(&self.app, asker, arguments, progress).await,
            Name::Embed => calls::embed(&self.app, asker, arguments, progress).await,
            Name::Rerank => calls::rerank(&self.app, asker, arguments, progress).await,
            Name::ListModels => calls::list_models(&self.app, asker, arguments).await,
            Name::Pull => calls::pull(&self.app, asker, arguments, progress).await,
            Name::Load => calls::load(&self.app, asker, arguments, progress).await,
            Name::Unload => calls::unload(&self.app, asker, arguments).await,
        }
    }

    /// Sends a log message if the client has requested that level.
    #[allow(deprecated)]
    async fn log(&self, context: &RequestContext<RoleServer>, level: LoggingLevel, data: serde_json::Value) {
        if self.level.load(Ordering::Relaxed) <= rank(level) {
            let message = LoggingMessageNotificationParam::new(level, data).with_logger("hanzo-engine");
            // An error means that the client has gone.
            let _ = context.peer.notify_logging_message(message).await;
        }
    }
}

#[allow(deprecated)]
fn rank(level: LoggingLevel) -> u8 {
    match level {
        LoggingLevel::Debug => 0,
        LoggingLevel::Info => 1,
        LoggingLevel::Notice => 2,
        LoggingLevel::Warning => 3,
        LoggingLevel::Error => 4,
        LoggingLevel::Critical => 5,
        LoggingLevel::Alert => 6,
        LoggingLevel::Emergency => 7,
    }
}

/// Error of a tool, as a result for the model.
fn failed(error: &ApiError) -> CallToolResult {
    let mut result = CallToolResult::error(vec![rmcp::model::ContentBlock::text(error.message())]);
    let mut meta = rmcp::model::MetaObject::new();
    meta.insert("hanzo.ai/error".to_owned(), error.json()["error"].take());
    result.meta = Some(meta);
    result
}

#[allow(deprecated)]
impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_resources().enable_logging().build();
        let name = Implementation::new("hanzo-engine", env!("CARGO_PKG_VERSION")).with_title("Hanzo Engine");
        ServerConfig::new(capabilities).with_server_info(name).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let asker = self.asker(&context)?;
        // All tools are on one page.
        resources::first_page(request)?;
        Ok(ListToolsResult::with_all_items(tools::of(asker.pass.is_admin())))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::of(true).into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let asker = self.asker(&context)?;
        let Some(tool) = Name::of(&request.name) else {
            let message = format!("unknown tool: {}", crate::error::quote(&request.name));
            return Err(ErrorData::invalid_params(message, None));
        };
        let session = context.extensions.get::<Parts>().and_then(|parts| parts.headers.get(SESSION));
        let session = session.and_then(|id| id.to_str().ok());
        let _call = self.sessions.as_ref().zip(session).map(|(sessions, id)| sessions.call(id));
        let begun = std::time::Instant::now();
        let progress = ProgressChannel::of(&context);
        let done = tokio::select! {
            biased;
            // The running tool is dropped, which cancels the engine's work.
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("cancelled", None)),
            done = self.run(tool, request, &asker, progress) => done,
        };
        let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (id, name, key) = (asker.id.as_str(), tool.as_str(), asker.pass.name());
        match done {
            Ok(result) => {
                tracing::info!(request_id = id, key, tool = name, ms, "tool called");
                self.log(&context, LoggingLevel::Info, json!({"tool": name, "ms": ms})).await;
                Ok(result.into())
            }
            Err(error) => {
                let status = error.status().as_u16();
                tracing::info!(request_id = id, key, tool = name, ms, status, "tool failed");
                let said = json!({"tool": name, "ms": ms, "error": error.message()});
                self.log(&context, LoggingLevel::Error, said).await;
                Ok(failed(&error).into())
            }
        }
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list(&self.app, &self.asker(&context)?, request).await
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        resources::first_page(request)?;
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&self.app, &self.asker(&context)?, request.uri).await.map(Into::into)
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.level.store(rank(request.level), Ordering::Relaxed);
        Ok(())
    }
}
