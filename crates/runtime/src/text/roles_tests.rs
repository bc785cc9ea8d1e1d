//! Conversations with roles that a chat template lacks, as the prompts of a whole model show them.

use serde_json::json;

use super::tests::demo_with;
use crate::chat::{Chat, Message};

/// Prompt that a template makes from a conversation.
fn prompt(template: &str, messages: &[Message]) -> Result<String, String> {
    let chat = Chat { messages: messages.to_vec(), ..Chat::default() };
    let rendered = demo_with(template).render(&chat, &|| false);
    rendered.map(|rendered| rendered.text).map_err(|error| error.to_string())
}

fn message(role: &str, content: &str) -> Message {
    Message { role: role.into(), content: content.into(), ..Message::default() }
}

/// Knows three roles and drops the others.
const SILENT: &str = "{% for m in messages %}{% if m.role == 'system' %}S:{{ m.content }};\
                      {% elif m.role == 'user' %}U:{{ m.content }};{% elif m.role == 'assistant' %}A:{{ m.content }};\
                      {% endif %}{% endfor %}";
/// Takes a single system message, the first.
const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
                      {{ raise_exception('system comes first') }}{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}";
/// Only looks at the first message for a system prompt.
const FIRST: &str = "{% if messages[0].role == 'system' %}S:{{ messages[0].content }};{% endif %}\
                     {% for m in messages if m.role == 'user' %}U:{{ m.content }};{% endfor %}";
const OPENAI: &str = "{% for m in messages %}{% if m.role in ['system', 'developer'] %}{{ m.role }}!{{ m.content }};\
                      {% else %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}";

#[test]
fn templates_that_go_through_parts_find_a_text() {
    // As the templates of LLaVA, Idefics 3 and SmolVLM do.
    let llava = "{% for m in messages %}{{ m['role'] | upper }}:{% for part in m['content'] | \
                 selectattr('type', 'equalto', 'text') %} {{ part['text'] }}{% endfor %};{% endfor %}";
    let smol = "{% for m in messages %}{{ m.role }}:{% for line in m['content'] %}{% if line['type'] == 'text' %}\
                {{ line['text'] }}{% elif line['type'] == 'image' %}<image>{% endif %}{% endfor %};{% endfor %}";
    let either = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}\
                  {% if part.type == 'text' %}[{{ part.text }}]{% endif %}{% endfor %}{% endif %};{% endfor %}";
    let said = [message("system", "Be brief."), message("user", " Hello, you")];
    assert_eq!(prompt(llava, &said).unwrap(), "SYSTEM: Be brief.;USER:  Hello, you;");
    assert_eq!(prompt(smol, &said).unwrap(), "system:Be brief.;user: Hello, you;");
    assert_eq!(prompt(either, &said).unwrap(), "Be brief.; Hello, you;");
}

#[test]
fn ids_and_names_of_calls_are_as_a_template_insists() {
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": {"at": 1}}});
    let answer = |id: &str, text: &str| Message { tool_call_id: Some(id.into()), ..message("tool", text) };
    let messages = [
        message("user", "a"),
        Message {
            tool_calls: vec![call("call_Xyz0123456789"), call("abcDEF123")],
            ..message("assistant", "")
        },
        answer("abcDEF123", "two"),
        answer("call_Xyz0123456789", "one"),
    ];
    let strict = "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{% if c.id|length != 9 %}\
                  {{ raise_exception('ids have nine') }}{% endif %}[{{ c.id }}]{% endfor %}{% elif m.role == 'tool' %}\
                  ({{ m.tool_call_id }}={{ m.name }}:{{ m.content }}){% else %}{{ m.content }}{% endif %}{% endfor %}";
    let said = prompt(strict, &messages).expect("renders");
    assert_eq!(said, "a[c00000001][abcDEF123](abcDEF123=look:two)(c00000001=look:one)");
    // If the template accepts them, the client's IDs stay.
    let said =
        prompt(&strict.replace("{{ raise_exception('ids have nine') }}", ""), &messages).expect("renders");
    assert!(said.contains("[call_Xyz0123456789]") && !said.contains("look"), "{said}");
}

#[test]
fn arguments_are_text_where_a_template_joins_them_to_text() {
    let call = json!({"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": 1}}});
    let messages = [message("user", "a"), Message { tool_calls: vec![call], ..message("assistant", "") }];
    let of = |arguments: &str| {
        format!(
            "{{% for m in messages %}}{{{{ m.content }}}}{{% for c in m.tool_calls or [] %}}\
             {{{{ c.function.name + '\\n' + {arguments} }}}}{{% endfor %}}{{% endfor %}}"
        )
    };
    assert_eq!(prompt(&of("c.function.arguments"), &messages).as_deref(), Ok("alook\n{\"at\":1}"));
    assert_eq!(prompt(&of("c.function.arguments|tojson"), &messages).as_deref(), Ok("alook\n{\"at\": 1}"));
}

#[test]
fn a_developer_is_the_system_where_a_template_knows_no_other() {
    let [developer, system, user] =
        [message("developer", "Obey."), message("system", "Be kind."), message("user", "hi")];
    let both = [system.clone(), developer.clone(), user.clone()];
    let one = [developer, user];
    assert_eq!(prompt(SILENT, &one).as_deref(), Ok("S:Obey.;U:hi;"));
    assert_eq!(prompt(STRICT, &one).as_deref(), Ok("system:Obey.;user:hi;"));
    assert_eq!(prompt(OPENAI, &one).as_deref(), Ok("developer!Obey.;user:hi;"));
    // Unchanged if the template accepts it, joined if it refuses or drops one.
    assert_eq!(prompt(SILENT, &both).as_deref(), Ok("S:Be kind.;S:Obey.;U:hi;"));
    assert_eq!(prompt(STRICT, &both).as_deref(), Ok("system:Be kind.\n\nObey.;user:hi;"));
    assert_eq!(prompt(FIRST, &both).as_deref(), Ok("S:Be kind.\n\nObey.;U:hi;"));
    assert_eq!(prompt(OPENAI, &both).as_deref(), Ok("system!Be kind.;developer!Obey.;user:hi;"));
    // Refusals for another reason keep the template's own words.
    let late = [message("user", "hi"), message("developer", "Obey.")];
    assert!(prompt(STRICT, &late).expect_err("refused").contains("system comes first"));
}

#[test]
fn tools_are_not_left_out_by_a_template_that_has_never_heard_of_them() {
    let calls = vec![json!({"id": "1", "type": "function",
                            "function": {"name": "weather", "arguments": {"city": "Rome"}}})];
    let messages = [
        message("user", "Rome?"),
        Message { tool_calls: calls, ..message("assistant", "") },
        Message { tool_call_id: Some("1".into()), ..message("tool", "sunny") },
    ];
    let said = prompt(SILENT, &messages).expect("renders");
    assert!(said.contains(r#"A:{"tool_calls":[{"#) && said.contains(r#""city":"Rome""#), "{said}");
    assert!(said.contains(r#"U:{"tool_response":{"content":"sunny","tool_call_id":"1"}};"#), "{said}");
    // A template that writes any role has dropped nothing.
    let any = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    assert!(prompt(any, &messages).expect("renders").ends_with("tool:sunny;"));
    let knows = "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}\
                 {% if m.role != 'tool' %}{{ m.content }}{% endif %};{% endfor %}";
    assert_eq!(
        prompt(knows, &messages).as_deref(),
        Ok("Rome?;weather;;"),
        "what it leaves out is its own choice"
    );
}
