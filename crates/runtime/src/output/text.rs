//! Text of a completion. Tokens become characters, and characters are split into reasoning, answer and tool calls;
//! the answer ends at a stop string. It works token by token, and holds back only text that is not certain yet.

use std::sync::Arc;

use hanzo_engine_formats::{End, Piece, SplitOptions, Splitter};

use super::{ledger::Ledger, stop::StopMatcher};
use crate::{
    job::{CallDelta, CallReading, Job, StopConditions},
    text::TextModel,
    tokenizer::Detokenizer,
};

/// Output text of a completion, token by token.
#[derive(Debug)]
pub struct OutputText {
    detokenizer: Detokenizer,
    /// Splits reasoning and calls from the answer, if there may be either.
    splitter: Option<Splitter>,
    stop: StopMatcher,
    /// A stop string has matched: nothing follows.
    stopped: bool,
    /// Characters of the current token.
    characters: String,
    /// Tokens that the text comes from, if requested.
    ledger: Option<Ledger>,
    /// Number of complete tool calls that ends the completion.
    calls_max: u32,
}

/// Text that became certain with a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Text of the answer.
    pub text: String,
    /// Text of the reasoning section.
    pub reasoning: String,
    /// Parts of tool calls.
    pub calls: Vec<CallDelta>,
    /// Stop string that matched: the text ends before it, or with it if requested.
    pub stop: Option<String>,
}

impl Chunk {
    /// Whether it has no text and no call. A stop string may have matched.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }
}

impl OutputText {
    /// Creates the empty output of a job's completion.
    pub fn of_job(text: &TextModel, job: &Job) -> Self {
        let calls = job.calls.as_ref();
        let output = OutputText::new(text, &job.stop, job.starts_in_reasoning, job.split_reasoning, calls);
        OutputText { ledger: job.sampling.logprobs.is_some().then(Ledger::default), ..output }
    }

    /// Creates an empty output. With `split_reasoning`, text between the model's reasoning markers goes to
    /// [`Chunk::reasoning`]. With `calls`, calls of these tools go to [`Chunk::calls`]. No stop string matches in
    /// either. `starts_in_reasoning` means that the prompt already opened the section. Everything else is the
    /// answer.
    pub fn new(
        text: &TextModel,
        stop: &StopConditions,
        starts_in_reasoning: bool,
        split_reasoning: bool,
        calls: Option<&CallReading>,
    ) -> Self {
        let format = calls.map(|calls| calls.format).or(text.tool_format).filter(|_| split_reasoning);
        let reading = SplitOptions {
            reasoning: text.reasoning.clone().filter(|_| split_reasoning),
            starts_in_reasoning,
            format,
            tools: calls.map_or_else(|| Arc::from([]), |calls| calls.tools.clone()),
        };
        OutputText {
            detokenizer: Detokenizer::new(true),
            splitter: reading.splits().then(|| Splitter::new(reading)),
            stop: StopMatcher::new(&stop.strings, stop.include_stop_string),
            stopped: false,
            characters: String::new(),
            ledger: None,
            calls_max: if calls.is_some_and(|calls| !calls.parallel) { 1 } else { u32::MAX },
        }
    }

    /// Adds a token. A stop string that may still become a longer one, or that starts inside what may become one,
    /// is reported once that is decided.
    pub fn push(&mut self, text: &TextModel, id: u32) -> Chunk {
        self.characters.clear();
        match self.marker(text, id) {
            Some(marker) => self.characters.push_str(marker),
            None => self.detokenizer.push(&text.tokenizer, id, &mut self.characters),
        }
        if let Some(ledger) = &mut self.ledger {
            let is_silent = text.tokenizer.is_special(id) && self.characters.is_empty();
            ledger.add(if is_silent { 0 } else { text.tokenizer.token_bytes(id).len() });
            ledger.became(self.characters.len(), self.detokenizer.unfinished_bytes());
        }
        let chunk = self.pass_on();
        self.account(&chunk.text);
        chunk
    }

    /// Ends the completion: flushes everything held back.
    pub fn finish(&mut self, _text: &TextModel, end: End) -> Chunk {
        self.characters.clear();
        self.detokenizer.finish(&mut self.characters);
        // U+FFFD for a character that a limit cuts would turn a mark before it into text, and would change a call.
        if end == End::Cut && self.splitter.as_ref().is_some_and(Splitter::is_undecided) {
            self.characters.clear();
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.became(self.characters.len(), 0);
        }
        let mut chunk = self.pass_on();
        if self.stopped {
            self.account(&chunk.text);
            return chunk;
        }
        if let Some(splitter) = &mut self.splitter {
            let pieces = splitter.finish(end);
            self.take(pieces, &mut chunk);
        }
        if chunk.stop.is_none() {
            chunk.stop = self.stop.finish(&mut chunk.text);
        }
        self.stopped = true;
        self.account(&chunk.text);
        chunk
    }

    /// Bytes of the text for each token that became certain since the last call, in order; empty for a token
    /// without a part in the text. After the end of the output all tokens are certain.
    pub fn take_settled(&mut self) -> Vec<Vec<u8>> {
        self.ledger.as_mut().map(Ledger::take_settled).unwrap_or_default()
    }

    /// Records in the ledger that this text is certain.
    fn account(&mut self, text: &str) {
        let Some(ledger) = &mut self.ledger else { return };
        let settled = match &mut self.splitter {
            Some(splitter) => {
                ledger.is_text(splitter.take_shown());
                splitter.settled()
            }
            None => {
                let read = ledger.read();
                ledger.is_text(std::iter::once(read - self.characters.len()..read));
                read
            }
        };
        ledger.told(text, settled);
        if self.stopped {
            ledger.end();
        }
    }

    /// Number of the last of `tokens` (those pushed since) without a part in the returned text: their characters
    /// are held back, or a stop string took them.
    pub fn absent_tokens(&self, text: &TextModel, tokens: &[u32]) -> usize {
        let mut bytes = self.stop.absent_bytes() + self.detokenizer.unfinished_bytes();
        let is_absent = |&&token: &&u32| {
            let own =
                if text.tokenizer.is_special(token) { 0 } else { text.tokenizer.token_bytes(token).len() };
            let is_absent = bytes > 0 && own <= bytes;
            bytes -= if is_absent { own } else { bytes };
            is_absent
        };
        tokens.iter().rev().take_while(is_absent).count()
    }

    /// Whether the last token was inside the reasoning section.
    pub fn in_reasoning(&self) -> bool {
        self.splitter.as_ref().is_some_and(Splitter::in_reasoning)
    }

    /// Whether there are complete tool calls.
    pub fn has_calls(&self) -> bool {
        self.splitter.as_ref().is_some_and(|splitter| splitter.calls() > 0)
    }

    /// Whether there are as many tool calls as allowed.
    pub fn has_all_calls(&self) -> bool {
        self.splitter.as_ref().is_some_and(|splitter| splitter.calls() >= self.calls_max)
    }

    /// Whether the next token may be inside the reasoning section.
    pub fn may_reason(&self) -> bool {
        self.splitter.as_ref().is_some_and(Splitter::may_reason)
    }

    /// Marker that the vocabulary has as a control token; other control tokens are left out of the text.
    fn marker<'a>(&self, text: &'a TextModel, id: u32) -> Option<&'a str> {
        let splitter = self.splitter.as_ref().filter(|_| text.tokenizer.is_special(id))?;
        let written = std::str::from_utf8(text.tokenizer.token_bytes(id)).ok()?;
        splitter.is_marker(written).then_some(written)
    }

    /// Passes the current characters through the rest of the pipeline.
    fn pass_on(&mut self) -> Chunk {
        let mut chunk = Chunk::default();
        if self.stopped || self.characters.is_empty() {
            return chunk;
        }
        match &mut self.splitter {
            None => chunk.stop = self.stop.push(&self.characters, &mut chunk.text),
            Some(splitter) => {
                let pieces = splitter.push(&self.characters);
                self.take(pieces, &mut chunk);
            }
        }
        self.stopped = chunk.stop.is_some();
        chunk
    }

    /// Adds pieces of the output, up to a stop string in the answer.
    fn take(&mut self, pieces: Vec<Piece>, chunk: &mut Chunk) {
        for piece in pieces {
            let call = match piece {
                Piece::Text(text) => {
                    chunk.stop = self.stop.push(&text, &mut chunk.text);
                    if chunk.stop.is_some() {
                        return;
                    }
                    continue;
                }
                Piece::Reasoning(text) => {
                    chunk.reasoning.push_str(&text);
                    continue;
                }
                Piece::CallEnd { .. } => continue,
                Piece::CallStart { index, id, name } => {
                    CallDelta { index, id, name: Some(name), ..CallDelta::default() }
                }
                Piece::Arguments { index, delta } => {
                    CallDelta { index, arguments: delta, ..CallDelta::default() }
                }
                Piece::CallBroken { index } => CallDelta { index, broken: true, ..CallDelta::default() },
            };
            CallDelta::append(&mut chunk.calls, vec![call]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        job::{Tool, ToolFormat},
        text::tests::demo,
    };

    /// Output of a text, tokenized whole or character by character, and every chunk in between.
    fn output(
        model: &TextModel,
        text: &str,
        stop: &StopConditions,
        by_char: bool,
        split: bool,
    ) -> (Chunk, Vec<Chunk>) {
        let encode = |text: &str| model.tokenizer.encode(text, false).expect("encodes");
        let tokens = match by_char {
            true => text.chars().flat_map(|c| encode(&c.to_string())).collect(),
            false => encode(text),
        };
        let mut output = OutputText::new(model, stop, false, split, None);
        let mut chunks: Vec<Chunk> = tokens.into_iter().map(|id| output.push(model, id)).collect();
        if chunks.iter().all(|chunk| chunk.stop.is_none()) {
            chunks.push(output.finish(model, End::Own));
        }
        let whole = Chunk {
            text: chunks.iter().map(|chunk| chunk.text.as_str()).collect(),
            reasoning: chunks.iter().map(|chunk| chunk.reasoning.as_str()).collect(),
            calls: Vec::new(),
            stop: chunks.iter().find_map(|chunk| chunk.stop.clone()),
        };
        (whole, chunks)
    }

    fn chunk(reasoning: &str, text: &str, stop: Option<&str>) -> Chunk {
        Chunk {
            text: text.into(),
            reasoning: reasoning.into(),
            calls: Vec::new(),
            stop: stop.map(str::to_owned),
        }
    }

    #[test]
    fn reasoning_and_stop_strings_are_found_in_any_tokenization() {
        let model = demo();
        let stops = |strings: &[&str]| StopConditions {
            strings: strings.iter().map(|&string| string.to_owned()).collect(),
            ..StopConditions::default()
        };
        let text = "<think>\nNot STOP yet.\n</think>\n\nThe answer 😀 is 42.STOP and more";
        let cases = [
            (stops(&[]), true, chunk("Not STOP yet.", "The answer 😀 is 42.STOP and more", None)),
            (stops(&["STOP"]), true, chunk("Not STOP yet.", "The answer 😀 is 42.", Some("STOP"))),
            (stops(&["42", "answer 😀"]), true, chunk("Not STOP yet.", "The ", Some("answer 😀"))),
            (
                stops(&["ST", "STOP and"]),
                true,
                chunk("Not STOP yet.", "The answer 😀 is 42.", Some("STOP and")),
            ),
            (stops(&["more!", "STOP"]), true, chunk("Not STOP yet.", "The answer 😀 is 42.", Some("STOP"))),
            (
                stops(&["more", "STOP and more!"]),
                true,
                chunk("Not STOP yet.", "The answer 😀 is 42.STOP and ", Some("more")),
            ),
            (stops(&["STOP"]), false, chunk("", "<think>\nNot ", Some("STOP"))),
        ];
        for (stop, split, expected) in cases {
            for by_char in [false, true] {
                assert_eq!(output(&model, text, &stop, by_char, split).0, expected, "{stop:?}");
            }
        }
        let included = StopConditions { include_stop_string: true, ..stops(&["STOP"]) };
        assert_eq!(output(&model, "a STOP b", &included, true, true).0, chunk("", "a STOP", Some("STOP")));
    }

    #[test]
    fn text_comes_as_soon_as_it_is_certain() {
        let model = demo();
        let (_, chunks) = output(&model, "Hi 😀<|im_end|>!", &StopConditions::default(), false, true);
        let texts: Vec<&str> =
            chunks.iter().map(|chunk| chunk.text.as_str()).filter(|text| !text.is_empty()).collect();
        assert_eq!(texts.concat(), "Hi 😀!");
        assert!(texts.len() >= 3, "{texts:?}");
        let mut output = OutputText::new(&model, &StopConditions::default(), true, true, None);
        assert!(output.in_reasoning());
        let mut push = |text: &str| {
            let tokens = model.tokenizer.encode(text, false).expect("encodes");
            let chunks: Vec<Chunk> = tokens.into_iter().map(|id| output.push(&model, id)).collect();
            let inside = output.in_reasoning();
            let text = |part: fn(&Chunk) -> &str| chunks.iter().map(part).collect::<String>();
            (text(|chunk| &chunk.reasoning), text(|chunk| &chunk.text), inside)
        };
        assert_eq!(push("so"), ("so".into(), "".into(), true));
        assert_eq!(push("</think>"), ("".into(), "".into(), false));
        assert_eq!(push("\n\n42"), ("".into(), "42".into(), false));
    }

    #[test]
    fn an_unfinished_character_ends_as_a_replacement() {
        let model = demo();
        let mut tokens = model.tokenizer.encode("a😀", false).expect("encodes");
        tokens.pop();
        let mut output = OutputText::new(&model, &StopConditions::default(), false, true, None);
        let mut text: String = tokens.into_iter().map(|id| output.push(&model, id).text).collect();
        assert_eq!(text, "a");
        text += &output.finish(&model, End::Own).text;
        assert_eq!(text, "a\u{fffd}");
    }

    #[test]
    fn a_character_that_a_limit_cuts_within_a_call_is_dropped() {
        let model = demo();
        let tool = Tool { name: "look".into(), parameters: serde_json::json!({}), strict: false };
        // The output ends behind the first byte of the last character.
        let cut = |format: ToolFormat, said: &str| {
            let mut tokens = model.tokenizer.encode(said, false).expect("encodes");
            let last = tokens.pop().expect("a token");
            assert!(
                std::str::from_utf8(model.tokenizer.token_bytes(last)).is_err(),
                "{said} ends within a character"
            );
            let tools = [tool.clone()].into();
            let reading = CallReading { format, tools, required: false, parallel: true };
            let mut output = OutputText::new(&model, &StopConditions::default(), false, true, Some(&reading));
            let mut chunks: Vec<Chunk> = tokens.into_iter().map(|id| output.push(&model, id)).collect();
            chunks.push(output.finish(&model, End::Cut));
            let text: String = chunks.iter().map(|chunk| chunk.text.as_str()).collect();
            let calls = chunks.iter().flat_map(|chunk| &chunk.calls);
            let arguments: String = calls.map(|call| call.arguments.as_str()).collect();
            (text, arguments)
        };
        let in_a_mark = cut(ToolFormat::DeepSeek, "<｜tool▁calls▁begin｜");
        assert_eq!(in_a_mark, (String::new(), String::new()));
        let call = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"a😀";
        assert_eq!(cut(ToolFormat::Hermes, call), (String::new(), "{\"at\": \"a".to_owned()));
        // Plain text shows that a character was cut.
        assert_eq!(cut(ToolFormat::Hermes, "a😀").0, "a\u{fffd}");
    }
}
