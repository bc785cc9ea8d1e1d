//! Translation of a request's reasoning settings: into the template's variables where it has them, and into a token
//! bound where it has none. The runtime's `output` enforces the bound.

use serde_json::Value;

use crate::chat::Chat;

/// Effort names and the token bounds they stand for if the template has no such variable; `None`: unbounded.
pub const EFFORTS: [(&str, Option<u32>); 7] = [
    ("none", Some(0)),
    ("minimal", Some(512)),
    ("low", Some(2048)),
    ("medium", Some(8192)),
    ("high", Some(32_768)),
    ("xhigh", None),
    ("max", None),
];

/// Reasoning variables that a chat template reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThinkingSwitches {
    enable_thinking: bool,
    thinking: bool, // name used by DeepSeek, Granite and Kimi
    reasoning_effort: bool,
}

impl ThinkingSwitches {
    /// Detects the variables in a template's source.
    pub fn of(source: &str) -> ThinkingSwitches {
        let code = code(source);
        ThinkingSwitches {
            enable_thinking: reads(&code, "enable_thinking"),
            thinking: reads(&code, "thinking"),
            reasoning_effort: reads(&code, "reasoning_effort"),
        }
    }

    /// Translates `enable_thinking` and `reasoning_effort` into the template's own variables. Returns a token bound
    /// in place of what the template has no variable for.
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

/// Code in a template's tags, without strings; reads the source once.
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

/// Whether the code reads a variable of that name.
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
        // Qwen3
        let source = "{% if enable_thinking is defined %}";
        assert_eq!(applied(source, none.clone()), (none.clone(), None));
        assert_eq!(applied(source, low.clone()), (low.clone(), Some(2048)));
        // gpt-oss
        let source = "{{ reasoning_effort }}{% if 'thinking' in message %}{{ message.thinking }} thinking";
        assert_eq!(applied(source, low.clone()), (low.clone(), None));
        assert_eq!(applied(source, none.clone()), (none.clone(), Some(0)));
        // DeepSeek V3.1
        let source = "{% if not thinking is defined %}";
        assert_eq!(
            applied(source, none.clone()),
            (json!({"enable_thinking": false, "thinking": false}), None)
        );
        let (kwargs, _) = applied(source, json!({"enable_thinking": true, "thinking": false}));
        assert_eq!(kwargs["thinking"], false, "who says it in the template's word has said it");
        // a model that always reasons
        let source = "<think> {# thinking #}{{ rethinking }}{{ \"enable_thinking\" }}{%";
        assert_eq!(applied(source, none.clone()), (none, Some(0)));
        assert_eq!(applied(source, json!({"reasoning_effort": "xhigh"})).1, None);
        for kwargs in [json!({}), json!({"reasoning_effort": 3}), json!({"reasoning_effort": "odd"})] {
            assert_eq!(applied(source, kwargs.clone()), (kwargs, None));
        }
    }
}
