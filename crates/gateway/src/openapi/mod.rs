//! `GET /openapi.json`: description of every route in OpenAPI 3.1, with its requests, answers and errors. It is
//! built from the requests that `fields!` declares, and from two text files in this folder. `tests.rs` compares
//! it with the registered routes. `page` displays it.

mod schema;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use axum::{
    body::Bytes,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::{
    adapters::{LoadAdapterRequest, UnloadAdapterRequest},
    anthropic::{
        blocks::AnthropicMessage,
        request::{AnthropicTool, AnthropicToolChoice, CountRequest, MessagesRequest},
    },
    audio::{
        request::{TranscriptionForm, TranslationForm},
        speech::SpeechRequest,
    },
    declare::{Schemas, notation},
    llamacpp::{
        ask::{InfillRequest, LlamaCompletionRequest, LlamaPrompt, SourceFile},
        embedding::LlamaEmbeddingRequest,
    },
    media_bounds::PictureBounds,
    models::{
        load::{ModelLoadRequest, ModelUnloadRequest},
        pull::ModelPullRequest,
    },
    ollama::{
        chat::OllamaChatRequest,
        create::OllamaCreateRequest,
        embed::{OllamaEmbedRequest, OllamaEmbeddingsRequest},
        generate::OllamaGenerateRequest,
        manage::{OllamaCopyRequest, OllamaDeleteRequest, OllamaPullRequest},
        messages::OllamaMessage,
        show::OllamaShowRequest,
    },
    openai::{
        chat::{ChatChunk, ChatCompletion},
        completions::Completion,
        messages::{ChatFunctionCall, ChatMessage, ChatToolCall, ContentPart},
        plan::{ChatRequest, CompletionRequest},
        tools::{Function, FunctionName, Tool, ToolChoice},
    },
    pictures::ImageUrl,
    responses::request::{ResponsesCountRequest, ResponsesRequest},
    scores::tasks::{ClassifyRequest, DocumentText, RerankRequest, ScoreRequest},
    sounds::InputAudio,
    tei::words::{EmbedRequest, PredictRequest, SimilarityRequest, TextsRequest},
    tokens::{DetokenizeRequest, TokenizeRequest},
    vectors::{
        cohere::{CohereContent, CohereEmbedRequest, CohereInput},
        inputs::EmbeddingPart,
        openai::EmbeddingsRequest,
    },
};

const ROUTES: &str = include_str!("routes.txt");
const ANSWERS: &str = include_str!("answers.txt");

/// The document, which is the same for all clients. Built at the first request.
static TEXT: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(document().to_string()));

/// Error statuses of a route, with descriptions.
const REFUSALS: [(&str, &str); 11] = [
    ("400", "The request is wrong, or asks for what cannot be done; `param` names the field."),
    ("401", "A key is wanted, or this one is not known."),
    ("403", "The key may not do that, the host is not answered to, or a web page of another origin asks."),
    ("404", "There is no such model, or nothing of that name."),
    ("408", "The body did not arrive in time."),
    ("413", "The body is too large."),
    ("415", "The body is not JSON by its content-type."),
    ("429", "The queue is full, or the key is over its limits; Retry-After says when to come again."),
    ("500", "The server failed; the message has an id that is in its log."),
    ("503", "A model is being loaded, or the server shuts down; Retry-After says when to come again."),
    ("504", "The answer took longer than the server allows."),
];

/// Error statuses of a route without a body.
const REFUSALS_OF_GET: [&str; 8] = ["400", "401", "403", "404", "429", "500", "503", "504"];

/// Handler of the route.
pub(crate) async fn handle() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, TEXT.clone()).into_response()
}

/// Line of `routes.txt`, with the examples below it.
#[derive(Debug)]
struct Route {
    method: &'static str,
    path: &'static str,
    tag: &'static str,
    request: &'static str,
    answer: &'static str,
    event: Option<&'static str>,
    about: &'static str,
    query: Vec<schema::FieldLine<'static>>,
    examples: Vec<Value>,
}

/// All routes, in the order of the text.
fn routes() -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    for line in ROUTES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match (routes.last_mut(), line.strip_prefix("e.g. "), line.strip_prefix("? ")) {
            (Some(route), Some(example), _) => route.examples.extend(serde_json::from_str::<Value>(example)),
            (Some(route), _, Some(parameter)) => route.query.extend(schema::field(parameter)),
            _ => routes.extend(route(line)),
        }
    }
    routes
}

/// Parses `METHOD PATH TAG REQUEST -> ANSWER ~ EVENT : about`.
fn route(line: &'static str) -> Option<Route> {
    let (head, about) = line.split_once(" : ")?;
    let (asked, answer) = head.split_once(" -> ")?;
    let (answer, event) =
        answer.split_once(" ~ ").map_or((answer, None), |(answer, event)| (answer, Some(event)));
    let mut words = asked.splitn(4, ' ');
    let (method, path, tag, request) = (words.next()?, words.next()?, words.next()?, words.next()?);
    Some(Route { method, path, tag, request, answer, event, about, query: Vec::new(), examples: Vec::new() })
}

/// Schemas of the declared requests, and of the objects that only their notation names.
fn declared() -> Map<String, Value> {
    let mut schemas = Schemas::default();
    schemas.add::<ChatRequest<'_>>();
    schemas.add::<ChatMessage<'_>>();
    schemas.add::<ContentPart<'_>>();
    schemas.add::<ImageUrl<'_>>();
    schemas.add::<InputAudio<'_>>();
    schemas.add::<ChatToolCall<'_>>();
    schemas.add::<ChatFunctionCall<'_>>();
    schemas.add::<Tool>();
    schemas.add::<Function>();
    schemas.add::<ToolChoice<'_>>();
    schemas.add::<FunctionName>();
    schemas.add::<PictureBounds<'_>>();
    schemas.add::<CompletionRequest<'_>>();
    schemas.add::<LlamaCompletionRequest<'_>>();
    schemas.add::<LlamaPrompt>();
    schemas.add::<InfillRequest<'_>>();
    schemas.add::<SourceFile<'_>>();
    schemas.add::<MessagesRequest<'_>>();
    schemas.add::<CountRequest<'_>>();
    schemas.add::<AnthropicMessage<'_>>();
    schemas.add::<AnthropicTool<'_>>();
    schemas.add::<AnthropicToolChoice>();
    schemas.add::<TranscriptionForm>();
    schemas.add::<TranslationForm>();
    schemas.add::<SpeechRequest>();
    schemas.add::<ModelLoadRequest>();
    schemas.add::<ModelUnloadRequest>();
    schemas.add::<ModelPullRequest>();
    schemas.add::<LoadAdapterRequest>();
    schemas.add::<UnloadAdapterRequest>();
    schemas.add::<TokenizeRequest<'_>>();
    schemas.add::<DetokenizeRequest>();
    schemas.add::<ResponsesRequest<'_>>();
    schemas.add::<ResponsesCountRequest<'_>>();
    schemas.add::<OllamaChatRequest<'_>>();
    schemas.add::<OllamaMessage<'_>>();
    schemas.add::<OllamaGenerateRequest<'_>>();
    schemas.add::<OllamaEmbedRequest<'_>>();
    schemas.add::<OllamaEmbeddingsRequest<'_>>();
    schemas.add::<OllamaShowRequest<'_>>();
    schemas.add::<OllamaPullRequest<'_>>();
    schemas.add::<OllamaCreateRequest<'_>>();
    schemas.add::<OllamaCopyRequest>();
    schemas.add::<OllamaDeleteRequest<'_>>();
    schemas.add::<EmbeddingsRequest<'_>>();
    schemas.add::<LlamaEmbeddingRequest<'_>>();
    schemas.add::<CohereEmbedRequest<'_>>();
    schemas.add::<CohereInput<'_>>();
    schemas.add::<CohereContent<'_>>();
    schemas.add::<EmbeddingPart<'_>>();
    schemas.add::<RerankRequest<'_>>();
    schemas.add::<DocumentText>();
    schemas.add::<ScoreRequest<'_>>();
    schemas.add::<ClassifyRequest<'_>>();
    schemas.add::<EmbedRequest<'_>>();
    schemas.add::<TextsRequest<'_>>();
    schemas.add::<PredictRequest<'_>>();
    schemas.add::<SimilarityRequest<'_>>();
    schemas.named
}

/// Schemas of the answers that are structs.
fn derived() -> Map<String, Value> {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut schemas = settings.into_generator();
    schemas.subschema_for::<ChatCompletion<'_, '_>>();
    schemas.subschema_for::<ChatChunk<'_>>();
    schemas.subschema_for::<Completion<'_>>();
    schemas.take_definitions(true)
}

/// The whole document.
fn document() -> Value {
    let mut schemas = declared();
    schemas.extend(derived());
    schemas.extend(schema::read(ANSWERS));
    let mut paths = Map::new();
    for route in routes() {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_lowercase()] = operation(&route);
    }
    let tags = [
        "Chat",
        "Responses",
        "Anthropic",
        "Speech",
        "Vectors",
        "Scores",
        "TEI",
        "Ollama",
        "llama.cpp",
        "Models",
        "Tokens",
        "Server",
    ];
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Hanzo Engine",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Language models over the APIs that clients know. A field that is taken is honoured; one that is \
                            not known is refused by name, unless the server was started with --lenient. null counts as absent.",
        },
        "servers": [{"url": "."}],
        "tags": tags.map(|name| json!({"name": name})),
        "security": [{"bearer": []}, {"key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let name: String = route.path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let mut operation = json!({
        "tags": [route.tag],
        "summary": route.about,
        "operationId": format!("{}{name}", route.method.to_lowercase()),
        "responses": responses(route),
    });
    if route.request != "-" {
        operation["requestBody"] = request_body(route);
    }
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    operation
}

/// Media types and schemas of a successful answer.
fn answer_content(route: &Route) -> Value {
    let media = match route.answer {
        "Sound" => "audio/mpeg",
        "Text" => "text/plain",
        _ => "application/json",
    };
    let answer = match route.answer {
        "Sound" => json!({"type": "string", "format": "binary"}),
        answer => notation(answer),
    };
    let mut content = json!({media: {"schema": answer}});
    if route.takes_form() {
        content["text/plain"] =
            json!({"schema": {"type": "string", "description": "Of response_format text, srt and vtt."}});
    }
    if let Some(event) = route.event {
        let item = json!({"$ref": format!("#/components/schemas/{event}")});
        let (stream, schema) = match route.tag {
            "Ollama" => (
                "application/x-ndjson",
                json!({"type": "string", "description": format!("Lines, a {event} each.")}),
            ),
            _ => ("text/event-stream", each_event(event, &item)),
        };
        content[stream] = json!({"schema": schema, "x-event": item});
    }
    content
}

/// Answers of an operation, by status.
fn responses(route: &Route) -> Value {
    let mut responses = json!({"200": {"description": "The answer.", "content": answer_content(route)}});
    for (status, about) in REFUSALS.iter().filter(|(status, _)| route.refuses(status)) {
        responses[*status] = json!({"description": about, "content": {"application/json": {"schema": notation(route.error(status))}}});
    }
    if route.takes_blob() {
        responses["201"] = json!({"description": "It is there now.", "content": {"text/plain": {"schema": {"type": "string"}}}});
    }
    if route.path == "/api/create" {
        responses["409"] = json!({"description": "The name is another model's.", "content": {"application/json": {"schema": notation(route.error("409"))}}});
    }
    if route.tag == "MCP" {
        responses["202"] = json!({"description": "Taken; nothing is answered."});
        responses["204"] = json!({"description": "The session has ended."});
    }
    responses
}

/// Schema of a request's body, with examples.
fn request_body(route: &Route) -> Value {
    let examples = route.examples.iter().enumerate();
    let examples: Map<String, Value> =
        examples.map(|(at, value)| (format!("example{}", at + 1), json!({"value": value}))).collect();
    let mut body = match route.takes_blob() {
        true => json!({"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}),
        false => json!({"schema": notation(route.request)}),
    };
    if !examples.is_empty() {
        body["examples"] = Value::Object(examples);
    }
    json!({"required": true, "content": {route.body_type(): body}})
}

/// Parameters in the path and the query.
fn parameters(route: &Route) -> Vec<Value> {
    let parameters = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters: Vec<Value> = parameters
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}}))
        .collect();
    let query = route.query.iter().map(|parameter| {
        json!({"name": parameter.name, "in": "query", "description": parameter.about, "schema": notation(parameter.kind)})
    });
    parameters.into_iter().chain(query).collect()
}

/// Schema of a stream's events, as validators of streams expect it in this version of OpenAPI.
fn each_event(name: &str, item: &Value) -> Value {
    let data = json!({"type": "string", "contentMediaType": "application/json", "contentSchema": item});
    json!({
        "type": "object",
        "description": format!("With stream: events whose data is a {name} each, then [DONE] where OpenAI has it."),
        "required": ["data"],
        "properties": {"event": {"type": "string"}, "data": {"anyOf": [{"const": "[DONE]"}, data]}},
    })
}

impl Route {
    /// Whether the route takes a form with a file instead of JSON.
    fn takes_form(&self) -> bool {
        self.request.ends_with("Form")
    }

    /// Whether the body is a plain file.
    fn takes_blob(&self) -> bool {
        self.request == "Blob"
    }

    /// Media type of the body.
    fn body_type(&self) -> &'static str {
        if self.takes_blob() {
            return "application/octet-stream";
        }
        if self.takes_form() { "multipart/form-data" } else { "application/json" }
    }

    /// Whether the route can answer with that status.
    fn refuses(&self, status: &str) -> bool {
        match self.path {
            // These routes need no key.
            "/alive" | "/openapi.json" => status == "403",
            _ if self.request == "-" => REFUSALS_OF_GET.contains(&status),
            _ => true,
        }
    }

    /// Schema of an error, or of an answer that uses an error status.
    fn error(&self, status: &str) -> &'static str {
        match (self.path, self.tag) {
            ("/health" | "/v1/health", _) if status == "503" => "Health",
            ("/ready", _) if status == "503" => "Ready",
            ("/rerank", _) => "Error | TeiError",
            (_, "TEI") => "TeiError",
            (_, "Anthropic") => "AnthropicError",
            (_, "Ollama") => "OllamaError",
            _ => "Error",
        }
    }
}
