//! The gateway through real sockets, in front of a scripted engine.

// A test that cannot go on has failed.
#![allow(clippy::unwrap_used)]

mod anthropic;
mod audio;
mod cloud;
mod cohere;
mod connections;
mod dialects;
mod doors;
mod embeddings;
mod failures;
mod fake;
mod fake_speech;
mod fake_store;
mod films;
mod fleet;
mod heard;
mod history;
mod http;
mod keys;
mod llamacpp;
mod mcp;
mod mcp_tools;
mod media_bounds;
mod models;
mod ollama;
mod ollama_create;
mod origins;
mod overhead;
mod page;
mod partial_calls;
mod refusals;
mod requests;
mod responses;
mod responses_input;
mod responses_kept;
mod scores;
mod shapes;
mod speech;
mod surfaces;
mod tei;
mod traced;
mod vectors;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use fake::{Fake, Script};
use hanzo_engine_gateway::{Config, Gateway};
use tokio::{sync::oneshot, task::JoinHandle};

/// The longest that anything here may take: a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A gateway in front of a fake engine, both on free ports.
struct Server {
    address: SocketAddr,
    fake: Fake,
    stop: Option<oneshot::Sender<()>>,
    stopped: JoinHandle<()>,
}

impl Server {
    async fn start(script: Script) -> Server {
        Server::with(script, |_| {}).await
    }

    async fn with(script: Script, configure: impl FnOnce(&mut Config)) -> Server {
        let fake = Fake::start(script).await;
        let mut config = Config { port: 0, engine: fake.uri(), ..Config::default() };
        configure(&mut config);
        let gateway = Gateway::bind(config).await.unwrap();
        let address = gateway.local_addr();
        let (stop, stopping) = oneshot::channel();
        let serving = gateway.serve(async {
            // Also when the sender is dropped, which is how most tests end.
            let _ = stopping.await;
        });
        let stopped = tokio::spawn(async { serving.await.unwrap() });
        Server { address, fake, stop: Some(stop), stopped }
    }

    /// Sends the shutdown signal.
    fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits until the gateway has stopped.
    async fn stopped(self) {
        tokio::time::timeout(PATIENCE, self.stopped).await.unwrap().unwrap();
    }
}

/// A script from a function of the request.
fn script(
    f: impl Fn(&hanzo_engine_proto::v1::InferRequest) -> Result<Vec<fake::Step>, tonic::Status>
    + Send
    + Sync
    + 'static,
) -> Script {
    Arc::new(f)
}
