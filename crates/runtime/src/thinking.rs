//! How a conversation says whether a model reasons, and how long: the variables that templates have for it, and bounds in
//! tokens where they have none. That a bound is kept is [`crate::output`]'s part.

use serde_json::Value;

use crate::chat::Chat;

/// The efforts that requests name, and the tokens that they stand for where the template has no such variable; none: as many
/// as the model takes.
pub const EFFORTS: [(&str, Option<u32>); 7] = [
    ("none", Some(0)),
    ("minimal", Some(512)),
    ("low", Some(2048)),
    ("medium", Some(8192)),
    ("high", Some(32_768)),
    ("xhigh", None),
    ("max", None),
];

/// Which variables a chat template reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThinkingSwitches {
    enable_thinking: bool,
    thinking: bool, // DeepSeek's, Granite's and Kimi's word for it
    reasoning_effort: bool,
}

impl ThinkingSwitches {
    /// Those that a template's source names.
    pub fn of(source: &str) -> ThinkingSwitches {
        let code = code(source);
        ThinkingSwitches {
            enable_thinking: reads(&code, "enable_thinking"),
            thinking: reads(&code, "thinking"),
            reasoning_effort: reads(&code, "reasoning_effort"),
        }
    }

    /// What a conversation says by `enable_thinking` and `reasoning_effort`, in the words that the template has. Gives the bound
    /// in tokens that stands for what it has no word for.
    pub fn apply(self, chat: &mut Chat) -> Option<u32> {
        let wanted = chat.kwargs.get("enable_thinking").and_then(Value::as_bool);
        if let Some(wanted) = wanted
            && self.thinking
            && !self.enable_thinking
        {
            chat.kwargs.entry("thinking").or_insert(wanted.into());
        }
        if wanted == Some(false) && !self.enable_thinking && !self.thinking {
            return Some(0);
        }
        let effort = chat.kwargs.get("reasoning_effort").and_then(Value::as_str);
        let effort = effort.filter(|_| !self.reasoning_effort)?;
        EFFORTS.iter().find(|(name, _)| *name == effort)?.1
    }
}

/// What stands in a template's tags, without strings. Read once, however many there are.
fn code(source: &str) -> String {
    let (mut code, mut inside, mut quote, mut last) = (String::new(), false, None, ' ');
    for c in source.chars() {
        match (inside, quote) {
            (false, _) => inside = last == '{' && matches!(c, '%' | '{'),
            (true, Some(open)) => quote = Some(open).filter(|&open| open != c),
            (true, None) if c == '"' || c == '\'' => quote = Some(c),
            (true, None) if c == '}' && matches!(last, '%' | '}') => {
                inside = false;
                code.push(' ');
            }
            (true, None) => code.push(c),
        }
        last = c;
    }
    code
}

/// Whether code has a variable of that name.
fn reads(code: &str, name: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(at, _)| {
        !code[..at].ends_with(|c: char| part(c) || c == '.') && !code[at + name.len()..].starts_with(part)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn applied(source: &str, kwargs: Value) -> (Value, Option<u32>) {
        let mut chat = Chat { kwargs: kwargs.as_object().cloned().expect("an object"), ..Chat::default() };
        let tokens_max = ThinkingSwitches::of(source).apply(&mut chat);
        (Value::Object(chat.kwargs), tokens_max)
    }

    #[test]
    fn what_the_template_knows_is_the_templates_and_the_rest_is_a_bound() {
        let none = json!({"enable_thinking": false});
        let low = json!({"enable_thinking": true, "reasoning_effort": "low"});
        // Qwen3's.
        let source = "{% if enable_thinking is defined %}";
        assert_eq!(applied(source, none.clone()), (none.clone(), None));
        assert_eq!(applied(source, low.clone()), (low.clone(), Some(2048)));
        // gpt-oss's.
        let source = "{{ reasoning_effort }}{% if 'thinking' in message %}{{ message.thinking }} thinking";
        assert_eq!(applied(source, low.clone()), (low.clone(), None));
        assert_eq!(applied(source, none.clone()), (none.clone(), Some(0)));
        // DeepSeek V3.1's.
        let source = "{% if not thinking is defined %}";
        assert_eq!(
            applied(source, none.clone()),
            (json!({"enable_thinking": false, "thinking": false}), None)
        );
        let (kwargs, _) = applied(source, json!({"enable_thinking": true, "thinking": false}));
        assert_eq!(kwargs["thinking"], false, "who says it in the template's word has said it");
        // One that always reasons.
        let source = "<think> {# thinking #}{{ rethinking }}{{ \"enable_thinking\" }}{%";
        assert_eq!(applied(source, none.clone()), (none, Some(0)));
        assert_eq!(applied(source, json!({"reasoning_effort": "xhigh"})).1, None);
        for kwargs in [json!({}), json!({"reasoning_effort": 3}), json!({"reasoning_effort": "odd"})] {
            assert_eq!(applied(source, kwargs.clone()), (kwargs, None));
        }
    }
}
