//! Templates that try to crash or stall a daemon (`tests/data/hostile_templates.json`). Each gives an error or its
//! stated prompt within bounded steps, memory and stack. They run in a separate process, so that a crash fails one
//! test instead of all.

use std::{
    cell::Cell,
    env, fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::ChatTemplate;
use crate::{
    chat::{Chat, Message},
    error::RequestError,
};

const CHILD: &str = "HANZO_ENGINE_HOSTILE_TEMPLATES";
/// Half of the stack of a daemon's thread.
const STACK_BYTES: usize = 1 << 20;
/// On a busy machine a template may take several times the second that it is allowed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum memory in KiB of a process that has rendered all of them.
const PEAK_KIB_MAX: u64 = 768 << 10;

fn chat() -> Chat {
    let message = Message { role: "user".into(), content: "hello".into(), ..Message::default() };
    let kwargs = json!({"now": 1_722_000_000}).as_object().cloned().expect("an object");
    Chat { messages: vec![message], kwargs, ..Chat::default() }
}

/// Templates with their expected results.
fn templates() -> Vec<(String, String, String)> {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../../../../tests/data/hostile_templates.json")).expect("JSON");
    let text = |case: &Value, key: &str| case[key].as_str().unwrap_or_default().to_owned();
    let source = |case: &Value| {
        let times = case["times"].as_u64().unwrap_or(0) as usize;
        format!("{}{}{}", text(case, "begin"), text(case, "repeat").repeat(times), text(case, "end"))
    };
    cases.iter().map(|case| (text(case, "name"), text(case, "refused"), source(case))).collect()
}

/// Parses and renders a template. Returns where it was refused.
fn attempt(source: &str) -> &'static str {
    let template = match ChatTemplate::new(source, "<s>", "</s>", "m.gguf") {
        Ok(template) => template,
        Err(error) => {
            assert!(error.to_string().len() < 2000, "a short error");
            return "load";
        }
    };
    match template.render(&chat(), &|| false) {
        Ok(_) => "no",
        Err(error) => {
            assert!(error.to_string().len() < 2000, "a short error");
            "run"
        }
    }
}

#[test]
fn hostile_templates_are_errors_in_bounded_time_memory_and_stack() {
    if env::var_os(CHILD).is_none() {
        let itself = env::current_exe().expect("this test's program");
        let name = "template::hostile_tests::hostile_templates_are_errors_in_bounded_time_memory_and_stack";
        let child = Command::new(itself).args(["--exact", name, "--nocapture"]).env(CHILD, "1").output();
        let child = child.expect("it runs");
        let said = String::from_utf8_lossy(&child.stdout);
        let tail: Vec<&str> = said.lines().rev().take(5).collect();
        let complaint = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{}: {tail:?}\n{complaint}", child.status);
        return;
    }
    let templates = templates();
    assert!(templates.len() > 120);
    let mut wrong = Vec::new();
    for (name, expected, source) in templates {
        println!("{name}");
        let began = Instant::now();
        let run = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || attempt(&source));
        let found = run.expect("a thread").join().expect("no panic");
        let took = began.elapsed();
        println!("  {found} after {took:?}");
        if found != expected || took > PATIENCE {
            wrong.push(format!("{name}: {found} after {took:?}, expected {expected}"));
        }
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0u64);
    println!("peak {peak} KiB");
    assert!(peak < PEAK_KIB_MAX, "{peak} KiB");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn names_are_not_looked_for_one_by_one() {
    let names: String = (0..50_000).map(|at| format!("{{{{v{at}}}}}")).collect();
    let source = format!(
        "{{% macro f() %}}{{% endmacro %}}{{% if false %}}{names}{{% endif %}}\
         {{% for a in range(100000) %}}{{% for b in [] %}}{{% endfor %}}{{{{ f() }}}}{{% endfor %}}"
    );
    let template = ChatTemplate::new(&source, "", "", "m.gguf").expect("a template");
    let kwargs = (0..20_000).map(|at| (format!("w{at}"), json!(1))).collect();
    let began = Instant::now();
    template.render(&Chat { kwargs, ..chat() }, &|| false).expect("renders");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[test]
fn a_run_that_nobody_waits_for_ends() {
    let source = "{% for a in range(10**6) %}{% for b in range(10**6) %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(source, "", "", "m.gguf").expect("a template");
    let asked = Cell::new(0);
    let interrupted = || {
        asked.set(asked.get() + 1);
        asked.get() > 5
    };
    assert_eq!(template.render(&chat(), &interrupted), Err(RequestError::Interrupted));
    assert_eq!(asked.get(), 6);
}

#[test]
fn what_was_sent_may_be_deep_only_as_far() {
    let template =
        ChatTemplate::new("{{ x|tojson }}{{ x }}{{ x == x }}", "", "", "m.gguf").expect("a template");
    let deep = |levels: usize| {
        let mut value = json!(1);
        for _ in 0..levels {
            value = json!([value]);
        }
        let kwargs = [("x".to_owned(), value)].into_iter().collect();
        template.render(&Chat { kwargs, ..chat() }, &|| false)
    };
    assert!(deep(120).is_ok());
    let error = deep(400).expect_err("too deep").to_string();
    assert!(error.contains("template_kwargs_json"), "{error}");
}

#[test]
fn a_long_conversation_has_steps_and_bytes_enough() {
    let message = |at: usize| Message {
        role: if at.is_multiple_of(2) { "user" } else { "assistant" }.into(),
        content: "word ".repeat(2000),
        ..Message::default()
    };
    let chat = Chat { messages: (0..1000).map(message).collect(), ..Chat::default() };
    // As wasteful as real templates: each message copies all previous output.
    let source = "{% set ns = namespace(out='') %}{% for m in messages %}{% set c = m.content.strip() %}\
                  {% set ns.out = '<|' + m.role + '|>' + c.split('</think>')[-1]|trim + '\n' %}{{ ns.out }}{% endfor %}";
    let template = ChatTemplate::new(source, "", "", "m.gguf").expect("a template");
    let prompt = template.render(&chat, &|| false).expect("renders");
    assert!(prompt.text.len() > 9_990_000 && prompt.from_request.len() == 1000);
}
