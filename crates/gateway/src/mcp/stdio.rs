//! MCP server over stdin and stdout, for the parent process. Logs go elsewhere.

use std::{pin::Pin, sync::Arc};

use hanzo_engine_access::Access;
use rmcp::transport::async_rw::AsyncRwTransport;

use crate::{app::App, config::Config, engine::Engine, error::GatewayError, mcp::server::Server};

/// Serves the engine at `config.engine` until stdin ends or `shutdown` resolves.
///
/// # Errors
/// [`GatewayError`] if a setting is out of range, the engine's URI is invalid, or the input is not that of an
/// MCP client.
pub async fn serve_stdio(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), GatewayError> {
    let config = config.checked()?;
    let key = config.engine_api_key.as_ref().or(config.api_key.as_ref());
    let engine = Engine::connect_lazy(&config.engine, key, &config.engine_tls())?;
    let access = Arc::new(Access::open(config.access())?);
    let line_bytes_max = config.body_bytes_max;
    let server = Server::over_stdio(Arc::new(App::new(config, engine, access)?));
    tokio::select! {
        served = serving(server, line_bytes_max) => served,
        () = shutdown => Ok(()),
    }
}

/// Serves a client until stdin ends. In a box, because whoever awaits an async function compiles it: 100 KB that the
/// gateway has already.
fn serving(
    server: Server,
    line_bytes_max: usize,
) -> Pin<Box<dyn Future<Output = Result<(), GatewayError>> + Send>> {
    let lines = AsyncRwTransport::new_server(tokio::io::stdin(), tokio::io::stdout());
    let lines = lines.with_max_line_length(line_bytes_max);
    Box::pin(async {
        let running = match rmcp::serve_server(server, lines).await {
            Ok(running) => running,
            // The input ended before a session began.
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(GatewayError::Mcp(error.to_string())),
        };
        running.waiting().await.map(|_| ()).map_err(|error| GatewayError::Mcp(error.to_string()))
    })
}
