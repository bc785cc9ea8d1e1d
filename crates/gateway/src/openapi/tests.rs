//! Comparison of the document with the code, in both directions: registered routes, and fields that the parsers
//! read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{body::Body, http::Request};
use hanzo_engine_access::{Access, ClientTls};
use serde_json::Value;
use tower::ServiceExt as _;

use super::{document, routes};
use crate::{app::App, config::Config, engine::Engine, fields, mcp::Mcp, routes::router};

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

/// Top-level fields that each route reads while it parses its examples.
async fn looked_for() -> BTreeMap<(&'static str, &'static str), BTreeSet<String>> {
    let config = Config { adapter_updates: true, ..Config::default() };
    let mut found = BTreeMap::new();
    // No engine listens there: when the engine is asked, the body has been parsed.
    let engine = Engine::connect_lazy("http://127.0.0.1:1", None, &ClientTls::default()).unwrap();
    let access = Arc::new(Access::open(config.access()).unwrap());
    let app = Arc::new(App::new(config, engine, access).unwrap());
    let mcp = Mcp::new(&app);
    for route in routes().into_iter().filter(|route| !route.examples.is_empty()) {
        let mut names = BTreeSet::new();
        for example in &route.examples {
            fields::record();
            let request = Request::builder().method(route.method).uri(route.path);
            let (kind, body) = match route.takes_form() {
                false => ("application/json", example.to_string()),
                true => ("multipart/form-data; boundary=x", form(example)),
            };
            let request = request.header("content-type", kind).body(Body::from(body));
            let answer = router(Arc::clone(&app), mcp.clone()).oneshot(request.unwrap()).await.unwrap();
            assert_ne!(answer.status(), 400, "{} {example}", route.path);
            names.extend(fields::recorded());
            names.extend(route.takes_form().then(|| "file".to_owned()));
        }
        found.insert((route.method, route.path), names);
    }
    found
}

/// Properties of a request's schema, or of its alternatives.
fn documented(document: &Value, method: &str, path: &str) -> BTreeSet<String> {
    let operation = &document["paths"][path][method.to_lowercase()];
    let content = operation["requestBody"]["content"].as_object().unwrap();
    let schema = &content.values().next().unwrap()["schema"];
    let one = std::slice::from_ref(schema);
    let properties = |schema: &Value| {
        let name = schema["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        document["components"]["schemas"][name]["properties"].as_object().unwrap().keys().cloned()
    };
    schema["anyOf"].as_array().map_or(one, Vec::as_slice).iter().flat_map(properties).collect()
}

#[tokio::test]
async fn what_a_parser_looks_for_is_documented_and_what_is_documented_is_looked_for() {
    let document = document();
    let mut faults = Vec::new();
    for ((method, path), looked_for) in looked_for().await {
        let documented = documented(&document, method, path);
        for name in looked_for.difference(&documented) {
            faults
                .push(format!("{path}: {name} is read, and not declared (fields!, or openapi/schemas.txt)"));
        }
        for name in documented.difference(&looked_for) {
            faults.push(format!("{path}: {name} is declared, and never read"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
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
