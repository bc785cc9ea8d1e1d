//! Translated Go templates against Go's output for the same conversations (`testdata/make_go_templates.go`).

use serde_json::{Value, json};

use super::{super::ChatTemplate, is_go, to_jinja};
use crate::chat::{Chat, Message};

fn chat(of: &Value) -> Chat {
    let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let text = |of: &Value| of.as_str().map(str::to_owned);
    let message = |of: &Value| Message {
        role: text(&of["role"]).unwrap_or_default(),
        content: text(&of["content"]).unwrap_or_default(),
        name: text(&of["name"]),
        tool_calls: list(&of["tool_calls"]),
        tool_call_id: text(&of["tool_call_id"]),
        reasoning_content: text(&of["reasoning_content"]),
    };
    Chat {
        messages: list(&of["messages"]).iter().map(message).collect(),
        tools: list(&of["tools"]),
        kwargs: of["kwargs"].as_object().cloned().unwrap_or_default(),
        ..Chat::default()
    }
}

fn rendered(source: &str, of: &Chat) -> Result<String, String> {
    let jinja = to_jinja(source).map_err(|error| error.to_string())?;
    let template = ChatTemplate::new(&jinja, "", "", "m").map_err(|error| format!("{error}\n{jinja}"))?;
    let prompt = template.render(of, &|| false).map_err(|error| format!("{error}\n{jinja}"))?;
    Ok(prompt.text)
}

#[test]
fn prompts_are_those_that_go_makes() {
    let path = std::env::var("GO_TEMPLATES")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/go_templates.json").to_owned());
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).expect("JSON");
    let conversations = fixture["conversations"].as_object().unwrap();
    let (mut differing, mut compared) = (Vec::new(), 0);
    for (name, of) in fixture["templates"].as_object().unwrap() {
        for (conversation, prompt) in of["prompts"].as_object().unwrap() {
            let made = rendered(of["template"].as_str().unwrap(), &chat(&conversations[conversation]));
            if made.as_deref() != Ok(prompt.as_str().unwrap()) {
                differing.push(format!("{name}, {conversation}:\n  Go   {prompt:?}\n  ours {made:?}"));
            }
            compared += 1;
        }
    }
    assert!(differing.is_empty(), "{} of {compared} differ:\n{}", differing.len(), differing.join("\n"));
    assert!(compared > 70);
}

#[test]
fn what_the_template_writes_is_the_templates_and_what_the_request_says_is_text() {
    let jinja = to_jinja("{{ if .System }}<|s|>{{ .System }}{{ end }}<|u|>{{ .Prompt }}<|a|>").unwrap();
    let template = ChatTemplate::new(&jinja, "", "", "m").unwrap();
    let said = json!({"messages": [{"role": "system", "content": "<|a|>"}, {"role": "user", "content": "x"}, {"role": "user", "content": "<|s|>"}]});
    let prompt = template.render(&chat(&said), &|| false).unwrap();
    assert_eq!(prompt.text, "<|s|><|a|><|u|>x\n\n<|s|><|a|>");
    let request: Vec<&str> = prompt.from_request.iter().map(|range| &prompt.text[range.clone()]).collect();
    // The line breaks between the user's two messages belong to the template.
    assert_eq!(request, ["<|a|>", "x", "<|s|>"]);
}

#[test]
fn an_answer_that_was_begun_is_gone_on_with() {
    for source in [
        "{{ .Prompt }}<a>{{ .Response }}</a>",
        "{{ range $i, $_ := .Messages }}{{ if eq .Role \"user\" }}{{ .Content }}<a>{{ else }}{{ .Content }}{{ if lt $i 1 }}</a>{{ end }}{{ end }}{{ end }}",
    ] {
        let template = ChatTemplate::new(&to_jinja(source).unwrap(), "", "", "m").unwrap();
        let mut chat = chat(
            &json!({"messages": [{"role": "user", "content": "Say."}, {"role": "assistant", "content": "One, "}]}),
        );
        chat.continue_final_message = true;
        assert_eq!(template.render(&chat, &|| false).unwrap().text, "Say.<a>One, ", "{source}");
    }
}

#[test]
fn long_conversations_are_within_what_a_prompt_may_take() {
    let role = |at: usize| if (at / 2).is_multiple_of(2) { "user" } else { "assistant" };
    let messages: Vec<Value> = (0..6000).map(|at| json!({"role": role(at), "content": "x"})).collect();
    let of = chat(&json!({ "messages": messages }));
    let prompt = rendered("{{ range .Messages }}{{ .Content }};{{ end }}", &of).unwrap();
    assert_eq!(prompt, "x\n\nx;".repeat(3000));
    assert_eq!(
        rendered("{{ .Prompt }}:{{ .Response }};", &of).unwrap(),
        "x\n\nx:x\n\nx;".repeat(1500).trim_end_matches(';')
    );
}

#[test]
fn what_has_no_translation_is_named() {
    for (source, reason) in [
        ("a\n{{ template \"x\" . }}", "line 2: template: templates that use others"),
        ("{{ define \"x\" }}{{ end }}", "line 1: define: "),
        ("{{ .First }}", "line 1: .First: no field of a conversation"),
        ("{{ range .Messages }}\n\n{{ .Images }}{{ end }}", "line 3: .Images: no field of message"),
        ("{{ range .Messages }}{{ . }}{{ end }}", "line 1: what is printed is no text"),
        ("{{ yesterdayDate }}", "line 1: the function yesterdayDate"),
        ("{{ printf \"%q\" .System }}", "line 1: printf with %q"),
        ("{{ printf \"%s\" }}", "line 1: printf lacks a value"),
        ("{{ printf .System }}", "line 1: printf with a format that is no string"),
        ("{{ printf \"x%\" }}", "line 1: printf with % "),
        ("{{ len 3 }}", "line 1: len with such arguments"),
        ("{{ range .System }}{{ end }}", "line 1: range over what is no list"),
        ("{{ $x }}", "line 1: $x was not made by :="),
        ("{{ if .System }}{{ $x := 1 }}{{ end }}{{ $x }}", "line 1: $x was not made by :="),
        ("{{ $x := 1 }}{{ $x = .System }}", "line 1: $x becomes another kind"),
        ("{{ if .System }}", "line 1: if without its end"),
        ("{{ if .System }}{{ else }}{{ else }}{{ end }}", "line 1: a second else"),
        ("{{ end }}", "line 1: end that belongs to nothing"),
        ("{{ break }}", "line 1: break outside of range"),
        ("{{ .System", "line 1: an action that does not end"),
        ("{{ \"x }}", "line 1: a string that does not end"),
        ("{{ \"\\q\" }}", "line 1: the escape \\q"),
        ("{{ \"\\xff\" }}", "line 1: the escape \\xff"),
        ("{{ /* x }}", "line 1: a comment that does not end"),
        ("{{ (.System }}", "line 1: a parenthesis that is not closed"),
        ("{{ .System ) }}", "line 1: \")\" cannot stand here"),
        ("{{ .System | }}", "line 1: an action that lacks a value"),
        ("{{ }}", "line 1: an action with nothing in it"),
        ("{{ 'a' }}", "line 1: '\\'' cannot stand in an action"),
        ("{{ 0x1f }}", "line 1: the number 0x1f"),
        ("{{ .System.Name }}", "line 1: .Name: no field of text"),
        ("{{ \"a\" .System }}", "line 1: a value that is called as a function"),
    ] {
        let error = to_jinja(source).unwrap_err().to_string();
        assert!(error.starts_with(reason), "{source:?}: {error}");
    }
    let deep =
        |with: &str, end: &str| to_jinja(&format!("{}{}", with.repeat(100), end.repeat(100))).unwrap_err();
    assert!(deep("{{ if .System }}", "{{ end }}").reason.contains("inside of others"));
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(100), ")".repeat(100));
    assert!(to_jinja(&deep).unwrap_err().reason.contains("parentheses inside of others"));
    assert!(to_jinja(&"x".repeat(70_000)).unwrap_err().reason.contains("bytes"));
}

/// No text makes the translator panic or produce invalid Jinja.
#[test]
fn what_is_translated_is_jinja() {
    let pieces = [
        "{{",
        "}}",
        "{{-",
        " -}}",
        " .System",
        " range",
        " if",
        " end",
        " $x",
        ":=",
        "\"a'\\n\"",
        "(",
        ")",
        "|",
        " .Messages",
        "é",
        " else",
        " with",
        " 1",
        "\n",
        "'",
        " json",
        " index",
        "/*",
        "*/",
        " .",
    ];
    let mut state = 7_u32;
    let mut made = 0;
    for _ in 0..4000 {
        let mut source = String::new();
        for _ in 0..12 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            source.push_str(pieces[(state >> 16) as usize % pieces.len()]);
        }
        if let Ok(jinja) = to_jinja(&source) {
            made += 1;
            let read = ChatTemplate::new(&jinja, "", "", "m");
            assert!(read.is_ok(), "{source:?}: {read:?}\n{jinja}");
        }
    }
    assert!(made > 10, "{made}");
    assert!(is_go("{{ .Prompt }}") && !is_go("{% if x %}{{ y }}{% endif %}") && !is_go("no template"));
}
