//! What a request asks for, and what is compiled of it.

use std::{
    fmt, mem,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde::{Deserialize, Serialize};

use crate::{
    gbnf,
    limits::{
        CHOICES_BYTES_MAX, CHOICES_MAX, COMPILE_STACK_BYTES, ERROR_BYTES_MAX, GRAMMAR_BYTES_MAX, NESTING_MAX,
        REGEX_BYTES_MAX, SCHEMA_BYTES_MAX,
    },
    matcher::{Matcher, NO_TOKEN},
    schema,
    vocabulary::Vocabulary,
};

/// What an answer must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Spec {
    /// A JSON object, whatever is in it.
    JsonObject,
    /// A JSON value that a schema allows (draft 2020-12, and what it has of the drafts before). Keywords that cannot be
    /// enforced are refused. Properties come in the schema's order, those that it does not name after them; between
    /// them there is at most one space.
    JsonSchema(String),
    /// A text that an expression matches from beginning to end, in the syntax of Rust's `regex`, without assertions besides
    /// anchors at both ends.
    Regex(String),
    /// One of these texts.
    Choices(Vec<String>),
    /// A grammar in llguidance's dialect of Lark, from its rule `start` on.
    Lark(String),
    /// A grammar in that dialect which was made of schemas, such as those of tools: as long as schemas may be.
    Schemas(String),
    /// A grammar in GBNF, the notation of llama.cpp, from its rule `root` on.
    Gbnf(String),
}

/// Why a constraint cannot be compiled. The text says what is wrong and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CompileError {
    pub(crate) message: String,
}

impl CompileError {
    pub(crate) fn new(message: impl Into<String>) -> CompileError {
        CompileError { message: message.into() }
    }
}

/// A compiled constraint, which many completions share.
pub struct Grammar {
    start: Mutex<llguidance::Matcher>, // where every answer begins; only ever copied
    vocabulary: Arc<Vocabulary>,
    source: Spec,
    bytes: u64,
}

impl Grammar {
    /// Compiles. Bounded in time and memory by the sizes of its source and by what llguidance may spend: tens of milliseconds for
    /// what is written by people, seconds for what is meant to be slow. Runs on a thread of its own, whose stack is large.
    ///
    /// # Errors
    /// [`CompileError`] where it is malformed, cannot be enforced, can never be satisfied, or is too complex.
    pub fn compile(spec: &Spec, vocabulary: &Arc<Vocabulary>) -> Result<Arc<Grammar>, CompileError> {
        let compile = || compile(spec, vocabulary);
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("constraint".into()).stack_size(COMPILE_STACK_BYTES);
            let thread = thread
                .spawn_scoped(scope, compile)
                .map_err(|error| CompileError::new(format!("no thread to compile it on: {error}")))?;
            thread.join().unwrap_or_else(|_| Err(CompileError::new("compiling it failed")))
        })
    }

    /// The beginning of an answer.
    pub fn matcher(&self) -> Matcher {
        // A panic while copying leaves what is copied as it was.
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        Matcher { parser: start.deep_clone(), vocabulary: self.vocabulary.clone(), complete: false }
    }

    /// What it was compiled of.
    pub fn source(&self) -> &Spec {
        &self.source
    }

    /// Memory it takes, in bytes, by estimate.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The tokens it was compiled over.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grammar({} bytes)", self.bytes)
    }
}

fn compile(spec: &Spec, vocabulary: &Arc<Vocabulary>) -> Result<Arc<Grammar>, CompileError> {
    let (grammar, source_bytes) = grammar_of(spec)?;
    let parser = vocabulary.factory.create_parser(grammar).map_err(|error| refused(&error))?;
    let lexer_bytes = parser.parser.lexer_stats().num_bytes;
    let mut matcher = llguidance::Matcher::new(Ok(parser));
    // A grammar that allows no answer at all must not wait for the first token to say so; and what the first mask takes is kept.
    let accepts = matcher.is_accepting().unwrap_or(false);
    if let Err(error) = matcher.deep_clone().compute_mask()
        && !accepts
    {
        let error = first_line(&error.to_string());
        let message = match error.as_str() {
            NO_TOKEN => "no answer of this model's tokens satisfies it".to_owned(),
            _ => format!("it is too complex: {error}"),
        };
        return Err(CompileError::new(message));
    }
    let bytes = (mem::size_of::<Grammar>() + lexer_bytes + 64 * source_bytes + (64 << 10)) as u64;
    let (start, source) = (Mutex::new(matcher), spec.clone());
    Ok(Arc::new(Grammar { start, vocabulary: vocabulary.clone(), source, bytes }))
}

fn grammar_of(spec: &Spec) -> Result<(TopLevelGrammar, usize), CompileError> {
    let lark = |lark: String| TopLevelGrammar::from_lark(lark);
    Ok(match spec {
        Spec::JsonObject => {
            let schema = schema::compiled("{\"type\":\"object\"}", &|| false)?;
            (TopLevelGrammar::from_json_schema(schema), 0)
        }
        Spec::JsonSchema(source) => {
            bounded(source, SCHEMA_BYTES_MAX)?;
            (TopLevelGrammar::from_json_schema(schema::compiled(source, &|| false)?), source.len())
        }
        Spec::Regex(source) => {
            bounded(source, REGEX_BYTES_MAX)?;
            let expression = GrammarWithLexer::from_regex(unanchored(source));
            (TopLevelGrammar::from_grammar(expression), source.len())
        }
        Spec::Choices(choices) => {
            let bytes = choices.iter().map(String::len).sum();
            (lark(lark_of_choices(choices, bytes)?), bytes)
        }
        Spec::Lark(source) => {
            bounded(source, GRAMMAR_BYTES_MAX)?;
            check_nesting(source)?;
            (lark(source.clone()), source.len())
        }
        Spec::Schemas(source) => {
            bounded(source, SCHEMA_BYTES_MAX)?;
            check_nesting(source)?;
            (lark(source.clone()), source.len())
        }
        Spec::Gbnf(source) => {
            bounded(source, GRAMMAR_BYTES_MAX)?;
            (lark(gbnf::to_lark(source)?), source.len())
        }
    })
}

fn bounded(source: &str, bytes_max: usize) -> Result<(), CompileError> {
    if source.trim().is_empty() {
        return Err(CompileError::new("it is empty"));
    }
    if source.len() > bytes_max {
        return Err(CompileError::new(format!("it has {} bytes, and may have {bytes_max}", source.len())));
    }
    Ok(())
}

/// An expression without the anchors around it, which say nothing where all of a text must match.
fn unanchored(source: &str) -> &str {
    let source = source.strip_prefix('^').unwrap_or(source);
    let Some(inner) = source.strip_suffix('$') else { return source };
    let escapes = inner.bytes().rev().take_while(|&byte| byte == b'\\').count();
    if escapes % 2 == 0 { inner } else { source }
}

/// One terminal, so that a choice that begins another is no trap.
fn lark_of_choices(choices: &[String], bytes: usize) -> Result<String, CompileError> {
    if choices.is_empty() || choices.len() > CHOICES_MAX {
        let count = choices.len();
        return Err(CompileError::new(format!("there must be 1 to {CHOICES_MAX} choices, got {count}")));
    }
    if bytes > CHOICES_BYTES_MAX {
        return Err(CompileError::new(format!(
            "choices have {bytes} bytes, and may have {CHOICES_BYTES_MAX}"
        )));
    }
    if let Some(empty) = choices.iter().position(String::is_empty) {
        return Err(CompileError::new(format!("choice {empty} is empty")));
    }
    let mut lark = String::from("start: CHOICE\nCHOICE: ");
    for (index, choice) in choices.iter().enumerate() {
        lark.push_str(if index > 0 { " | " } else { "" });
        gbnf::push_literal(choice, &mut lark);
    }
    lark.push('\n');
    Ok(lark)
}

/// Brackets within brackets, outside of texts and expressions, as far as a parser by recursion can follow.
fn check_nesting(source: &str) -> Result<(), CompileError> {
    let (mut depth, mut deepest) = (0usize, 0usize);
    let mut chars = source.chars();
    while let Some(c) = chars.next() {
        match c {
            // Texts end with their lines; expressions do too, in what anyone writes.
            '"' | '/' => loop {
                match chars.next() {
                    None | Some('\n') => break,
                    Some('\\') => _ = chars.next(),
                    Some(end) if end == c => break,
                    Some(_) => {}
                }
            },
            '(' | '[' | '{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    if deepest > NESTING_MAX {
        return Err(CompileError::new(format!("groups are nested {deepest} deep, and may be {NESTING_MAX}")));
    }
    Ok(())
}

fn refused(error: &impl fmt::Display) -> CompileError {
    CompileError::new(first_line(&error.to_string()))
}

/// An error's text without the state it was in, on one line, and not longer than a message should be.
pub(crate) fn first_line(error: &str) -> String {
    let error = error.split("\n<").next().unwrap_or_default();
    let mut line: String = error.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > ERROR_BYTES_MAX {
        let end = (0..=ERROR_BYTES_MAX).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}
