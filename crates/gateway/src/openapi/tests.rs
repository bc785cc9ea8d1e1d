//! Comparison of the document with the code: registered routes in both directions, and examples.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{body::Body, http::Request};
use hanzo_engine_access::{Access, ClientTls};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{document, routes};
use crate::{app::App, config::Config, engine::Engine, mcp::Mcp, routes::router};

/// Whether a route belongs to the web page, which is no API.
fn is_of_the_page(path: &str) -> bool {
    crate::page::is_own(path)
}

/// Every `(method, path)` that this crate's sources register by `.route("…", get(…)` and the like.
fn registered() -> BTreeSet<(String, String)> {
    fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => sources(&path, found),
                path => found.push(path),
            }
        }
    }
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let mut routes = BTreeSet::new();
    for file in files
        .iter()
        .filter(|file| file.extension().is_some_and(|ext| ext == "rs") && !file.ends_with("openapi/tests.rs"))
    {
        let text = fs::read_to_string(file).unwrap();
        for rest in text.split(".route(").skip(1) {
            let literal = |rest: &'static str| rest.strip_prefix('"')?.split_once('"');
            let named = |rest: &'static str| Some((crate::mcp::PATH, rest.strip_prefix("mcp::PATH")?));
            let rest: &'static str = String::leak(rest.trim_start().to_owned());
            let Some((path, rest)) = literal(rest).or_else(|| named(rest)) else { continue };
            // The methods are written before the next route or the end of the statement.
            let handlers = rest.split(".route(").next().unwrap_or_default();
            let handlers = handlers.split(['\n', ';']).take(4).collect::<String>();
            // A route for any method is documented with these three.
            let handlers = handlers.replace("any(", "get(post(delete(");
            for method in ["get", "post", "delete", "put", "patch", "head"] {
                let is = |at: usize| {
                    !handlers[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
                };
                if handlers.match_indices(&format!("{method}(")).any(|(at, _)| is(at)) {
                    routes.insert((method.to_uppercase(), path.replace("{*", "{")));
                }
            }
        }
    }
    routes
}

#[test]
fn every_route_is_in_the_document_and_every_route_in_the_document_is_there() {
    let documented: BTreeSet<(String, String)> =
        routes().iter().map(|route| (route.method.to_owned(), route.path.to_owned())).collect();
    let registered = registered();
    assert!(registered.len() > 30, "{registered:?}");
    let missing: Vec<_> =
        registered.difference(&documented).filter(|(_, path)| !is_of_the_page(path)).collect();
    assert!(missing.is_empty(), "not in openapi/routes.txt: a line each, and their schemas: {missing:?}");
    let gone: Vec<_> = documented.difference(&registered).collect();
    assert!(gone.is_empty(), "in openapi/routes.txt, and registered nowhere: {gone:?}");
}

#[test]
fn every_schema_that_is_named_is_there_and_every_schema_is_named() {
    let document = document();
    let text = document.to_string();
    let there: BTreeSet<&str> =
        document["components"]["schemas"].as_object().unwrap().keys().map(String::as_str).collect();
    let named: BTreeSet<&str> =
        text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(named, there, "named (left) and there (right)");
}

/// Example as a multipart form.
fn form(example: &Value) -> String {
    let part = |(name, value): (&String, &Value)| {
        let file = if name == "file" { "; filename=\"a.wav\"" } else { "" };
        let text = value.as_str().unwrap();
        format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"{file}\r\n\r\n{text}\r\n")
    };
    example.as_object().unwrap().iter().map(part).collect::<String>() + "--x--\r\n"
}

#[tokio::test]
async fn every_example_is_accepted() {
    let config = Config { adapter_updates: true, ..Config::default() };
    // No engine listens there: when the engine is asked, the body has been parsed.
    let engine = Engine::connect_lazy("http://127.0.0.1:1", None, &ClientTls::default()).unwrap();
    let access = Arc::new(Access::open(config.access()).unwrap());
    let app = Arc::new(App::new(config, engine, access).unwrap());
    let mcp = Mcp::new(&app);
    for route in routes() {
        for example in &route.examples {
            let request = Request::builder().method(route.method).uri(route.path);
            let (kind, body) = match route.takes_form() {
                false => ("application/json", example.to_string()),
                true => ("multipart/form-data; boundary=x", form(example)),
            };
            let request = request.header("content-type", kind).body(Body::from(body));
            let answer = router(Arc::clone(&app), mcp.clone()).oneshot(request.unwrap()).await.unwrap();
            assert_ne!(answer.status(), 400, "{} {example}", route.path);
        }
    }
}

#[test]
fn ranges_defaults_and_groups_are_in_the_schemas() {
    let document = document();
    let chat = &document["components"]["schemas"]["ChatRequest"];
    assert_eq!(chat["required"], json!(["messages"]));
    assert_eq!(chat["additionalProperties"], json!(false));
    let temperature = &chat["properties"]["temperature"];
    assert_eq!((&temperature["minimum"], &temperature["maximum"]), (&json!(0), &json!(2)));
    assert_eq!(chat["properties"]["repetition_penalty"]["exclusiveMinimum"], json!(0));
    // A field that is read stands for itself, and not for the table's entry of that name.
    assert!(chat["properties"]["keep_alive"]["anyOf"].is_array());
    let problem = chat["properties"]["use_beam_search"]["description"].as_str().unwrap();
    assert_eq!(problem, "not supported by this build; the only value it accepts is false");
    let message = &document["components"]["schemas"]["ChatMessage"];
    assert_eq!(message.get("additionalProperties"), None);
}

#[test]
fn a_request_with_a_body_has_an_example() {
    let bare = routes().into_iter().filter(|route| route.request != "-" && route.examples.is_empty());
    // These share the fields of three other routes, or have the messages of the MCP library.
    let bare: Vec<_> = bare
        .filter(|route| !route.takes_blob())
        .map(|route| route.path)
        .filter(|path| !["/", crate::mcp::PATH].contains(path))
        .collect();
    assert!(bare.is_empty(), "no `e.g.` line that their fields are checked by: {bare:?}");
}
