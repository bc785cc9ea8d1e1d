//! The page for browsers: served to everyone, asked for again cheaply, and gone where it is not wanted.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;

use crate::{
    Server,
    fake::hello,
    http::{get, post, send},
    script,
};

fn with_key(config: &mut hanzo_engine_gateway::Config) {
    config.api_key = Some(hanzo_engine_access::Secret::new("a-long-enough-key").unwrap());
    config.private_metrics = true;
}

#[tokio::test]
async fn everyone_is_shown_the_page_and_the_rest_still_wants_a_key() {
    let server = Server::with(script(hello), with_key).await;
    let page = get(server.address, "/").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let mut parts = 0;
    for path in page.text.split(['"', '\'']).filter(|word| word.starts_with("page/")) {
        let part = get(server.address, &format!("/{path}")).await;
        assert_eq!(part.status, 200, "{path}");
        parts += 1;
    }
    assert!(parts > 4, "{parts}");
    for path in ["/v1/models", "/health", "/metrics", "/page/no.js"] {
        assert_eq!(get(server.address, path).await.status, 401, "{path}");
    }
    assert_eq!(post(server.address, "/", &serde_json::json!({"inputs": "x"})).await.status, 401);
}

#[tokio::test]
async fn what_a_browser_has_is_not_sent_again() {
    let server = Server::start(script(hello)).await;
    let first = get(server.address, "/page/app.js").await;
    let tag = first.header("etag").unwrap();
    let ask =
        |tag: &str| Request::get("/page/app.js").header("if-none-match", tag).body(Full::<Bytes>::default());
    let again = send(server.address, ask(tag).unwrap()).await;
    assert_eq!((again.status, again.text.as_str(), again.header("etag")), (304, "", Some(tag)));
    assert_eq!(send(server.address, ask("\"other\"").unwrap()).await.status, 200);
    let head = Request::head("/").body(Full::<Bytes>::default()).unwrap();
    let head = send(server.address, head).await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
}

#[tokio::test]
async fn a_server_without_a_page_takes_post_alone() {
    let server = Server::with(script(hello), |config| config.page = false).await;
    assert_eq!(get(server.address, "/").await.status, 405);
    assert_eq!(get(server.address, "/page/app.js").await.status, 404);
}
