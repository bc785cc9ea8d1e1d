//! Speculative decoding: draft tokens are computed in the same step as a completion's last token, because a step of
//! a few rows takes little longer than one of a single row. Drafts never change the result. For each row a token is
//! sampled as it would be without drafts: with the completion's own random number for that place, penalties and log
//! probabilities included. A draft token is accepted while it equals the sampled one. So a seed gives the same
//! tokens with and without speculation; drafts only decide how many come in one step. A row is drafted if it is
//! likely to pay, given the measured cost of rows ([`RowCost`]).
//!
//! Drafts come from prompt lookup ([`Lookup`]). If that finds nothing and there is a draft model
//! ([`DraftModel`](crate::engine::DraftModel)), it gets the decoding completions ([`DraftRequest`]) before each step.

mod cost;
mod lookup;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{fair::Order, kv::BlockHash};

pub use cost::RowCost;
pub use lookup::{DraftOdds, Lookup, Rates};

/// Source of draft tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Speculation {
    /// No drafts.
    Off,
    /// Tokens that followed the last few tokens earlier in the prompt or the completion.
    #[default]
    Ngram,
}

/// Completion to draft for.
pub struct DraftRequest<'a> {
    /// Queue place of the completion.
    pub order: Order,
    /// Prompt and completion; all tokens are known.
    pub tokens: &'a [u32],
    /// Hashes of their full blocks.
    pub hashes: &'a [BlockHash],
    /// Maximum number of draft tokens, at least 1.
    pub most: usize,
    /// Output for the draft; empty at first.
    pub draft: &'a mut Vec<u32>,
}

impl Speculation {
    /// All sources.
    pub const ALL: &[Speculation] = &[Speculation::Off, Speculation::Ngram];

    /// Name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Speculation::Off => "off",
            Speculation::Ngram => "ngram",
        }
    }
}

impl fmt::Display for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Speculation {
    type Err = String;

    /// Parses the output of [`Speculation::name`]; the error lists all names.
    fn from_str(name: &str) -> Result<Speculation, String> {
        Speculation::ALL.iter().copied().find(|speculation| speculation.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Speculation::ALL.iter().map(|speculation| speculation.name()).collect();
            format!("there is no speculation {name:?}; there are {}", names.join(", "))
        })
    }
}
