//! `truncation: auto`: drops the oldest turns of a conversation that does not fit, but never the messages
//! before it.

use hanzo_engine_proto::v1;

/// Divisor of the remaining messages: share to drop at a time, because each try is a call to the engine.
const SHARE: usize = 8;

/// Drops some of the oldest messages: whole turns, which begin with a user's message, or within the last turn
/// calls with their outputs. False: nothing more may be dropped.
pub(super) fn drop_oldest(messages: &mut Vec<v1::Message>) -> bool {
    let role = |at: usize| messages[at].role.as_str();
    let count = messages.len();
    let first = (0..count).find(|at| !matches!(role(*at), "system" | "developer")).unwrap_or(count);
    if first == count {
        return false;
    }
    let least = first + (count - first).div_ceil(SHARE);
    let last_turn = (first..count).rev().find(|at| role(*at) == "user").unwrap_or(first);
    // A turn begins there.
    if let Some(end) = (least..=last_turn).find(|at| role(*at) == "user") {
        messages.drain(first..end);
        return true;
    }
    if let Some(end) = (first + 1..=last_turn).rev().find(|at| role(*at) == "user") {
        messages.drain(first..end);
        return true;
    }
    // The question stays, and so do the last calls with their outputs.
    let begins = if role_is_user(messages, last_turn) { last_turn + 1 } else { last_turn };
    let is_step = |at: &usize| messages[*at].role == "assistant";
    let least = begins + (count - begins).div_ceil(SHARE);
    let Some(end) = (least..count).find(is_step).or_else(|| (begins + 1..count).rev().find(is_step)) else {
        return false;
    };
    messages.drain(begins..end);
    true
}

fn role_is_user(messages: &[v1::Message], at: usize) -> bool {
    messages.get(at).is_some_and(|message| message.role == "user")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages left after each step; `s`, `u`, `a`, `t` are the roles.
    fn steps(roles: &str) -> Vec<String> {
        let role = |letter: char| match letter {
            's' => "system",
            'u' => "user",
            'a' => "assistant",
            _ => "tool",
        };
        let message = |letter| v1::Message { role: role(letter).to_owned(), ..v1::Message::default() };
        let mut messages: Vec<v1::Message> = roles.chars().map(message).collect();
        let mut steps = Vec::new();
        while drop_oldest(&mut messages) {
            steps.push(messages.iter().map(|message| &message.role[..1]).collect());
            assert!(steps.len() < 100, "{steps:?}");
        }
        steps
    }

    #[test]
    fn the_oldest_turns_go_and_the_last_question_stays() {
        assert_eq!(steps("suauau"), ["suau", "su"]);
        assert_eq!(steps("uatatuat"), ["uat"]);
        assert_eq!(steps("suatatat"), ["suatat", "suat"]);
        assert_eq!(steps("atat"), ["at"]);
        for nothing in ["", "s", "su", "u", "uat"] {
            assert_eq!(steps(nothing), [""; 0], "{nothing}");
        }
        // Long conversations take few steps.
        assert!(steps(&"ua".repeat(1000)).len() < 60);
    }
}
