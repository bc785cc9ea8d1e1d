//! Splits a stream of text into the model's reasoning section and its answer. The section begins the output, or
//! was opened by the prompt; markers, and the line breaks just inside and just after them, belong to neither part.

use crate::text::ReasoningMarkers;

/// Where in the output the stream is.
#[derive(Debug)]
pub(super) enum Section {
    /// Nothing but white space and perhaps a piece of the opening marker, all held back.
    Start { held: String },
    /// Inside the section. Held back: line breaks and perhaps a piece of the closing marker.
    Reasoning { held: String, fresh: bool },
    /// Right after the section: line breaks are dropped.
    Gap,
    /// The answer, to the end.
    Answer,
}

impl Section {
    /// Adds text and appends what is certain to `reasoning` or `answer`.
    pub(super) fn push(
        &mut self,
        markers: &ReasoningMarkers,
        text: &str,
        reasoning: &mut String,
        answer: &mut String,
    ) {
        let mut text = text.to_owned();
        while !text.is_empty() {
            match self {
                Section::Start { held } => {
                    held.push_str(&text);
                    let begun = held.trim_start();
                    if let Some(rest) = begun.strip_prefix(markers.open.as_str()) {
                        text = rest.to_owned();
                        *self = Section::inside();
                    } else if markers.open.starts_with(begun) {
                        return;
                    } else {
                        text = std::mem::take(held);
                        *self = Section::Answer;
                    }
                }
                Section::Reasoning { held, fresh } => {
                    held.push_str(&text);
                    if *fresh {
                        let breaks = held.len() - held.trim_start_matches('\n').len();
                        held.drain(..breaks);
                        *fresh = held.is_empty();
                    }
                    if let Some(close) = held.find(&markers.close) {
                        reasoning.push_str(held[..close].trim_end_matches('\n'));
                        text = held[close + markers.close.len()..].to_owned();
                        *self = Section::Gap;
                        continue;
                    }
                    let certain = held.len() - overlap(held, &markers.close);
                    let certain = held[..certain].trim_end_matches('\n').len();
                    reasoning.extend(held.drain(..certain));
                    return;
                }
                Section::Gap => {
                    let rest = text.trim_start_matches('\n');
                    if !rest.is_empty() {
                        *self = Section::Answer;
                    }
                    text = rest.to_owned();
                }
                Section::Answer => {
                    answer.push_str(&text);
                    return;
                }
            }
        }
    }

    /// The text has ended: appends what was held back.
    pub(super) fn finish(&mut self, reasoning: &mut String, answer: &mut String) {
        match self {
            Section::Start { held } => answer.push_str(&std::mem::take(held)),
            Section::Reasoning { held, .. } => reasoning.push_str(&std::mem::take(held)),
            Section::Gap | Section::Answer => {}
        }
    }

    /// Just inside the section.
    pub(super) fn inside() -> Self {
        Section::Reasoning { held: String::new(), fresh: true }
    }
}

/// Bytes of the longest end of `text` that `marker` begins with, short of the whole marker.
fn overlap(text: &str, marker: &str) -> usize {
    let longest = marker.len().saturating_sub(1).min(text.len());
    (1..=longest).rev().find(|&n| marker.is_char_boundary(n) && text.ends_with(&marker[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(mut section: Section, pieces: &[&str]) -> (String, String) {
        let markers = ReasoningMarkers { open: "<think>".into(), close: "</think>".into() };
        let (mut reasoning, mut answer) = (String::new(), String::new());
        for piece in pieces {
            section.push(&markers, piece, &mut reasoning, &mut answer);
        }
        section.finish(&mut reasoning, &mut answer);
        (reasoning, answer)
    }

    fn start() -> Section {
        Section::Start { held: String::new() }
    }

    #[test]
    fn markers_and_the_breaks_beside_them_are_dropped() {
        let cases = [
            ("<think>\nabc\n</think>\n\nanswer", "abc", "answer"),
            (" \n<think>a\n\nb</think>x\n", "a\n\nb", "x\n"),
            ("<think>\n\n</think>\n\nanswer", "", "answer"),
            ("<think>abc </ think> \n", "abc </ think> \n", ""),
            ("no <think>a</think>", "", "no <think>a</think>"),
            ("  <thin air", "", "  <thin air"),
            ("<thi", "", "<thi"),
            (" \n ", "", " \n "),
            ("<think>a</think>b</think>c", "a", "b</think>c"),
            ("<think>a</th", "a</th", ""),
        ];
        for (text, reasoning, answer) in cases {
            assert_eq!(split(start(), &[text]), (reasoning.into(), answer.into()), "{text:?}");
        }
        assert_eq!(split(Section::inside(), &["\nabc\n</think>\n\nanswer"]), ("abc".into(), "answer".into()));
        assert_eq!(split(Section::inside(), &["never closed\n"]), ("never closed\n".into(), "".into()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_cut_splits_alike(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "<", "/", "think", ">", "<think>", "</think>", "\n", "\n\n", " ", "a", "é", "</thi", "nk>",
            ]), 0..14),
            opened in any::<bool>(),
        ) {
            let section = || if opened { Section::inside() } else { start() };
            let whole = pieces.concat();
            let chars: Vec<String> = whole.chars().map(String::from).collect();
            let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
            prop_assert_eq!(split(section(), &pieces), split(section(), &[&whole]));
            prop_assert_eq!(split(section(), &chars), split(section(), &[&whole]));
        }
    }
}
