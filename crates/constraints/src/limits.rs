//! Every bound of constraints, in one place.

use llguidance::api::ParserLimits;

/// Bytes of a JSON schema. Those of large public interfaces have some 200 KB.
pub const SCHEMA_BYTES_MAX: usize = 512 << 10;
/// Bytes of a grammar, Lark or GBNF.
pub const GRAMMAR_BYTES_MAX: usize = 64 << 10;
/// Bytes of a regular expression, and of all those of one schema: the time to compile one grows with the square of it.
pub const REGEX_BYTES_MAX: usize = 16 << 10;
/// Choices an answer is one of.
pub const CHOICES_MAX: usize = 16_384;
/// Bytes of all of them.
pub const CHOICES_BYTES_MAX: usize = 256 << 10;
/// Rules of a GBNF grammar.
pub(crate) const GBNF_RULES_MAX: usize = 4096;
/// Groups within groups, in grammars of either language.
pub(crate) const NESTING_MAX: usize = 200;
/// Repetitions that a grammar may count (`{m,n}`): each is a copy of what is repeated.
pub(crate) const REPEAT_MAX: u32 = 4096;
/// How often what may begin and follow the parts of a GBNF grammar is looked at again before it is taken to be unknown.
pub(crate) const LEXEME_PASSES_MAX: usize = 16;
/// How often lexemes of it are taken apart before all are.
pub(crate) const LEXEME_ROUNDS_MAX: usize = 8;
/// Steps from character to character of one lexeme that is compared with others.
pub(crate) const LEXEME_EDGES_MAX: usize = 16_384;
/// Groups and rules within each other in one.
pub(crate) const LEXEME_NESTING_MAX: usize = 400;
/// Pairs of places in lexemes that are compared: some 10 ms.
pub(crate) const LEXEME_PAIRS_MAX: usize = 1_000_000;
/// Properties of one object: each that may be left out is something else that may come next.
pub(crate) const PROPERTIES_MAX: usize = 2000;
/// Alternatives of one `oneOf` that are compared with each other.
pub(crate) const ONE_OF_MAX: usize = 256;
/// Bytes of one token: a deeper tree of tokens cannot be walked. GLM-4 has a token of 1,024 spaces.
pub(crate) const TOKEN_BYTES_MAX: usize = 1000;
/// Bytes of all tokens: nodes of their tree have 22 bits for the size of what is below.
pub(crate) const VOCABULARY_BYTES_MAX: usize = (4 << 20) - 1;
/// Tokens: nodes have 24 bits for one, and one value says none.
pub(crate) const VOCABULARY_MAX: usize = (1 << 24) - 1;
/// Stack that compiling takes at most: llguidance follows references, and the properties of an object, by recursion, and a
/// schema of [`SCHEMA_BYTES_MAX`] has up to some twenty thousand of them. What is not used costs no memory.
pub(crate) const COMPILE_STACK_BYTES: usize = 512 << 20;
/// Bytes of an error's text.
pub(crate) const ERROR_BYTES_MAX: usize = 1000;

/// What llguidance may spend. A unit of fuel is some 20 to 70 ns.
pub(crate) fn parser() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 10_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 100_000,
        // A state takes one or two KB: 64 MB for one completion.
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}
