//! Tests that slow, deep or large sources end soon and stay within their limits.

use std::time::{Duration, Instant};

use super::*;

/// Compiles a spec and generates up to twenty tokens.
fn run(spec: Spec) {
    let name = format!("{spec:?}").chars().take(60).collect::<String>();
    let began = Instant::now();
    if let Ok(grammar) = Grammar::compile(&spec, &vocabulary()) {
        let mut matcher = grammar.matcher();
        let mut mask = vec![0; grammar.vocabulary().mask_words()];
        for _ in 0..20 {
            let Ok(()) = matcher.allowed(&mut mask) else { break };
            let Some(word) = mask.iter().rposition(|&word| word != 0) else { break };
            let token = 32 * word as u32 + 31 - mask[word].leading_zeros();
            if matcher.accept(token).is_err() {
                break;
            }
        }
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "{name} took {took:?}");
}

#[test]
fn schemas_that_are_long_or_deep() {
    let enumeration: Vec<String> = (0..5000).map(|index| format!("\"member {index} ü\"")).collect();
    let spec = Spec::JsonSchema(format!("{{\"enum\":[{}]}}", enumeration.join(",")));
    check(spec.clone(), &["\"member 4999 ü\"", "\"member 0 ü\""], &["\"member 5000 ü\"", "\"member\""]);
    let properties: Vec<String> =
        (0..2000).map(|index| format!("\"p{index}\":{{\"type\":\"integer\"}}")).collect();
    run(Spec::JsonSchema(format!("{{\"type\":\"object\",\"properties\":{{{}}}}}", properties.join(","))));
    let mut chain: Vec<String> =
        (0..10_000).map(|index| format!("\"{index}\":{{\"$ref\":\"#/$defs/{}\"}}", index + 1)).collect();
    chain.push("\"10000\":{\"type\":\"null\"}".into());
    run(Spec::JsonSchema(format!("{{\"$ref\":\"#/$defs/0\",\"$defs\":{{{}}}}}", chain.join(","))));
    run(Spec::JsonSchema(format!("{}{}{}", "{\"items\":".repeat(60), "{}", "}".repeat(60))));
    assert!(refusal(Spec::JsonSchema("{\"items\":".repeat(5000))).contains("recursion limit"));
    let doubling: Vec<String> = (0..40)
        .map(|index| {
            format!(
                "\"{index}\":{{\"allOf\":[{{\"$ref\":\"#/$defs/{0}\"}},{{\"$ref\":\"#/$defs/{0}\"}}]}}",
                index + 1
            )
        })
        .collect();
    run(Spec::JsonSchema(format!(
        "{{\"$ref\":\"#/$defs/0\",\"$defs\":{{{},\"40\":{{\"anyOf\":[{{\"type\":\"string\"}},{{\"type\":\"null\"}}]}}}}}}",
        doubling.join(",")
    )));
}

#[test]
fn expressions_that_explode() {
    run(Spec::Regex("(a|b)*a(a|b){200}".into()));
    run(Spec::Regex("(.*a){50}".into()));
    run(Spec::Regex("a?".repeat(8000)));
    run(Spec::Regex("((a{1000}){1000}){1000}".into()));
    run(Spec::Regex("(".repeat(16_000)));
    run(Spec::Regex("[a-z]{1,2000}x{1,2000}".into()));
    run(Spec::JsonSchema(r#"{"type":"string","minLength":100000,"maxLength":200000}"#.into()));
    run(Spec::JsonSchema(r#"{"type":"string","pattern":"(a|b)*a(a|b){30}","minLength":30}"#.into()));
    run(Spec::JsonSchema(r#"{"type":"array","items":{"type":"integer"},"minItems":100000}"#.into()));
    run(Spec::JsonSchema(r#"{"type":"number","multipleOf":0.0000001}"#.into()));
    run(Spec::JsonSchema(r#"{"type":"integer","multipleOf":9007199254740991}"#.into()));
}

#[test]
fn grammars_that_are_deep_or_ambiguous() {
    run(Spec::Gbnf(format!("root ::= {}", "(".repeat(50_000))));
    run(Spec::Gbnf("root ::= root root | \"a\"".into()));
    run(Spec::Gbnf("root ::= (\"a\"{4000}){4000}".into()));
    run(Spec::Gbnf("root ::= root | root root root | \"\" | [a-z]".into()));
    let chain: Vec<String> = (0..3000).map(|index| format!("r{index} ::= r{}", index + 1)).collect();
    run(Spec::Gbnf(format!("root ::= r0\n{}\nr3000 ::= \"a\"", chain.join("\n"))));
    run(Spec::Lark(format!("start: {}", "(".repeat(50_000))));
    run(Spec::Lark("start: start start | /a/ | \"\"".into()));
    run(Spec::Lark(format!("start: {}\"a\"{}", "[".repeat(199), "]".repeat(199))));
    assert!(refusal(Spec::Lark("start: \"a\" <|nothing|>".into())).contains("nothing"));
    assert!(refusal(Spec::Lark("start: b".into())).contains('b'));
    assert_eq!(refusal(Spec::Lark(" ".into())), "it is empty");
    assert!(refusal(Spec::Regex("a".repeat(100_000))).contains("may have 16384"));
}
