//! Tests of allowed answers and refused schemas.

use super::*;

fn schema(source: &str) -> Spec {
    Spec::JsonSchema(source.to_owned())
}

#[test]
fn objects_have_their_properties_and_little_white_space() {
    check(
        schema(
            r#"{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"],"additionalProperties":false}"#,
        ),
        &["{\"a\":1}", "{\"a\": -7, \"b\": \"é\\n\"}"],
        &[
            "{}",
            "{\"b\":\"x\"}",
            "{\"a\":1,  \"b\":\"x\"}",
            "{ \"a\":1}",
            "{\"a\":1.5}",
            "{\"a\":1,\"c\":2}",
            "{\"a\":1} ",
        ],
    );
}

#[test]
fn a_name_has_one_spelling() {
    // Otherwise "\u0061" would be another property than "a" in the grammar, and the same one for a JSON parser.
    check(
        schema(
            r#"{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"}}"#,
        ),
        &["{\"b\":\"x\"}", "{\"a\":1, \"b\":\"x\"}"],
        &["{\"\\u0061\":\"x\"}", "{\"a\":\"x\"}"],
    );
}

#[test]
fn formats_are_those_of_the_calendar_and_the_clock() {
    let format = |name: &str| schema(&format!(r#"{{"type":"string","format":"{name}"}}"#));
    check(
        format("date"),
        &["\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\""],
        &[
            "\"2023-02-29\"",
            "\"1900-02-29\"",
            "\"0000-01-01\"",
            "\"0000-02-29\"",
            "\"2024-04-31\"",
            "\"2024-13-01\"",
        ],
    );
    check(
        format("time"),
        &["\"23:59:59Z\"", "\"00:00:00.5+01:00\""],
        &["\"23:59:60Z\"", "\"24:00:00Z\"", "\"10:00:00\""],
    );
    check(
        format("ipv4"),
        &["\"0.0.0.0\"", "\"255.10.9.1\""],
        &["\"256.1.1.1\"", "\"1.2.3\"", "\"01.2.3.4\""],
    );
    check(
        format("ipv6"),
        &["\"::\"", "\"::1\"", "\"1::\"", "\"1:2:3:4:5:6:7:8\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7::\""],
        &["\"1\"", "\"1:2:3:4:5:6:7:8:9\"", "\"1::2::3\"", "\"12345::\"", "\"1:2:3:4:5:6:7::8\"", "\":1\""],
    );
    check(
        format("uuid"),
        &["\"123e4567-e89b-12d3-a456-426614174000\""],
        &["\"123e4567e89b12d3a456426614174000\""],
    );
    check(format("email"), &["\"a.b@c.de\""], &["\"a@b\"", "\"@c.de\"", "\"a b@c.de\""]);
}

#[test]
fn one_of_is_any_of_where_alternatives_exclude_each_other() {
    let tagged = r##"{"oneOf":[{"$ref":"#/$defs/Cat"},{"$ref":"#/$defs/Dog"}],"$defs":{
        "Cat":{"type":"object","properties":{"kind":{"const":"cat"}},"required":["kind"],"additionalProperties":false},
        "Dog":{"type":"object","properties":{"kind":{"const":"dog"},"age":{"type":"integer"}},"required":["kind"],"additionalProperties":false}}}"##;
    check(
        schema(tagged),
        &["{\"kind\":\"cat\"}", "{\"kind\":\"dog\",\"age\":3}"],
        &["{\"kind\":\"cat\",\"age\":3}", "{\"kind\":\"cow\"}"],
    );
    let error = refusal(schema(r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#));
    assert!(
        error.starts_with("at #/oneOf: that no value satisfies two alternatives cannot be shown of 0 and 1"),
        "{error}"
    );
    // Optional tags exclude nothing.
    let optional = tagged.replace("\"required\":[\"kind\"],", "");
    assert!(refusal(schema(&optional)).contains("#/oneOf"));
}

#[test]
fn references_may_lead_back() {
    let tree = r##"{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"value":{"type":"integer"},
        "children":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["value"],"additionalProperties":false}}}"##;
    check(
        schema(tree),
        &["{\"value\":1}", "{\"value\":1,\"children\":[{\"value\":2,\"children\":[]}]}"],
        &["{\"value\":1,\"children\":[1]}", "{\"children\":[]}"],
    );
}

#[test]
fn what_cannot_be_enforced_is_refused_by_name() {
    for (source, error) in [
        (r#"{"not":{"type":"string"}}"#, "at #/not: this keyword cannot be enforced"),
        (r#"{"properties":{"a/b":{"if":{}}}}"#, "at #/properties/a~1b/if: this keyword cannot be enforced"),
        (r#"{"type":"array","uniqueItems":true}"#, "at #/uniqueItems: this keyword cannot be enforced"),
        (r#"{"items":{"contains":{}}}"#, "at #/items/contains: this keyword cannot be enforced"),
        (r#"{"x-guidance":{"lenient":true}}"#, "at #/x-guidance: this keyword cannot be enforced"),
        (r#"{"$ref":"https://example.com/schema"}"#, "at #/$ref: nothing is fetched: it must begin with #"),
        (r##"{"$ref":"#/nowhere"}"##, "at #/$ref: there is no schema at \"#/nowhere\""),
        (r##"{"$ref":"#/title","title":{"not":{}}}"##, "at #/$ref: there is no schema at \"#/title\""),
        (r#"{"type":"string","format":"regex"}"#, "at #/format: the format \"regex\" cannot be enforced"),
        (
            r#"{"const":9007199254740993}"#,
            "at #/const: numbers are exact below 2^53, and it is 9007199254740993",
        ),
        (
            r#"{"type":"object","minProperties":2}"#,
            "at #/minProperties: it can be enforced only up to one more than are required",
        ),
        ("[]", "a schema is an object, or true"),
        ("false", "the schema `false` allows nothing"),
        (r#"{"properties":[]}"#, "at #/properties: it must be an object of schemas"),
        (r#"{"anyOf":{}}"#, "at #/anyOf: it must be an array of schemas"),
        (r#"{"anyOf":[1]}"#, "at #/anyOf/0: a schema is an object, true or false"),
        ("{", "it is not JSON: EOF while parsing an object at line 1 column 1"),
    ] {
        assert_eq!(refusal(schema(source)), error, "{source}");
    }
    // Errors of llguidance.
    for source in [
        r#"{"type":"text"}"#,
        r#"{"type":"string","pattern":"(?=a)"}"#,
        r#"{"type":"string","minLength":5,"maxLength":2}"#,
        r#"{"type":"integer","minimum":3,"maximum":2}"#,
        r#"{"enum":[]}"#,
        r#"{"type":"string","minLength":-1}"#,
        r#"{"allOf":[{"type":"string"},{"type":"integer"}]}"#,
    ] {
        assert!(Grammar::compile(&schema(source), &vocabulary()).is_err(), "{source}");
    }
}

#[test]
fn a_schema_that_nobody_waits_for_is_given_up_at_the_next_one_within_it() {
    let properties: Vec<String> = (0..500).map(|i| format!("\"p{i}\":{{\"type\":\"string\"}}")).collect();
    let constants: Vec<String> = (0..200).map(|i| format!("{{\"const\":\"c{i}\"}}")).collect();
    let objects = format!("{{\"type\":\"object\",\"properties\":{{{}}}}}", properties.join(","));
    let choices = format!("{{\"oneOf\":[{}]}}", constants.join(","));
    for (source, least) in [(objects, 500), (choices, 400)] {
        let asked = std::cell::Cell::new(0);
        let given_up_after = |most: usize| {
            asked.set(0);
            let interrupted = || {
                asked.set(asked.get() + 1);
                asked.get() > most
            };
            json_in_lark(&source, &interrupted)
        };
        assert_eq!(given_up_after(usize::MAX), json_in_lark(&source, &|| false));
        let all = asked.get();
        assert!(all >= least, "{all} questions");
        for most in [0, 1, all / 2, all - 1] {
            assert!(given_up_after(most).is_err(), "{most} of {all}");
            assert_eq!(asked.get(), most + 1);
        }
    }
}
