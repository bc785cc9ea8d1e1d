//! Web pages of other origins: every route of the server's own description, asked as a browser asks for such a page.

use axum::body::Body;
use hyper::Request;
use serde_json::{Value, json};

use crate::{
    Server,
    fake::hello,
    http::{Answer, get, send},
    script,
};

const LISTED: &str = "https://chat.example.com";

/// Headers that a browser sends, and whether the page may send a request.
const PAGES: [(&[(&str, &str)], bool); 14] = [
    (&[], true),
    (&[("origin", "http://localhost")], true),
    (&[("origin", "http://localhost"), ("sec-fetch-site", "same-origin")], true),
    (&[("sec-fetch-site", "none")], true),
    (&[("origin", LISTED)], true),
    (&[("origin", LISTED), ("sec-fetch-site", "cross-site")], true),
    (&[("origin", "https://evil.example")], false),
    (&[("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")], false),
    (&[("origin", "null")], false),
    (&[("origin", "null"), ("sec-fetch-site", "cross-site")], false),
    (&[("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")], false),
    (&[("origin", "http://localhost.evil.example")], false),
    (&[("sec-fetch-site", "cross-site")], false),
    (&[("sec-fetch-site", "same-site")], false),
];

async fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    // A kind that a page may send without a preflight.
    let mut request = Request::builder().method(method).uri(path).header("content-type", "text/plain");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(server.address, request.body(Body::from("x")).unwrap()).await
}

/// Whether an answer is the refusal of a page, in the words of the route's own dialect.
fn is_refusal(answer: &Answer) -> bool {
    answer.status == 403 && answer.text.contains("--cors-origin")
}

/// Methods and paths that the server describes, and some that it does not.
async fn routes(server: &Server) -> Vec<(String, String)> {
    let document = get(server.address, "/openapi.json").await.json();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path
            .replace("{digest}", "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
        let path = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        let path = path.collect::<Vec<_>>().join("/");
        let methods = methods.as_object().unwrap();
        routes.extend(methods.keys().map(|method| (method.to_uppercase(), path.clone())));
    }
    assert!(routes.len() > 60, "{routes:?}");
    for other in [("POST", "/no/such/route"), ("PUT", "/v1/models"), ("PATCH", "/"), ("OPTIONS", "/api/chat")]
    {
        routes.push((other.0.to_owned(), other.1.to_owned()));
    }
    routes
}

#[tokio::test]
async fn no_route_takes_what_a_page_of_another_origin_sends() {
    let server = Server::with(script(hello), |config| config.cors_origins = vec![LISTED.to_owned()]).await;
    for (method, path) in routes(&server).await {
        let reads = matches!(method.as_str(), "GET" | "HEAD") && path != "/mcp";
        for (headers, may) in PAGES {
            if method == "GET" && path == "/mcp" && may {
                continue; // its answer does not end
            }
            let answer = ask(&server, &method, &path, headers).await;
            let expected = !may && !reads;
            assert_eq!(is_refusal(&answer), expected, "{method} {path} {headers:?}: {}", answer.text);
        }
    }
}

#[tokio::test]
async fn a_refused_page_reaches_no_engine_and_keeps_no_bytes() {
    let server = Server::start(script(hello)).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}]}).to_string();
    for path in ["/v1/chat/completions", "/api/chat", "/v1/messages"] {
        let request = Request::post(path).header("origin", "https://evil.example");
        let request = request.header("content-type", "application/json").body(Body::from(body.clone()));
        assert!(is_refusal(&send(server.address, request.unwrap()).await), "{path}");
    }
    assert!(server.fake.seen().is_empty());
    // The body never ends: an answer that waits for it would not come.
    let endless = Body::from_stream(futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
    let request = Request::post("/api/blobs/sha256:00").header("origin", "null").body(endless).unwrap();
    assert!(is_refusal(&send(server.address, request).await));
}

#[tokio::test]
async fn the_refusal_has_the_shape_of_its_dialect() {
    let server = Server::start(script(hello)).await;
    let code = async |path: &str, code: fn(&Value) -> &Value| {
        let answer = ask(&server, "POST", path, &[("origin", "https://evil.example")]).await.json();
        assert!(!code(&answer).is_null(), "{path}: {answer}");
    };
    code("/v1/chat/completions", |answer| &answer["error"]["code"]).await;
    code("/v1/messages", |answer| &answer["error"]["type"]).await;
    code("/api/generate", |answer| &answer["error"]).await;
    code("/mcp", |answer| &answer["error"]["data"]["code"]).await;
}
