//! Tests of tools over gRPC: the rules for calling them, and that calls satisfy their schema.

use serde_json::{Value, json};

use super::*;

fn tool(name: &str, properties: &Value, required: &[&str]) -> String {
    let parameters = json!({"type": "object", "properties": properties, "required": required,
                            "additionalProperties": false});
    json!({"type": "function", "function": {"name": name, "description": name, "parameters": parameters}})
        .to_string()
}

/// Question with two tools, at a temperature that makes all tokens about equally likely.
fn asked(tool_use: v1::ToolUse, seed: u64) -> v1::InferRequest {
    let tools_json = vec![
        tool("get_weather", &json!({"city": {"type": "string", "maxLength": 8}}), &["city"]),
        tool("add", &json!({"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}), &["a", "b"]),
    ];
    let ask = v1::Chat { tools_json, ..question("What is the weather in Paris?") };
    let sampling = v1::Sampling { temperature: Some(1.5), seed: Some(seed), ..Default::default() };
    v1::InferRequest { tool_use: Some(tool_use), sampling: Some(sampling), ..chat(ask, 400) }
}

/// Tool calls of a choice: id, name and arguments.
fn calls(events: &[Event]) -> Vec<(String, String, String)> {
    let mut calls: Vec<(u32, String, String, String)> = Vec::new();
    let parts = events.iter().filter_map(|event| match event {
        Event::Delta(delta) => Some(&delta.tool_calls),
        _ => None,
    });
    for part in parts.flatten() {
        match calls.last_mut() {
            Some(last) if last.0 == part.index => last.3.push_str(&part.arguments_json),
            _ => calls.push((part.index, part.id.clone(), part.name.clone(), part.arguments_json.clone())),
        }
        if part.broken {
            calls.pop();
        }
    }
    calls.into_iter().map(|(_, id, name, arguments)| (id, name, arguments)).collect()
}

fn used(choice: v1::ToolChoice, named: &str, parallel: bool) -> v1::ToolUse {
    v1::ToolUse { choice: choice.into(), named: named.into(), parallel: Some(parallel), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_call_is_what_its_schema_says() {
    let rig = Rig::start().await;
    for seed in 0..6 {
        let (choice, named) = match seed % 2 {
            0 => (v1::ToolChoice::Required, ""),
            _ => (v1::ToolChoice::Named, "add"),
        };
        let events = rig.events(asked(used(choice, named, false), seed)).await;
        if finished(&events, 0).reason() == v1::FinishReason::Length {
            continue; // a truncated call is returned as text
        }
        assert_eq!(finished(&events, 0).reason(), v1::FinishReason::ToolCalls, "{events:?}");
        let calls = calls(&events);
        let [(id, name, arguments)] = calls.as_slice() else { panic!("one call: {calls:?}") };
        assert!(id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        match name.as_str() {
            "get_weather" if named.is_empty() => assert!(arguments["city"].is_string(), "{arguments}"),
            "add" => {
                assert!(arguments["a"].is_i64() || arguments["a"].is_u64() || arguments["a"].is_number());
                assert!(["x", "y"].map(Value::from).contains(&arguments["b"]), "{arguments}");
            }
            other => panic!("{other}"),
        }
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_may_calls_as_it_was_taught() {
    let rig = Rig::start().await;
    let greedy = |choice| {
        let sampling = v1::Sampling { temperature: Some(0.0), ..Default::default() };
        v1::InferRequest { sampling: Some(sampling), ..asked(used(choice, "", true), 1) }
    };
    let events = rig.events(greedy(v1::ToolChoice::Auto)).await;
    let calls_made = calls(&events);
    assert_eq!(calls_made.len(), 1, "{events:?}");
    assert_eq!(calls_made[0].1, "get_weather");
    assert_eq!(serde_json::from_str::<Value>(&calls_made[0].2).unwrap(), json!({"city": "Paris"}));
    assert_eq!((said(&events, 0).as_str(), finished(&events, 0).reason()), ("", v1::FinishReason::ToolCalls));
    let events = rig.events(greedy(v1::ToolChoice::None)).await;
    assert_eq!((calls(&events).len(), finished(&events, 0).reason()), (0, v1::FinishReason::Stop));
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_chosen_is_refused_by_name() {
    let rig = Rig::start().await;
    let refused = async |request| rig.infer(request).await.expect_err("refused");
    let named = refused(asked(used(v1::ToolChoice::Named, "subtract", true), 1)).await;
    check_refused(&named, Code::InvalidArgument, "tool_use.named: ");
    let odd = v1::ToolUse { format: "hermse".into(), ..Default::default() };
    check_refused(&refused(asked(odd, 1)).await, Code::InvalidArgument, "tool_use.format: ");
    let none = v1::InferRequest {
        tool_use: Some(used(v1::ToolChoice::Required, "", true)),
        ..chat(question("hi"), 5)
    };
    check_refused(&refused(none).await, Code::InvalidArgument, "tool_use.choice: ");
    let bare = v1::InferRequest { tool_use: Some(v1::ToolUse::default()), ..text("a", 1) };
    check_refused(&refused(bare).await, Code::InvalidArgument, "tool_use: ");
    let of = |tools_json| v1::InferRequest { ..chat(v1::Chat { tools_json, ..question("hi") }, 5) };
    let nameless = refused(of(vec!["{\"type\":\"function\"}".to_owned()])).await;
    check_refused(&nameless, Code::InvalidArgument, "chat.tools_json[0]: ");
    for odd in
        [tool("a\"b", &json!({}), &[]), tool("a b", &json!({}), &[]), tool(&"a".repeat(300), &json!({}), &[])]
    {
        check_refused(
            &refused(of(vec![odd])).await,
            Code::InvalidArgument,
            "chat.tools_json[0]: function.name",
        );
    }
    let list = json!({"name": "f", "parameters": {"type": "array"}}).to_string();
    check_refused(
        &refused(of(vec![list])).await,
        Code::InvalidArgument,
        "chat.tools_json[0]: function.parameters",
    );
    // Schemas that cannot be enforced are refused, by position, if a call is required. If the model may choose,
    // they are accepted without enforcement.
    let odd = tool("f", &json!({"a": {"not": {"type": "string"}}}), &[]);
    let must = v1::InferRequest {
        tool_use: Some(used(v1::ToolChoice::Required, "", true)),
        ..of(vec![odd.clone()])
    };
    check_refused(&refused(must).await, Code::InvalidArgument, "tools: ");
    assert!(rig.infer(of(vec![odd])).await.is_ok());
    // The same for a schema that nothing satisfies, which is found only when everything is compiled.
    let never = tool("f", &json!({"a": {"allOf": [{"const": 1}, {"const": 2}]}}), &["a"]);
    let must = v1::InferRequest {
        tool_use: Some(used(v1::ToolChoice::Required, "", true)),
        ..of(vec![never.clone()])
    };
    check_refused(&refused(must).await, Code::InvalidArgument, "tools: ");
    assert!(rig.infer(of(vec![never])).await.is_ok());
    rig.stopped().await;
}
