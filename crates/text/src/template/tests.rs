//! Chat templates in the style of real models, against Python's jinja2 with transformers' settings
//! (`testdata/make.py`), and operations that templates must not perform.

use serde_json::{Map, Value, json};

use super::*;
use crate::chat::Message;

fn message(value: &Value) -> Message {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    Message {
        role: text("role").expect("a role"),
        content: text("content").expect("content"),
        tool_calls: value["tool_calls"].as_array().cloned().unwrap_or_default(),
        tool_call_id: text("tool_call_id"),
        ..Message::default()
    }
}

fn chat(messages: &[(&str, &str)]) -> Chat {
    let message = |&(role, content): &(&str, &str)| message(&json!({"role": role, "content": content}));
    Chat { messages: messages.iter().map(message).collect(), ..Chat::default() }
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "<s>", "</s>", "m.gguf").expect("a template")
}

fn rendered(template: &ChatTemplate, chat: &Chat) -> Result<String, RequestError> {
    template.render(chat, &|| false).map(|rendered| rendered.text)
}

fn refused(source: &str, chat: &Chat) -> (&'static str, String) {
    match rendered(&template(source), chat) {
        Err(RequestError::Invalid { field, reason }) => (field, reason),
        other => panic!("rendered, or another error: {other:?}"),
    }
}

#[test]
fn prompts_and_refusals_are_those_of_jinja2() {
    let fixture: Value = serde_json::from_str(include_str!("../../testdata/templates.json")).expect("JSON");
    let mut refusals = 0;
    for case in fixture["cases"].as_array().expect("cases") {
        let name = case["template"].as_str().expect("a name");
        let template = template(fixture["templates"][name].as_str().expect("a template"));
        let chat = Chat {
            messages: case["messages"].as_array().expect("messages").iter().map(message).collect(),
            tools: case["tools"].as_array().cloned().unwrap_or_default(),
            kwargs: case["kwargs"].as_object().cloned().unwrap_or_default(),
            add_generation_prompt: case["add_generation_prompt"] == true,
            continue_final_message: false,
            pictures: 0,
            sounds: 0,
        };
        match (rendered(&template, &chat), &case["prompt"], &case["refusal"]) {
            (Ok(prompt), Value::String(expected), _) => assert_eq!(&prompt, expected, "{case}"),
            (Err(error), _, Value::String(words)) => {
                assert_eq!(error, RequestError::invalid("messages", words), "{case}");
                refusals += 1;
            }
            (result, ..) => panic!("{name}: {result:?} for {case}"),
        }
    }
    assert!(refusals > 10);
}

#[test]
fn a_broken_template_is_a_load_error_with_file_and_line() {
    for source in
        ["{{ a", "{% if %}", "{% for x in %}{% endfor %}", "a\n{% endif %}", "{{ 'x }}", "{% unknown %}"]
    {
        let error = ChatTemplate::new(source, "", "", "dir/m.gguf").expect_err(source).to_string();
        assert!(error.starts_with("dir/m.gguf: chat template: "), "{error}");
        assert!(error.contains("chat_template:"), "the line: {error}");
    }
}

#[test]
fn a_template_cannot_run_for_ever_or_fill_the_memory() {
    let chat = chat(&[("user", "x")]);
    let forever = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    assert!(refused(forever, &chat).1.contains("did not finish"));
    let huge = "{% set x = 'a' * 1000000 %}{% for a in range(1000) %}{{ x }}{% endfor %}";
    assert!(refused(huge, &chat).1.contains("over 67108864 bytes"));
    let mut deep = json!(vec![0; 300_000]);
    for _ in 0..60 {
        deep = json!([deep]);
    }
    let indented = Chat { kwargs: Map::from_iter([("deep".to_owned(), deep)]), ..chat.clone() };
    assert!(
        refused("{{ (deep | tojson(indent=4)) | length }}", &indented).1.contains("of over 67108864 bytes")
    );
    let recursive = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(refused(recursive, &chat).1.contains("recursion"));
    let long = "{{ raise_exception('é' * 100000) }}";
    assert!(refused(long, &chat).1.len() <= ERROR_BYTES_MAX);
    assert_eq!(refused("{{ messages[0].nothing.at_all }}", &chat).0, "messages");
}

#[test]
fn the_date_is_the_callers() {
    let with_now = |now: Value| Chat {
        kwargs: json!({"now": now}).as_object().cloned().expect("an object"),
        ..chat(&[("user", "x")])
    };
    let source = "{{ strftime_now('%d %b %Y') }}";
    assert_eq!(rendered(&template(source), &with_now(json!(1_722_000_000))), Ok("26 Jul 2024".into()));
    let (field, reason) = refused(source, &chat(&[("user", "x")]));
    assert_eq!(field, "template_kwargs_json");
    assert!(reason.contains("asks for the date"), "{reason}");
    assert_eq!(refused(source, &with_now(json!("today"))).0, "template_kwargs_json");
    assert!(refused("{{ strftime_now('%Q') }}", &with_now(json!(0))).1.contains("%Q"));
    let careful = "{{ strftime_now('%Y') if strftime_now is defined else 'some day' }}";
    assert_eq!(rendered(&template(careful), &chat(&[("user", "x")])), Ok("some day".into()));
    assert_eq!(rendered(&template(careful), &with_now(json!(0))), Ok("1970".into()));
}

#[test]
fn the_engines_own_variables_cannot_be_overridden() {
    for name in ["messages", "tools", "add_generation_prompt", "continue_final_message", "strftime_now"] {
        let chat = Chat { kwargs: Map::from_iter([(name.to_owned(), json!([]))]), ..chat(&[("user", "x")]) };
        let (field, reason) = refused("{{ x }}", &chat);
        assert_eq!(field, "template_kwargs_json");
        assert!(reason.contains(name));
    }
    assert_eq!(refused("x", &Chat::default()).0, "messages");
}

#[test]
fn the_last_message_can_be_left_open() {
    let keeps = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}";
    let trims = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>\n{% endfor %}";
    let open = |source: &str, last: &str| {
        let chat = Chat { continue_final_message: true, ..chat(&[("user", "hi"), ("assistant", last)]) };
        rendered(&template(source), &chat)
    };
    assert_eq!(open(keeps, "So: "), Ok("<user>hi<end><assistant>So: ".into()));
    assert_eq!(open(trims, "So: "), Ok("<user>hi<end>\n<assistant>So:".into()));
    assert_eq!(open(keeps, ""), Ok("<user>hi<end><assistant>".into()));
    assert_eq!(open(keeps, "hi"), Ok("<user>hi<end><assistant>hi".into()));
    let hides = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}";
    let unusable =
        |result| matches!(result, Err(RequestError::Invalid { field: "continue_final_message", .. }));
    assert!(unusable(open(hides, "So: ")));
    let both = Chat {
        continue_final_message: true,
        add_generation_prompt: true,
        ..chat(&[("user", "hi"), ("assistant", "a")])
    };
    assert!(unusable(rendered(&template(keeps), &both)));
}

#[test]
fn generation_blocks_are_plain_blocks() {
    let cases = [
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        ("a {%- generation -%} b {%- endgeneration -%} c", "abc"),
        ("{%generation%}b{%  endgeneration  %}", "b"),
        ("{{ '{% generation' }}{% set generation = 1 %}{{ generation }}", "{% generation1"),
    ];
    for (source, text) in cases {
        assert_eq!(rendered(&template(source), &chat(&[("user", "x")])).as_deref(), Ok(text), "{source}");
    }
}
