//! Separates a stream of text into reasoning and answer. The section begins the output, or was opened by the
//! prompt. Markers, and the line breaks just inside and just after them, belong to neither part.

use crate::piece::End;

/// Markers around a reasoning section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningMarkers {
    /// Opening marker.
    pub open: String,
    /// Closing marker.
    pub close: String,
}

/// Markers of every family that writes out its reasoning.
const FAMILIES: [(&str, &str); 12] = [
    ("<think>", "</think>"),
    ("<mm:think>", "</mm:think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("◁think▷", "◁/think▷"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("Here is my thought process:", "Here is my response:"),
];

impl ReasoningMarkers {
    /// Detects the markers, from the template or from tokens in the vocabulary.
    pub fn of(template: &str, has_token: impl Fn(&str) -> bool) -> Option<ReasoningMarkers> {
        let writes = |&&(open, close): &&(&str, &str)| {
            // Some templates write the line break after an opening marker separately.
            template.contains(close) && template.contains(open.split('\n').next().unwrap_or_default())
                || has_token(open.trim_end()) && has_token(close)
        };
        // If only the closing marker is found, the prompt or the model opens the section.
        let closes = |&&(_, close): &&(&str, &str)| template.contains(close);
        let found = FAMILIES.iter().find(writes).or_else(|| FAMILIES.iter().find(closes))?;
        Some(ReasoningMarkers { open: found.0.to_owned(), close: found.1.to_owned() })
    }

    /// Text that closes a section in mid-sentence as the model itself would: a prefix that is part of the
    /// section, and the closing marker. For Harmony see [`crate::ToolFormat::closing`].
    pub fn closing(&self) -> (&'static str, &str) {
        let before = match self.open.as_str() {
            "<think>" | "<|channel>thought\n" | "◁think▷" | "<thought>" | "<reasoning>" => "\n",
            "Here is my thought process:" => "\n\n",
            // No text between the last word and the marker.
            _ => "",
        };
        (before, &self.close)
    }

    /// Returns true if the text is one of the two markers.
    pub fn is(&self, text: &str) -> bool {
        text == self.open.trim_end() || text == self.close
    }

    /// Returns true if the text ends within a section that its last opening marker opened.
    pub fn are_open_in(&self, text: &str) -> bool {
        text.rfind(&self.open).is_some_and(|open| !text[open..].contains(&self.close))
    }
}

/// Section of the output that the stream is in.
#[derive(Clone, Debug)]
pub(crate) enum Section {
    /// Start: only white space and perhaps a part of the opening marker, all held back.
    Start { held: String },
    /// Within the section. `held` has line breaks and perhaps a part of the closing marker.
    Reasoning { held: String, fresh: bool },
    /// Right after the section, where line breaks are dropped.
    Gap,
    /// The answer, until the end.
    Answer,
}

impl Section {
    /// Starts before any text.
    pub(crate) fn start() -> Section {
        Section::Start { held: String::new() }
    }

    /// Starts within the section.
    pub(crate) fn inside() -> Section {
        Section::Reasoning { held: String::new(), fresh: true }
    }

    /// Adds text, and appends what is certain to `reasoning` or `answer`.
    pub(crate) fn push(
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

    /// Ends the text. Appends held text, except a partial marker of an output that was cut.
    pub(crate) fn finish(
        &mut self,
        markers: &ReasoningMarkers,
        end: End,
        reasoning: &mut String,
        answer: &mut String,
    ) {
        // Some markers are words, and a part of them may be a sentence.
        let is_markup = |marker: &str| end == End::Cut && !marker.starts_with(char::is_alphabetic);
        match self {
            Section::Start { held } if is_markup(&markers.open) && !held.trim().is_empty() => held.clear(),
            Section::Reasoning { held, .. } if is_markup(&markers.close) => {
                let certain = held.len() - overlap(held, &markers.close);
                held.truncate(certain);
                reasoning.push_str(&std::mem::take(held));
            }
            Section::Start { held } => answer.push_str(&std::mem::take(held)),
            Section::Reasoning { held, .. } => reasoning.push_str(&std::mem::take(held)),
            Section::Gap | Section::Answer => {}
        }
    }
}

/// Length in bytes of the longest suffix of `text` that is a proper prefix of `marker`.
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
        section.finish(&markers, End::Own, &mut reasoning, &mut answer);
        (reasoning, answer)
    }

    fn start() -> Section {
        Section::start()
    }

    #[test]
    fn families_are_known_by_their_templates_and_vocabularies() {
        let of = |template: &str, tokens: &[&str]| {
            ReasoningMarkers::of(template, |token| tokens.contains(&token)).map(|markers| markers.open)
        };
        assert_eq!(of("{{ '<think>' }}{{ '</think>' }}", &[]).as_deref(), Some("<think>"));
        assert_eq!(of("{% set x = content.split('</think>') %}", &[]).as_deref(), Some("<think>"));
        assert_eq!(of("", &["[THINK]", "[/THINK]"]).as_deref(), Some("[THINK]"));
        assert_eq!(of("<seed:think></seed:think>", &[]).as_deref(), Some("<seed:think>"));
        assert_eq!(of("<|START_THINKING|>x<|END_THINKING|>", &[]).as_deref(), Some("<|START_THINKING|>"));
        assert_eq!(
            of("{{ '<|channel>thought' }}{{ '<channel|>' }}", &[]).as_deref(),
            Some("<|channel>thought\n")
        );
        assert_eq!(
            of("after 'Here is my thought process:' and 'Here is my response:'", &[]).as_deref(),
            Some("Here is my thought process:")
        );
        assert_eq!(of("{{ messages }}", &["<think>"]), None);
    }

    #[test]
    fn every_family_has_an_ending_that_closes_its_section() {
        for (open, close) in FAMILIES {
            let markers = ReasoningMarkers { open: open.to_owned(), close: close.to_owned() };
            let (before, marker) = markers.closing();
            let output = format!("{open}one two{before}{marker}The answer.");
            let (mut reasoning, mut answer) = (String::new(), String::new());
            let mut section = Section::start();
            section.push(&markers, &output, &mut reasoning, &mut answer);
            section.finish(&markers, End::Own, &mut reasoning, &mut answer);
            assert_eq!((reasoning.as_str(), answer.as_str()), ("one two", "The answer."));
        }
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
