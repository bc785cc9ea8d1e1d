//! Requests with numbers that nobody means: the largest and smallest that each field can have, in every numeric field of every call of
//! the contract, by its descriptor, and of every HTTP route, by its schema. Each is answered or refused soon, in little memory, and the
//! engine lives.
#![cfg(target_os = "linux")]

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead as _, BufReader, Read as _},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::{Buf as _, BufMut as _, Bytes};
use hanzo_engine_proto::v1::FILE_DESCRIPTOR_SET;
use hanzo_engine_tests::rig::Rig;
use prost::Message as _;
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Channel,
};

use crate::memory::{ROLE, forget_peak, memory, post};

const NAME: &str = "numbers::no_number_of_a_request_costs_more_than_the_request";
/// How deep messages are looked into: the deepest number that the contract has is nearer.
const DEPTH: usize = 4;
/// Whole numbers: the bounds of each type, and what is large and not a bound.
const WHOLE: [u64; 6] =
    [u32::MAX as u64, i32::MAX as u64, i32::MIN as i64 as u64, u64::MAX, i64::MAX as u64, 1 << 24];
/// Real numbers.
const REAL: [f64; 5] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f32::MAX as f64, -1.0];
/// More than one request may take.
const SPARE_BYTES: usize = 64 << 20;
/// No answer takes this long. The longest is a completion that fills the demo model's context.
const SOON: Duration = Duration::from_secs(30);

/// Messages as they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let all = from.remaining();
        Ok(Some(from.copy_to_bytes(all)))
    }
}

/// A call of the contract.
struct Call {
    path: String,
    input: String,
}

/// A numeric field of a message, by the fields that lead to it.
#[derive(Clone)]
struct Numeric {
    name: String,
    path: Vec<FieldDescriptorProto>,
}

/// The contract, as its descriptor says it.
struct Contract {
    messages: BTreeMap<String, DescriptorProto>,
    calls: Vec<Call>,
}

impl Contract {
    fn read() -> Contract {
        let files = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("a descriptor").file;
        let mut contract = Contract { messages: BTreeMap::new(), calls: Vec::new() };
        for file in files {
            let package = format!(".{}", file.package());
            for message in &file.message_type {
                contract.add(&package, message);
            }
            for service in &file.service {
                contract.calls.extend(service.method.iter().map(|method| Call {
                    path: format!("/{}.{}/{}", file.package(), service.name(), method.name()),
                    input: method.input_type().to_owned(),
                }));
            }
        }
        contract
    }

    fn add(&mut self, within: &str, message: &DescriptorProto) {
        let name = format!("{within}.{}", message.name());
        for nested in &message.nested_type {
            self.add(&name, nested);
        }
        self.messages.insert(name, message.clone());
    }

    /// Every list of texts or messages in a message and in those in it, as bytes that hold four million empty items of it.
    fn lists(&self, message: &str, before: &[FieldDescriptorProto], found: &mut Vec<(String, Vec<u8>)>) {
        let Some(descriptor) = self.messages.get(message).filter(|_| before.len() < DEPTH) else { return };
        for field in &descriptor.field {
            let path: Vec<_> = before.iter().chain([field]).cloned().collect();
            if field.label() == Label::Repeated && matches!(field.r#type(), Type::Message | Type::String) {
                let item = encoded(&path[path.len() - 1..], Bytes::from_static(&[0]), 2);
                let names: Vec<&str> = path.iter().map(FieldDescriptorProto::name).collect();
                found.push((names.join("."), within(before, item.repeat(4 << 20))));
            }
            if field.r#type() == Type::Message {
                self.lists(field.type_name(), &path, found);
            }
        }
    }

    /// Every numeric field of a message and of those in it.
    fn numbers(&self, message: &str, before: &[FieldDescriptorProto], found: &mut Vec<Numeric>) {
        let Some(descriptor) = self.messages.get(message).filter(|_| before.len() < DEPTH) else { return };
        for field in &descriptor.field {
            let path: Vec<_> = before.iter().chain([field]).cloned().collect();
            match field.r#type() {
                Type::Message => self.numbers(field.type_name(), &path, found),
                Type::String | Type::Bytes | Type::Bool => {}
                _ => {
                    let names: Vec<&str> = path.iter().map(FieldDescriptorProto::name).collect();
                    found.push(Numeric { name: names.join("."), path: path.clone() });
                }
            }
        }
    }
}

/// Bytes of a field with that value, in the messages that lead to it. They merge into what stands before them.
fn encoded(path: &[FieldDescriptorProto], value: Bytes, wire_type: u32) -> Vec<u8> {
    let [field, inner @ ..] = path else { return value.to_vec() };
    let mut out = Vec::new();
    let number = u32::try_from(field.number()).expect("numbers of fields are positive");
    if inner.is_empty() {
        prost::encoding::encode_varint(u64::from(number << 3 | wire_type), &mut out);
        out.extend(value);
        return out;
    }
    let content = encoded(inner, value, wire_type);
    prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut out);
    prost::encoding::encode_varint(content.len() as u64, &mut out);
    out.extend(content);
    out
}

/// Bytes of a message in the messages that lead to it.
fn within(path: &[FieldDescriptorProto], message: Vec<u8>) -> Vec<u8> {
    path.iter().rev().fold(message, |content, field| {
        let number = u32::try_from(field.number()).expect("numbers of fields are positive");
        let mut out = Vec::new();
        prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut out);
        prost::encoding::encode_varint(content.len() as u64, &mut out);
        out.extend(content);
        out
    })
}

/// The values that a field is given, each with its wire type and a name.
fn values(field: &FieldDescriptorProto) -> Vec<(String, Bytes, u32)> {
    match field.r#type() {
        Type::Float => {
            let real =
                |value: f64| (value.to_string(), Bytes::from((value as f32).to_le_bytes().to_vec()), 5);
            REAL.into_iter().map(real).collect()
        }
        Type::Double => {
            let real = |value: f64| (value.to_string(), Bytes::from(value.to_le_bytes().to_vec()), 1);
            REAL.into_iter().map(real).collect()
        }
        _ => {
            let varint = |value: u64| {
                let mut bytes = Vec::new();
                prost::encoding::encode_varint(value, &mut bytes);
                bytes
            };
            let mut all: Vec<_> =
                WHOLE.into_iter().map(|value| (value.to_string(), varint(value).into(), 0)).collect();
            if field.label() == Label::Repeated {
                // A million of the largest, packed.
                let items = varint(u64::from(u32::MAX)).repeat(1 << 20);
                let mut packed = varint(items.len() as u64);
                packed.extend(items);
                all.push(("a million".to_owned(), packed.into(), 2));
            }
            all
        }
    }
}

/// What a call asks for beside the number: something small that this engine can do.
fn base(call: &str) -> Vec<u8> {
    use hanzo_engine_proto::v1::{self, infer_request::Prompt, tokenize_request::Input};
    let model = || hanzo_engine_daemon::DEMO_MODEL.to_owned();
    match call.rsplit('/').next().expect("a name") {
        "Infer" => {
            let stop = v1::StopConditions { max_tokens: Some(2), ..Default::default() };
            let prompt = Some(Prompt::Text("hi".to_owned()));
            v1::InferRequest { prompt, stop: Some(stop), ..Default::default() }.encode_to_vec()
        }
        "Load" => v1::LoadRequest { model: model(), ..Default::default() }.encode_to_vec(),
        "Tokenize" => v1::TokenizeRequest { input: Some(Input::Text("hi".to_owned())), ..Default::default() }
            .encode_to_vec(),
        _ => Vec::new(),
    }
}

/// Makes a call, and takes so much of its answer as shows that there is one.
async fn called(channel: &Channel, path: &str, message: Vec<u8>) -> Result<(), Status> {
    let mut client = Grpc::new(channel.clone()).max_decoding_message_size(256 << 20);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let request = Request::new(tokio_stream::iter([Bytes::from(message)]));
    let path = path.parse().expect("a path");
    let mut answer = client.streaming(request, path, Raw).await?.into_inner();
    for _ in 0..3 {
        if answer.message().await?.is_none() {
            break;
        }
    }
    Ok(())
}

/// The engine in a process of its own, until its standard input ends.
fn serve() {
    let runtime = hanzo_engine_daemon::preflight::runtime(2).expect("threads");
    runtime.block_on(async {
        let rig = Rig::start_in_one().await;
        println!("\nlistening {} {}", rig.http, rig.grpc);
        let wait = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        drop(wait.await);
        rig.ended().await;
    });
}

fn served_apart() -> (Child, SocketAddr, SocketAddr) {
    let mut server = Command::new(env::current_exe().expect("this program"))
        .args([NAME, "--exact", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program again");
    let mut reader = BufReader::new(server.stdout.take().expect("piped"));
    let lines = reader.by_ref().lines().map_while(Result::ok);
    let address = |line: String| {
        let (http, grpc) = line.strip_prefix("listening ")?.split_once(' ')?;
        Some((http.parse().ok()?, grpc.parse().ok()?))
    };
    let (http, grpc) = lines.filter_map(address).next().expect("the server starts");
    // What it prints at its end must have a reader.
    server.stdout = Some(reader.into_inner());
    (server, http, grpc)
}

/// Every numeric property of a schema, as JSON pointers of a body.
fn properties(document: &Value, schema: &Value, at: &str, depth: usize, found: &mut Vec<String>) {
    if depth == DEPTH {
        return;
    }
    if let Some(name) = schema["$ref"].as_str() {
        let place = name.trim_start_matches('#');
        if let Some(schema) = document.pointer(place) {
            properties(document, schema, at, depth, found);
        }
        return;
    }
    if matches!(schema["type"].as_str(), Some("integer" | "number")) && !at.is_empty() {
        found.push(at.to_owned());
    }
    for kinds in ["anyOf", "oneOf", "allOf"] {
        for one in schema[kinds].as_array().into_iter().flatten() {
            properties(document, one, at, depth, found);
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        properties(document, property, &format!("{at}/{name}"), depth + 1, found);
    }
}

/// A body with a value at a place, in objects that are made where they are missing.
fn with_value(mut body: Value, place: &str, value: Value) -> Value {
    let mut at = &mut body;
    for name in place.trim_start_matches('/').split('/') {
        if !at.is_object() {
            *at = json!({});
        }
        at = at.as_object_mut().expect("an object").entry(name).or_insert(Value::Null);
    }
    *at = value;
    body
}

/// Every route that takes JSON, with an example of it and the places of its numbers.
fn routes(document: &Value) -> Vec<(String, Value, Vec<String>)> {
    let mut routes = Vec::new();
    for (path, operations) in document["paths"].as_object().expect("paths") {
        let content = &operations["post"]["requestBody"]["content"]["application/json"];
        if content.is_null() || path.contains('{') {
            continue;
        }
        let examples = content["examples"].as_object();
        let example = examples.and_then(|examples| Some(examples.values().next()?["value"].clone()));
        let mut places = Vec::new();
        properties(document, &content["schema"], "", 0, &mut places);
        places.sort();
        places.dedup();
        routes.push((path.clone(), example.unwrap_or_else(|| json!({})), places));
    }
    routes
}

#[test]
fn no_number_of_a_request_costs_more_than_the_request() {
    if env::var_os(ROLE).is_some() {
        return serve();
    }
    let (mut server, http, grpc) = served_apart();
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let mut faults = Vec::new();
    let check = |server: &Child, what: String, bytes: usize, before: usize, took: Duration| {
        let used = memory(server, "VmHWM:").saturating_sub(before);
        let slow = took > SOON;
        (slow || used > 4 * bytes + SPARE_BYTES).then(|| format!("{what}: {took:?}, {} MiB", used >> 20))
    };
    let contract = Contract::read();
    let mut count = 0;
    runtime.block_on(async {
        let channel = Channel::from_shared(format!("http://{grpc}")).expect("an address");
        let channel = channel.connect().await.expect("the daemon listens");
        for call in &contract.calls {
            let mut lists = Vec::new();
            contract.lists(&call.input, &[], &mut lists);
            for (name, message) in lists {
                let bytes = message.len();
                forget_peak(&server);
                let (before, began) = (memory(&server, "VmRSS:"), Instant::now());
                let answer = timeout(2 * SOON, called(&channel, &call.path, message)).await;
                let what = format!("{} {name} of four million", call.path);
                count += 1;
                if !matches!(answer, Ok(Err(_))) {
                    faults.push(format!("{what}: it is not refused: {answer:?}"));
                }
                faults.extend(check(&server, what, bytes, before, began.elapsed()));
                assert!(
                    server.try_wait().expect("a child").is_none(),
                    "the engine ended: {}",
                    faults.join("\n")
                );
            }
            let mut numbers = Vec::new();
            contract.numbers(&call.input, &[], &mut numbers);
            for number in numbers {
                let field = number.path.last().expect("a field");
                for (name, value, wire_type) in values(field) {
                    let mut message = base(&call.path);
                    message.extend(encoded(&number.path, value, wire_type));
                    let bytes = message.len();
                    forget_peak(&server);
                    let (before, began) = (memory(&server, "VmRSS:"), Instant::now());
                    let answer = timeout(2 * SOON, called(&channel, &call.path, message)).await;
                    let what = format!("{} {} = {name}", call.path, number.name);
                    count += 1;
                    match answer {
                        Ok(Ok(())) => {}
                        Ok(Err(status)) => {
                            let own = matches!(status.code(), tonic::Code::Internal | tonic::Code::Unknown);
                            let gone = std::error::Error::source(&status).is_some();
                            if own || gone {
                                faults.push(format!("{what}: {status}"));
                            }
                        }
                        Err(_) => faults.push(format!("{what}: no answer")),
                    }
                    faults.extend(check(&server, what, bytes, before, began.elapsed()));
                    assert!(
                        server.try_wait().expect("a child").is_none(),
                        "the engine ended: {}",
                        faults.join("\n")
                    );
                }
            }
        }
    });
    assert!(count > 300, "the contract has {count} such numbers");

    let document = get(http, "/openapi.json");
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let mut posted = 0;
    for (path, example, places) in routes(&document) {
        for place in places {
            for value in [json!(u32::MAX), json!(i32::MAX), json!(i64::MIN), json!(u64::MAX), json!(1e300)] {
                let body = with_value(example.clone(), &place, value.clone());
                let body = with_value(body, "/stream", json!(false)).to_string();
                forget_peak(&server);
                let (before, began) = (memory(&server, "VmRSS:"), Instant::now());
                let answer = post(http, &path, &body);
                posted += 1;
                let what = format!("{path} {place} = {value}");
                let status = answer.get(9..12).unwrap_or("none").to_owned();
                if status.starts_with('5') && status != "501" && status != "503" || status == "none" {
                    faults.push(format!("{what}: {answer}"));
                }
                faults.extend(check(&server, what, body.len(), before, began.elapsed()));
                assert!(
                    server.try_wait().expect("a child").is_none(),
                    "the engine ended: {}",
                    faults.join("\n")
                );
            }
        }
    }
    println!("{count} calls, {posted} posts");
    assert!(posted > 300, "the routes have {posted} such numbers");
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), count + posted, faults.join("\n"));
    drop(server.stdin.take());
    assert!(server.wait().expect("it ends").success());
}

fn get(address: SocketAddr, path: &str) -> String {
    use std::io::Write as _;
    let mut stream = std::net::TcpStream::connect(address).expect("the server listens");
    write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
}
