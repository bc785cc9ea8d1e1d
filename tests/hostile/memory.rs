//! Memory by request: bodies that are small on the wire and large for a server that builds a tree of them. At no time may
//! the process take up more than it did, twice the bytes in flight and 64 MiB.
//!
//! The engine runs in a process of its own, which is this test again with [`ROLE`] set, so that nothing else is measured.
#![cfg(target_os = "linux")]

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use hanzo_engine_proto::v1::LoadRequest;
use hanzo_engine_tests::rig::Rig;

pub(crate) const ROLE: &str = "HANZO_ENGINE_HOSTILE_SERVER";
const NAME: &str = "memory::bodies_cost_no_more_than_twice_their_bytes";
/// Bodies at the same time.
const WAVE: usize = 8;
const SPARE_BYTES: usize = 64 << 20;
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A path and a body of about `bytes`, by what it is made of.
fn bodies(bytes: usize) -> Vec<(&'static str, String)> {
    let list = |item: &str| format!("[{}{item}]", format!("{item},").repeat(bytes / (item.len() + 1)));
    let fill = |item: &str| item.repeat(bytes / item.len());
    let messages = |list: String| format!("{{\"messages\":{list}}}");
    let user = |content: String| messages(format!("[{{\"role\":\"user\",\"content\":{content}}}]"));
    let with = |field: &str, value: String| {
        format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}],\"max_tokens\":1,\"{field}\":{value}}}"
        )
    };
    let members = |value: &str| {
        let all: Vec<_> = (0..bytes / (value.len() + 9)).map(|i| format!("\"{i}\":{value}")).collect();
        format!("{{{}}}", all.join(","))
    };
    let call = "{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}";
    let arguments = format!("{{\\\"a\\\":{}}}", list("{}"));
    let assistant = |calls: String| {
        let said = format!("{{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":{calls}}}");
        messages(format!("[{said},{{\"role\":\"user\",\"content\":\"hi\"}}]"))
    };
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    vec![
        (CHAT, messages(list("{}"))),
        (CHAT, messages(list("[]"))),
        (CHAT, messages(list("0"))),
        (CHAT, messages(list("\"\""))),
        (CHAT, messages(list("null"))),
        (CHAT, messages(list(&deep))),
        (CHAT, messages(list("{\"role\":\"user\",\"content\":\"\"}"))),
        (CHAT, user(list("{\"type\":\"text\",\"text\":\"\"}"))),
        (CHAT, user(list("{}"))),
        (CHAT, with("unknown", list("{}"))),
        (CHAT, with("metadata", members("{}"))),
        (CHAT, with("logit_bias", members("1"))),
        (CHAT, with("stop", list("\"\""))),
        (CHAT, with("stop_token_ids", list("1"))),
        (
            CHAT,
            with("tools", list("{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}")),
        ),
        (CHAT, with("chat_template_kwargs", members("[]"))),
        (CHAT, with("n", fill("7"))),
        (CHAT, with(&fill("k"), "1".to_owned())),
        (CHAT, assistant(list(call))),
        (CHAT, assistant(format!("[{}]", call.replace("{}", &arguments)))),
        (CHAT, format!("{{{}\"b\":1}}", fill("\"model\":null,"))),
        (CHAT, with("unknown", format!("\"{}\"", fill("\\u0041\\ud83d")))),
        (CHAT, user(format!("\"{}\"", fill("\\u0041\\ud83d")))),
        (CHAT, user(format!("\"{}\"", fill("some words ")))),
        ("/v1/completions", format!("{{\"max_tokens\":1,\"prompt\":\"{}\"}}", fill("some words "))),
        ("/v1/completions", format!("{{\"max_tokens\":1,\"prompt\":{}}}", list("1"))),
        ("/v1/embeddings", format!("{{\"input\":{}}}", list("\"y\""))),
        ("/v1/embeddings", format!("{{\"input\":[{}]}}", list("1"))),
    ]
}

/// Posts a body; the answer's status and its body's start.
pub(crate) fn post(address: SocketAddr, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    answer.truncate(600);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Bytes of a line of `/proc/PID/status`.
pub(crate) fn memory(server: &Child, line: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).expect("a process");
    let value = status.lines().find_map(|l| l.strip_prefix(line)).expect("the kernel says so");
    value.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

/// Has what is highest from now on told as `VmHWM`.
pub(crate) fn forget_peak(server: &Child) {
    fs::write(format!("/proc/{}/clear_refs", server.id()), "5").expect("the peak can be reset");
}

/// The engine, with a model beside the demo where one is named, until its standard input ends.
pub(crate) fn serve(model: Option<&Path>) {
    // As the programs begin.
    let runtime = hanzo_engine_daemon::preflight::runtime(2).expect("threads");
    runtime.block_on(async {
        let rig = Rig::start_in_one().await;
        if let Some(model) = model {
            let model = model.to_str().expect("UTF-8").to_owned();
            rig.grpc().await.load(LoadRequest { model, ..Default::default() }).await.expect("it loads");
        }
        println!("\nlistening {}", rig.http);
        let wait = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        drop(wait.await);
        rig.ended().await;
    });
}

/// The engine that a test of that name serves where it finds [`ROLE`], in a process of its own.
pub(crate) fn served_apart(test: &str) -> (Child, SocketAddr) {
    let mut server = Command::new(env::current_exe().expect("this program"))
        .args([test, "--exact", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program again");
    let mut reader = BufReader::new(server.stdout.take().expect("piped"));
    let lines = reader.by_ref().lines().map_while(Result::ok);
    let address = lines.filter_map(|line| line.strip_prefix("listening ")?.parse().ok()).next();
    // What it prints at its end must have a reader.
    server.stdout = Some(reader.into_inner());
    (server, address.expect("the server starts"))
}

#[test]
fn bodies_cost_no_more_than_twice_their_bytes() {
    if env::var_os(ROLE).is_some() {
        return serve(None);
    }
    let (mut server, address) = served_apart(NAME);
    let chat = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":4}";
    assert!(post(address, CHAT, chat).starts_with("HTTP/1.1 200"));
    let before = memory(&server, "VmRSS:");

    let small = bodies(1_000_000);
    assert!(small.len() * WAVE >= 200);
    let large = bodies(9_500_000).into_iter().take(6).map(|body| (1, body));
    let mut faults = Vec::new();
    for (count, (path, body)) in small.into_iter().map(|body| (WAVE, body)).chain(large) {
        // The peak is what was highest since here.
        forget_peak(&server);
        let mut answer = String::new();
        thread::scope(|scope| {
            let posts: Vec<_> = (0..count).map(|_| scope.spawn(|| post(address, path, &body))).collect();
            for post in posts {
                answer = post.join().expect("a post");
                let status = answer.get(9..12).unwrap_or("none");
                assert!(matches!(status, "200" | "400" | "413" | "429" | "503"), "{path}: {answer}");
            }
        });
        let took = memory(&server, "VmHWM:").saturating_sub(before);
        let allowed = 2 * count * body.len() + SPARE_BYTES;
        if took > allowed {
            let start = body.get(..60).unwrap_or_default();
            let (took, allowed) = (took >> 20, allowed >> 20);
            faults.push(format!("{path} {start}… × {count}: {took} MiB, allowed {allowed}: {answer}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(post(address, CHAT, chat).starts_with("HTTP/1.1 200"));
    drop(server.stdin.take());
    assert!(server.wait().expect("it ends").success());
}
