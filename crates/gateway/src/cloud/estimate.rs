//! Estimated tokens of a body that is forwarded unchanged: its texts, and the answers that it asks for.

use hanzo_engine_access::ForwardedNeed;

use crate::json::Json;

/// Fields of a body that are part of the prompt.
const PROMPT: [&str; 7] = ["messages", "prompt", "suffix", "input", "tools", "functions", "response_format"];
/// Fields of a message that hold no text.
const NO_TEXT: [&str; 6] = ["role", "type", "image_url", "input_audio", "video_url", "file"];
/// Fields that limit the tokens of each answer, the newer one first.
pub(crate) const BOUNDS: [&str; 2] = ["max_completion_tokens", "max_tokens"];

/// Token limit to add to a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) member: &'static str,
    pub(crate) tokens: u32,
}

/// Answers of a route, and the field that limits them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    None,
    Bounded { by: &'static str },
}

impl Answers {
    /// Answers of a route, given by its path below `/v1/`.
    pub(crate) fn of(route: &str) -> Answers {
        match route {
            "embeddings" => Answers::None,
            "completions" => Answers::Bounded { by: BOUNDS[1] },
            _ => Answers::Bounded { by: BOUNDS[0] },
        }
    }

    /// Limit of `tokens` for each answer.
    pub(crate) fn bound_to(self, tokens: Option<u32>) -> Option<Bound> {
        match self {
            Answers::None => None,
            Answers::Bounded { by } => tokens.map(|tokens| Bound { member: by, tokens }),
        }
    }
}

/// Estimated tokens of a body. An invalid one counts as nothing; it has been checked before.
pub(crate) fn need(body: &str, answers: Answers) -> ForwardedNeed {
    let body = Json::parse(body.strip_prefix('\u{feff}').unwrap_or(body)).ok();
    let member = |name: &str| body?.members()?.filter(|(key, _)| key == name).last().map(|(_, value)| value);
    let number = |name: &str| member(name)?.as_u64().map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let mut prompt = Prompt::default();
    PROMPT.into_iter().filter_map(member).for_each(|value| prompt.add(value));
    let answers = match answers {
        Answers::None => 0,
        Answers::Bounded { .. } => {
            let of_each = number("n").into_iter().chain(number("best_of")).max().unwrap_or(1).max(1);
            of_each.saturating_mul(member("prompt").map_or(1, prompts))
        }
    };
    ForwardedNeed {
        prompt_bytes: prompt.bytes,
        prompt_tokens: prompt.tokens,
        stated: BOUNDS.into_iter().find_map(number),
        answers,
    }
}

/// Number of prompts of a completion. Each gets its own answers.
fn prompts(value: Json<'_>) -> u32 {
    let texts = value.elements().into_iter().flatten().filter(|element| !element.is_number()).count();
    u32::try_from(texts).unwrap_or(u32::MAX).max(1)
}

/// Bytes of text and number of token ids in a prompt.
#[derive(Default)]
struct Prompt {
    bytes: u64,
    tokens: u64,
}

impl Prompt {
    fn add(&mut self, value: Json<'_>) {
        if let Some(text) = value.as_str() {
            // Images and audio in `data:` URLs are no text.
            self.bytes += if text.starts_with("data:") { 0 } else { text.len() as u64 };
        } else if value.is_number() {
            self.tokens += 1;
        }
        value.elements().into_iter().flatten().for_each(|element| self.add(element));
        let members = value.members().into_iter().flatten();
        members.filter(|(name, _)| !NO_TEXT.contains(&&**name)).for_each(|(_, value)| self.add(value));
    }
}

#[cfg(test)]
mod tests {
    use hanzo_engine_access::ForwardedNeed;
    use serde_json::json;

    use super::{Answers, need};

    #[test]
    fn bodies_need_what_their_texts_and_answers_say() {
        let picture = "data:image/png;base64,".to_owned() + &"A".repeat(100_000);
        for (route, body, expected) in [
            (
                "chat/completions",
                json!({"messages": [{"role": "user", "content": "0123456789"}], "n": 3}),
                ForwardedNeed { prompt_bytes: 10, prompt_tokens: 0, stated: None, answers: 3 },
            ),
            (
                "chat/completions",
                json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "01234"}, {"type": "image_url", "image_url": {"url": picture}}]}],
                    "max_tokens": 7, "max_completion_tokens": 9}),
                ForwardedNeed { prompt_bytes: 5, prompt_tokens: 0, stated: Some(9), answers: 1 },
            ),
            (
                "completions",
                json!({"prompt": ["01", "23"], "max_tokens": 5, "n": 2, "best_of": 4}),
                ForwardedNeed { prompt_bytes: 4, prompt_tokens: 0, stated: Some(5), answers: 8 },
            ),
            (
                "completions",
                json!({"prompt": [1, 2, 3], "max_tokens": null}),
                ForwardedNeed { prompt_bytes: 0, prompt_tokens: 3, stated: None, answers: 1 },
            ),
            (
                "embeddings",
                json!({"input": ["012", "3"], "user": "somebody"}),
                ForwardedNeed { prompt_bytes: 4, prompt_tokens: 0, stated: None, answers: 0 },
            ),
        ] {
            assert_eq!(need(&body.to_string(), Answers::of(route)), expected, "{body}");
        }
    }
}
