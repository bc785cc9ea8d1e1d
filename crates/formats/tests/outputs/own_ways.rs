//! Outputs of families that were read from their published templates: forms that one format alone has.

use hanzo_engine_formats::ToolFormat as F;
use serde_json::{Value, json};

use super::{Case, read, reading};

#[test]
fn published_templates_have_forms_of_their_own() {
    let call = |name: &str, arguments: Value| (name.to_owned(), arguments);
    let paris = || call("get_weather", json!({"city": "Paris"}));
    let cases: Vec<Case> = vec![
        (
            F::ToolCalls,
            "<tool_calls>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n{\"name\": \"now\", \"arguments\": {}}\n\
             </tool_calls>",
            "",
            vec![paris(), call("now", json!({}))],
        ),
        (F::ChatGlm, "get_weather\n{\"city\": \"Paris\"}<|observation|>", "", vec![paris()]),
        (
            F::QwenCoder,
            "<tool_call>\n<function=get_weather>\n<parameter=list>\n[1, 2.5, None, True, 'a\"b', \"it's\"]\n</parameter>\n<parameter=where>\n\
             {'x': {'y': False}}\n</parameter>\n</function>\n</tool_call>",
            "",
            vec![call(
                "get_weather",
                json!({"list": [1, 2.5, null, true, "a\"b", "it's"], "where": {"x": {"y": false}}}),
            )],
        ),
        (F::ChatGlm, "get_weather is a tool.\n{}", "get_weather is a tool.\n{}", vec![]),
        (F::ChatGlm, "Now:\nnow\n{}", "Now:\nnow\n{}", vec![]),
        (
            F::GigaChat,
            "I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \
             \"Paris\"}}<|message_sep|>\n\n",
            "I look.",
            vec![paris()],
        ),
        (
            F::MiniCpm,
            "<function name=\"get_weather\"><param name=\"note\"><![CDATA[a </param> b]]></param></function>",
            "",
            vec![call("get_weather", json!({"note": "a </param> b"}))],
        ),
    ];
    for (format, raw, text, calls) in cases {
        let got = read(&reading(format), raw);
        assert_eq!((got.text.trim(), got.calls), (text, calls), "{}: {raw}", format.name());
    }
}
