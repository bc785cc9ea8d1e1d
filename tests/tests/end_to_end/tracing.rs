//! Traces as who collects them sees them: one of each request, from HTTP to the engine's phases, by gRPC and by HTTP; and the
//! metrics that name them.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Instant,
};

use bytes::Bytes;
use hanzo_engine_daemon::config::{Protocol, TracesConfig};
use hanzo_engine_tests::rig::{Rig, chat_body};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value},
    trace::v1::{Span, span::SpanKind},
};
use prost::Message as _;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tonic::{Request, Response, Status};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";

/// What was collected: spans, each with the service that made it.
#[derive(Clone, Default)]
struct Collected(Arc<Mutex<Vec<(String, Span)>>>);

#[tonic::async_trait]
impl TraceService for Collected {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.take(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collected {
    fn take(&self, request: ExportTraceServiceRequest) {
        let mut spans = self.0.lock().expect("no test panics with it");
        for of_one in request.resource_spans {
            let resource = of_one.resource.expect("a program says which it is");
            let service = text(&resource.attributes, "service.name").expect("it has a name");
            let told = of_one.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.extend(told.map(|span| (service.clone(), span)));
        }
    }

    /// A collector that is spoken to by gRPC.
    async fn by_grpc() -> (Collected, SocketAddr) {
        let (collected, listener) =
            (Collected::default(), TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
        let address = listener.local_addr().expect("it is bound");
        let service = TraceServiceServer::new(collected.clone());
        let connections = tokio_stream::wrappers::TcpListenerStream::new(listener);
        tokio::spawn(
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(connections),
        );
        (collected, address)
    }

    /// One that is spoken to by HTTP, and takes nothing without the header that collectors know their users by.
    async fn by_http() -> (Collected, SocketAddr) {
        let (collected, listener) =
            (Collected::default(), TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
        let (address, takes) = (listener.local_addr().expect("it is bound"), collected.clone());
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.expect("a connection");
                let mut read = Vec::new();
                let head = loop {
                    if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                        break end + 4;
                    }
                    assert!(
                        socket.read_buf(&mut read).await.expect("a head") > 0,
                        "it ended before its body"
                    );
                };
                let said = String::from_utf8(read[..head].to_vec()).expect("UTF-8").to_ascii_lowercase();
                assert!(said.starts_with("post /v1/traces http/1.1\r\n"), "{said}");
                assert!(said.contains("content-type: application/x-protobuf"), "{said}");
                let length = said.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
                let length: usize = length.expect("a length").parse().expect("a number");
                while read.len() < head + length {
                    assert!(socket.read_buf(&mut read).await.expect("a body") > 0, "it ended in its body");
                }
                takes.take(ExportTraceServiceRequest::decode(&read[head..]).expect("a request of OTLP"));
                let answer =
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
                socket.write_all(answer).await.expect("it listens");
            }
        });
        (collected, address)
    }

    /// The spans of each trace, by its id.
    fn traces(&self) -> HashMap<String, Vec<(String, Span)>> {
        let mut traces: HashMap<_, Vec<_>> = HashMap::new();
        for (service, span) in self.0.lock().expect("no test panics with it").iter() {
            let id = span.trace_id.iter().map(|byte| format!("{byte:02x}")).collect();
            traces.entry(id).or_default().push((service.clone(), span.clone()));
        }
        traces
    }
}

fn value<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a any_value::Value> {
    attributes.iter().find(|pair| pair.key == key)?.value.as_ref()?.value.as_ref()
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    match value(attributes, key)? {
        any_value::Value::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

fn number(span: &Span, key: &str) -> i64 {
    match value(&span.attributes, key) {
        Some(any_value::Value::IntValue(number)) => *number,
        other => panic!("{key} of {}: {other:?}", span.name),
    }
}

fn seconds(span: &Span) -> f64 {
    (span.end_time_unix_nano - span.start_time_unix_nano) as f64 / 1e9
}

/// The parts of a trace: the gateway's span, the engine's, and that one's phases in order.
fn parts(spans: &[(String, Span)]) -> (&Span, &Span, Vec<&Span>) {
    let of = |service: &'static str| spans.iter().filter(move |(of, _)| of == service).map(|(_, span)| span);
    let [gateway] = of("engine-gateway").collect::<Vec<_>>()[..] else { panic!("{spans:#?}") };
    let servers = of("engined").filter(|span| span.kind() == SpanKind::Server).collect::<Vec<_>>();
    let [engine] = servers[..] else { panic!("{spans:#?}") };
    let mut phases: Vec<&Span> = of("engined").filter(|span| span.kind() != SpanKind::Server).collect();
    phases.sort_by_key(|span| span.start_time_unix_nano);
    assert_eq!(gateway.kind(), SpanKind::Server);
    assert_eq!(engine.parent_span_id, gateway.span_id, "the engine's span is in the gateway's");
    for phase in &phases {
        assert_eq!(phase.parent_span_id, engine.span_id, "{} is in the engine's span", phase.name);
    }
    (gateway, engine, phases)
}

#[tokio::test]
async fn each_request_is_one_trace_whose_phases_add_up_to_it() {
    let (collected, address) = Collected::by_grpc().await;
    let rig = Rig::start_with(|config| {
        config.traces = TracesConfig { endpoint: Some(format!("http://{address}")), ..Default::default() };
    })
    .await;
    let chats = format!("http://{}/v1/chat/completions", rig.http);
    let long = Bytes::from(
        chat_body("Tell me a story.", json!({"max_tokens": 300, "ignore_eos": true, "temperature": 0}))
            .to_string(),
    );
    // Whether a part of a loaded machine's time lies between the programs is not theirs to say: the best of three counts.
    let mut clients = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        let (status, _, body) = rig.send_headed(&chats, Some(long.clone()), &[]).await;
        assert_eq!(status, 200, "{body:?}");
        clients.push(began.elapsed().as_secs_f64());
    }
    // As part of a caller's trace, and of one that its caller does not keep.
    let short = Bytes::from(chat_body("Hello!", json!({"max_tokens": 2})).to_string());
    let dropped = PARENT.replace("4736", "4737");
    for parent in [format!("{PARENT}-01"), format!("{dropped}-00")] {
        let (status, ..) = rig.send_headed(&chats, Some(short.clone()), &[("traceparent", &parent)]).await;
        assert_eq!(status, 200);
    }
    let (status, ..) =
        rig.send("/v1/embeddings", Some(json!({"model": "hanzo-demo", "input": ["a", "b c"]}))).await;
    assert_eq!(status, 200);
    let (status, ..) = rig.chat("Hello!", json!({"model": "nobody"})).await;
    assert_eq!(status, 404);

    // Both programs' metrics name a trace that was kept.
    let wants = [("accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")];
    for (at, family) in [(rig.admin, "request_duration_seconds"), (rig.http, "http_request_duration_seconds")]
    {
        let (_, headers, body) = rig.send_headed(&format!("http://{at}/metrics"), None, &wants).await;
        let body = String::from_utf8(body.to_vec()).expect("UTF-8");
        assert!(
            headers["content-type"]
                .to_str()
                .is_ok_and(|kind| kind.starts_with("application/openmetrics-text"))
        );
        let named = body.lines().find(|line| line.contains(family) && line.contains("# {trace_id=\""));
        assert!(named.is_some() && body.ends_with("# EOF\n"), "{family} in {body}");
    }
    rig.ended().await;

    let traces = collected.traces();
    assert_eq!(traces.len(), 6, "{:?}", traces.keys());
    assert!(!traces.keys().any(|id| id.ends_with("4737")), "a trace that is not kept");
    let mut best = f64::MAX;
    let mut stories = 0;
    for spans in traces.values() {
        if spans.len() == 2 {
            // The model that is not there: the engine said so.
            let (gateway, engine, _) = parts(spans);
            assert_eq!(number(gateway, "http.response.status_code"), 404);
            assert_eq!(text(&engine.attributes, "error.type").as_deref(), Some("NotFound"));
            continue;
        }
        let (gateway, engine, phases) = parts(spans);
        let names: Vec<&str> = phases.iter().map(|phase| phase.name.as_str()).collect();
        assert_eq!(text(&gateway.attributes, "hanzo_engine.outcome").as_deref(), Some("ok"));
        let sum: f64 = phases.iter().map(|phase| seconds(phase)).sum();
        assert!(sum <= seconds(engine) && seconds(engine) <= seconds(gateway), "{spans:#?}");
        if names == ["queue", "compute"] {
            assert_eq!(engine.name, "embeddings hanzo-demo");
            continue;
        }
        assert_eq!(
            (engine.name.as_str(), &names[..]),
            ("chat hanzo-demo", &["queue", "prefill", "decode"][..])
        );
        assert_eq!(gateway.name, "POST /v1/chat/completions");
        for (key, expected) in [
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.request.model", "hanzo-demo"),
            ("rpc.method", "Infer"),
        ] {
            assert_eq!(text(&engine.attributes, key).as_deref(), Some(expected));
        }
        assert_eq!(
            number(engine, "gen_ai.usage.output_tokens"),
            number(gateway, "gen_ai.usage.output_tokens")
        );
        assert!(number(engine, "gen_ai.usage.input_tokens") > 0);
        if gateway.parent_span_id.is_empty() {
            assert_eq!(number(engine, "gen_ai.usage.output_tokens"), 300);
            best = best.min((seconds(gateway) - sum) / seconds(gateway));
            stories += 1;
            // What the client saw is what the trace says, but for the way to it.
            assert!(clients.iter().any(|client| *client >= seconds(gateway)), "{clients:?}");
        } else {
            let id: String = gateway.parent_span_id.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(PARENT.ends_with(&id), "{id}");
        }
    }
    assert_eq!(stories, 3);
    assert!(best < 0.05, "phases leave out {:.1} % of a request", best * 1e2);
}

#[tokio::test]
async fn traces_go_by_http_too() {
    let (collected, address) = Collected::by_http().await;
    let rig = Rig::start_with(|config| {
        let endpoint = Some(format!("http://{address}"));
        config.traces = TracesConfig { endpoint, protocol: Some(Protocol::Http), ratio: Some(1.0) };
    })
    .await;
    let (events, done) = rig.chat_stream("Hello!", json!({"max_tokens": 3})).await;
    assert!(done, "{events:?}");
    rig.ended().await;
    let traces = collected.traces();
    let [spans] = &traces.values().collect::<Vec<_>>()[..] else { panic!("{traces:#?}") };
    let (gateway, _, phases) = parts(spans);
    assert!(gateway.parent_span_id.is_empty());
    assert_eq!(
        phases.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(),
        ["queue", "prefill", "decode"]
    );
}

#[tokio::test]
async fn a_collector_that_is_away_costs_no_request_anything() {
    // A port that nobody listens on.
    let nobody =
        TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("it is bound");
    let rig = Rig::start_with(|config| {
        config.traces = TracesConfig { endpoint: Some(format!("http://{nobody}")), ..Default::default() };
    })
    .await;
    assert_eq!(rig.chat("Hello!", json!({"max_tokens": 2})).await.0, 200);
    rig.ended().await;
}
