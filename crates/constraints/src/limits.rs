//! Bounds of constraints.

use std::time::Duration;

use llguidance::api::ParserLimits;

/// Time of a constraint's last mask and token from which on its masks are computed beside the steps, in the
/// background.
pub const SLOW_MASK: Duration = Duration::from_millis(2);
/// Maximum time of a mask and a token in the background. After it the completion fails.
pub(crate) const MASK_TIME_MAX: Duration = Duration::from_secs(1);
/// Maximum bytes of a JSON schema. Schemas of large public interfaces have some 200 KB.
pub const SCHEMA_BYTES_MAX: usize = 512 << 10;
/// Maximum bytes of a Lark or GBNF grammar.
pub const GRAMMAR_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of a regular expression, and of all patterns of a schema together. Compile time grows with the
/// square of the size.
pub const REGEX_BYTES_MAX: usize = 16 << 10;
/// Maximum number of choices.
pub const CHOICES_MAX: usize = 16_384;
/// Maximum bytes of all choices together.
pub const CHOICES_BYTES_MAX: usize = 256 << 10;
/// Maximum rules of a GBNF grammar.
pub(crate) const GBNF_RULES_MAX: usize = 4096;
/// Maximum nesting depth of groups, in Lark and GBNF.
pub(crate) const NESTING_MAX: usize = 200;
/// Maximum count in a repetition (`{m,n}`): each is a copy of the repeated part.
pub(crate) const REPEAT_MAX: u32 = 4096;
/// Maximum passes of the fixpoint over what parts of a GBNF grammar may begin with and be followed by. After
/// them all lexemes are split.
pub(crate) const LEXEME_PASSES_MAX: usize = 16;
/// Maximum rounds of splitting lexemes. After them all are split.
pub(crate) const LEXEME_ROUNDS_MAX: usize = 8;
/// Maximum edges of the automaton of one lexeme.
pub(crate) const LEXEME_EDGES_MAX: usize = 16_384;
/// Maximum nesting of groups and rules in one lexeme.
pub(crate) const LEXEME_NESTING_MAX: usize = 400;
/// Maximum pairs of lexeme positions that are compared: some 10 ms.
pub(crate) const LEXEME_PAIRS_MAX: usize = 1_000_000;
/// Maximum properties of an object: each optional one is another possible continuation.
pub(crate) const PROPERTIES_MAX: usize = 2000;
/// Maximum alternatives of a `oneOf`, which are compared pairwise.
pub(crate) const ONE_OF_MAX: usize = 256;
/// Maximum bytes of a token: a deeper token tree cannot be walked. GLM-4 has a token of 1,024 spaces.
pub(crate) const TOKEN_BYTES_MAX: usize = 1000;
/// Maximum bytes of all tokens: tree nodes store the size of their subtree in 22 bits.
pub(crate) const VOCABULARY_BYTES_MAX: usize = (4 << 20) - 1;
/// Maximum number of tokens: tree nodes store a token in 24 bits, and one value means none.
pub(crate) const VOCABULARY_MAX: usize = (1 << 24) - 1;
/// Stack size of the compiling thread. llguidance recurses over references and over the properties of an
/// object; a schema of [`SCHEMA_BYTES_MAX`] can have some twenty thousand of them. Unused stack costs no
/// memory.
pub(crate) const COMPILE_STACK_BYTES: usize = 512 << 20;
/// Maximum bytes that the lexers of a model's running answers add to those they begin with.
pub(crate) const LEXERS_BYTES_MAX: u64 = 24 << 20;
/// Maximum bytes of an error text.
pub(crate) const ERROR_BYTES_MAX: usize = 1000;

/// Limits of llguidance. A unit of fuel takes some 20 to 70 ns.
pub(crate) fn parser() -> ParserLimits {
    ParserLimits {
        // An object with 2,000 optional properties has 8,000 items.
        max_items_in_row: 10_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 100_000,
        // A state takes one or two KB. `LEXERS_BYTES_MAX` bounds those of all answers together.
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}
