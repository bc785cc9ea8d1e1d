//! Jinja as a language: snippets against Python's jinja2 with transformers' settings
//! (`testdata/make_template_language.py`). Whatever jinja2 refuses must be refused, at load or at run.

use serde_json::Value;

use super::ChatTemplate;
use crate::chat::{Chat, Message};

#[test]
fn snippets_are_those_of_jinja2() {
    let fixture: Value =
        serde_json::from_str(include_str!("../../testdata/template_language.json")).expect("JSON");
    let chat = Chat {
        messages: vec![Message { role: "user".into(), ..Message::default() }],
        kwargs: fixture["variables"].as_object().cloned().expect("variables"),
        ..Chat::default()
    };
    let mut differing = Vec::new();
    let cases = fixture["cases"].as_array().expect("cases");
    for case in cases {
        let source = case["template"].as_str().expect("a template");
        let rendered = match ChatTemplate::new(source, "", "", "m.gguf") {
            Ok(template) => {
                template.render(&chat, &|| false).map(|prompt| prompt.text).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        let is_same = match &rendered {
            Ok(text) => case["text"] == *text,
            Err(_) => case["error"].is_string(),
        };
        if !is_same {
            differing.push(format!(
                "{source:?}\n  jinja2 {}{}\n  ours   {rendered:?}",
                case["text"], case["error"]
            ));
        }
    }
    assert!(differing.is_empty(), "{} of {} differ:\n{}", differing.len(), cases.len(), differing.join("\n"));
    assert!(cases.len() > 350);
}
