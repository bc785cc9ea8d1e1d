//! Tools of MCP servers in chats: who waits for a server that is starting, how long, and for whom nobody waits.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::post,
};
use hanzo_engine_proto::v1::{Capability, infer_request::Prompt};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Semaphore};

use crate::{
    Config, PATIENCE, Server,
    fake::{hello, ready_stats},
    http, script,
};

/// A server with one tool, which it tells of when it is let.
struct Tools {
    address: SocketAddr,
    doors: Arc<Doors>,
}

/// Calls that it refuses; of those for its tools, what it lets through and has seen.
struct Doors {
    refused: Semaphore,
    let_through: Semaphore,
    seen: Semaphore,
}

impl Tools {
    /// One that does not start at first, so many times.
    async fn refusing(times: usize) -> Tools {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let [refused, let_through, seen] = [times, 0, 0].map(Semaphore::new);
        let doors = Arc::new(Doors { refused, let_through, seen });
        let router = Router::new().route("/mcp", post(answer)).with_state(Arc::clone(&doors));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Tools { address, doors }
    }

    fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }
}

async fn answer(State(doors): State<Arc<Doors>>, Json(asked): Json<Value>) -> Response {
    let Some(id) = asked.get("id") else { return StatusCode::ACCEPTED.into_response() };
    if let Ok(refused) = doors.refused.try_acquire() {
        refused.forget();
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let result = match asked["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "test", "version": "1"},
        }),
        Some("tools/list") => {
            doors.seen.add_permits(1);
            doors.let_through.acquire().await.unwrap().forget();
            json!({"tools": [{"name": "add", "inputSchema": {"type": "object"}}]})
        }
        _ => {
            let error = json!({"code": -32601, "message": "no such method"});
            return Json(json!({"jsonrpc": "2.0", "id": id, "error": error})).into_response();
        }
    };
    Json(json!({"jsonrpc": "2.0", "id": id, "result": result})).into_response()
}

/// A gateway whose model calls tools, with these servers.
async fn gateway(servers: Value, configure: impl FnOnce(&mut Config)) -> (Server, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mcp.json");
    std::fs::write(&file, json!({"mcpServers": servers}).to_string()).unwrap();
    let server = Server::with(script(hello), |config| {
        (config.enable_mcp, config.mcp_config) = (true, Some(file));
        configure(config);
    })
    .await;
    let mut stats = ready_stats();
    let status = stats.models[0].status.as_mut().unwrap();
    status.capabilities = vec![Capability::Chat.into(), Capability::Tools.into()];
    server.fake.set_stats(Ok(stats));
    (server, dir)
}

async fn chat(address: SocketAddr) -> http::Answer {
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    http::post(address, "/v1/chat/completions", &body).await
}

/// What the model of the last request was told of.
fn told(server: &Server) -> Vec<String> {
    let last = server.fake.seen().pop().expect("a request");
    let Some(Prompt::Chat(chat)) = last.prompt else { panic!("{:?}", last.prompt) };
    let name = |tool: &String| serde_json::from_str::<Value>(tool).unwrap()["function"]["name"].take();
    chat.tools_json.iter().map(|tool| name(tool).as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_chat_waits_for_a_server_that_is_starting_and_for_none_that_is_down() {
    let tools = Tools::refusing(0).await;
    let servers = json!({"slow": {"url": tools.url()}, "down": {"command": "/no/such/program"}});
    let (server, _dir) = gateway(servers, |config| config.request_timeout_s = Some(90)).await;
    let mut waits = tokio::spawn(chat(server.address));
    // Long enough for a chat that waits for nobody.
    let early = tokio::time::timeout(Duration::from_millis(600), &mut waits).await;
    assert!(early.is_err() && server.fake.seen().is_empty(), "{early:?}");
    tools.doors.let_through.add_permits(1);
    let answer = tokio::time::timeout(PATIENCE, waits).await.expect("it is answered").unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(told(&server), ["slow__add"]);
    // What it has waited is of its time.
    let left = server.fake.timeouts().pop().flatten().expect("a deadline");
    let (number, unit) = left.split_at(left.len() - 1);
    let per_s = [("u", 1e6), ("m", 1e3), ("S", 1.0)].into_iter().find(|(known, _)| *known == unit).unwrap().1;
    assert!(number.parse::<f64>().unwrap() / per_s < 89.9, "{left}");
    // A response is offered them too.
    let answer = http::post(server.address, "/v1/responses", &json!({"input": "hi"})).await;
    assert_eq!((answer.status, told(&server)), (200, vec!["slow__add".to_owned()]), "{}", answer.text);
}

#[tokio::test]
async fn one_that_does_not_start_is_waited_for_once_and_never_beyond_the_requests_time() {
    let tools = Tools::refusing(0).await;
    let mute = json!({"mute": {"url": tools.url(), "start_timeout": 1}});
    let (server, _dir) = gateway(mute, |_| {}).await;
    let answer = tokio::time::timeout(PATIENCE, chat(server.address)).await.expect("in time");
    assert_eq!((answer.status, told(&server)), (200, Vec::new()), "{}", answer.text);

    let (server, _dir) =
        gateway(json!({"mute": {"url": tools.url()}}), |config| config.request_timeout_s = Some(1)).await;
    let answer = tokio::time::timeout(PATIENCE, chat(server.address)).await.expect("in time");
    assert_eq!((answer.status, server.fake.seen().len()), (504, 0), "{}", answer.text);
}

#[tokio::test]
async fn one_that_is_started_again_is_not_waited_for() {
    let tools = Tools::refusing(1).await;
    let (server, _dir) = gateway(json!({"late": {"url": tools.url()}}), |_| {}).await;
    // It is down and was begun anew, and has not said what it has.
    let begun = tokio::time::timeout(PATIENCE, tools.doors.seen.acquire()).await;
    begun.expect("it is started again").unwrap().forget();
    let answer = tokio::time::timeout(PATIENCE, chat(server.address)).await.expect("in time");
    assert_eq!((answer.status, told(&server)), (200, Vec::new()), "{}", answer.text);
}

#[tokio::test]
async fn who_is_offered_no_tools_waits_for_none() {
    let tools = Tools::refusing(0).await;
    let (server, _dir) = gateway(json!({"slow": {"url": tools.url()}}), |_| {}).await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    let own = json!([{"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}]);
    for body in [
        json!({"messages": messages, "tools": own, "tool_choice": "none"}),
        json!({"messages": messages, "n": 2}),
        json!({"messages": messages, "response_format": {"type": "json_object"}}),
    ] {
        let answer = http::post(server.address, "/v1/chat/completions", &body).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    }
    // A model that calls none.
    server.fake.set_stats(Ok(ready_stats()));
    assert_eq!(chat(server.address).await.status, 200);
}
