//! Constraints as a request states them, and their compiled form.

use std::{
    fmt, mem,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use llguidance::{
    TokenParser,
    api::{GrammarWithLexer, TopLevelGrammar},
};
use serde::{Deserialize, Serialize};

use crate::{
    error::{CompileError, first_line},
    gbnf,
    lexers::lexer_bytes,
    limits::{
        CHOICES_BYTES_MAX, CHOICES_MAX, COMPILE_STACK_BYTES, GRAMMAR_BYTES_MAX, NESTING_MAX, REGEX_BYTES_MAX,
        SCHEMA_BYTES_MAX,
    },
    matcher::{Matcher, NO_TOKEN},
    schema,
    vocabulary::ConstraintVocabulary,
};

/// Constraint on an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Spec {
    /// Any JSON object.
    JsonObject,
    /// JSON value that is valid under a schema (draft 2020-12, and keywords of earlier drafts that it shares).
    /// Keywords that cannot be enforced are refused. Properties come in the schema's order, followed by those
    /// that it does not name. At most one space follows a comma or colon.
    JsonSchema(String),
    /// Text that a regular expression matches completely. The syntax is that of Rust's `regex`; the only
    /// assertions are anchors at both ends.
    Regex(String),
    /// Any of these texts.
    Choices(Vec<String>),
    /// Grammar in llguidance's dialect of Lark; its start rule is `start`.
    Lark(String),
    /// Grammar in that dialect, generated from schemas such as those of tools. Its size bound is that of
    /// schemas.
    Schemas(String),
    /// Grammar in GBNF, the notation of llama.cpp; its start rule is `root`.
    Gbnf(String),
}

/// Compiled constraint. Many completions can share it.
pub struct Grammar {
    start: Mutex<TokenParser>, // initial state of every answer; only ever copied
    vocabulary: Arc<ConstraintVocabulary>,
    source: Spec,
    bytes: u64,
    first_mask: Duration,
}

impl Grammar {
    /// Compiles a constraint. Time and memory are bounded by the size limits of the source and by llguidance's
    /// limits. Usual sources take tens of milliseconds, adversarial ones seconds. Runs on its own thread, which
    /// has a large stack.
    ///
    /// # Errors
    /// [`CompileError`] if the source is malformed, cannot be enforced, can never be satisfied, or is too
    /// complex.
    pub fn compile(
        spec: &Spec,
        vocabulary: &Arc<ConstraintVocabulary>,
    ) -> Result<Arc<Grammar>, CompileError> {
        let compile = || compile(spec, vocabulary);
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("constraint".into()).stack_size(COMPILE_STACK_BYTES);
            let thread = thread
                .spawn_scoped(scope, compile)
                .map_err(|error| CompileError::new(format!("no thread to compile it on: {error}")))?;
            thread.join().unwrap_or_else(|_| Err(CompileError::new("compiling it failed")))
        })
    }

    /// Creates a matcher at the beginning of an answer.
    pub fn matcher(&self) -> Matcher {
        // A panic while copying leaves the original intact.
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        Matcher::new(start, self.vocabulary.clone())
    }

    /// Time that the first mask of an answer took when it was tried.
    pub fn first_mask(&self) -> Duration {
        self.first_mask
    }

    /// Source of the grammar.
    pub fn source(&self) -> &Spec {
        &self.source
    }

    /// Estimated memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// ConstraintVocabulary for which it was compiled.
    pub fn vocabulary(&self) -> &Arc<ConstraintVocabulary> {
        &self.vocabulary
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grammar({} bytes)", self.bytes)
    }
}

fn compile(spec: &Spec, vocabulary: &Arc<ConstraintVocabulary>) -> Result<Arc<Grammar>, CompileError> {
    let (grammar, source_bytes) = grammar_of(spec)?;
    let mut parser = vocabulary.factory.create_parser(grammar).map_err(|error| refused(&error))?;
    let lexer_bytes = lexer_bytes(&parser);
    if parser.is_fresh() {
        parser.start_without_prompt();
    }
    // A grammar that allows no answer must fail here, not at the first token.
    let mut matcher = llguidance::Matcher::new(Ok(parser.deep_clone()));
    let accepts = matcher.is_accepting().unwrap_or(false);
    let began = Instant::now();
    if let Err(error) = matcher.compute_mask()
        && !accepts
    {
        let error = first_line(&error.to_string());
        let message = match error.as_str() {
            NO_TOKEN => "no answer of this model's tokens satisfies it".to_owned(),
            _ => format!("it is too complex: {error}"),
        };
        return Err(CompileError::new(message));
    }
    let first_mask = began.elapsed();
    let bytes = (mem::size_of::<Grammar>() + lexer_bytes + 64 * source_bytes + (64 << 10)) as u64;
    let (start, source) = (Mutex::new(parser), spec.clone());
    Ok(Arc::new(Grammar { start, vocabulary: vocabulary.clone(), source, bytes, first_mask }))
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

/// Removes the anchors around an expression. They have no effect, because the whole text must match.
fn unanchored(source: &str) -> &str {
    let source = source.strip_prefix('^').unwrap_or(source);
    let Some(inner) = source.strip_suffix('$') else { return source };
    let escapes = inner.bytes().rev().take_while(|&byte| byte == b'\\').count();
    if escapes % 2 == 0 { inner } else { source }
}

/// Writes all choices as one terminal, so that a choice which is a prefix of another works.
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

/// Checks that brackets, outside of literals and expressions, nest no deeper than a recursive parser can
/// follow.
fn check_nesting(source: &str) -> Result<(), CompileError> {
    let (mut depth, mut deepest) = (0usize, 0usize);
    let mut chars = source.chars();
    while let Some(c) = chars.next() {
        match c {
            // Literals end with their line. So do expressions, in all realistic sources.
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
