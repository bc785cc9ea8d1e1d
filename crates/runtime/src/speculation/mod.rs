//! Speculation: tokens that a completion is likely to go on with are computed in the same step as its last one, because a
//! step of a few rows takes little longer than a step of one. They decide nothing. Of each row the token is drawn as it would
//! have been without them: with the completion's own random number for that place, penalties and log probabilities
//! included; a drafted token is kept while it is the token that was drawn before it. So a seed gives the same tokens with
//! and without speculation, and what is drafted only decides how many of them come in one step. A row is drafted where it is
//! likely to pay, by what rows have been seen to cost ([`RowCost`]).
//!
//! Where drafts come from is [`Lookup`], and where that has nothing a smaller model, if there is one
//! ([`DraftModel`](crate::engine::DraftModel)): before a step is made it is given the completions that decode ([`Asked`]).

mod cost;
mod lookup;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{fair::Order, kv::BlockHash};

pub use cost::RowCost;
pub use lookup::{Lookup, Rates};

/// Where drafts come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Speculation {
    /// There are none.
    Off,
    /// What followed the last few tokens where they stood before, in the prompt or the completion.
    #[default]
    Ngram,
}

/// A completion that is to be drafted for.
pub struct Asked<'a> {
    /// Whose it is.
    pub order: Order,
    /// Prompt and completion, all of them known.
    pub tokens: &'a [u32],
    /// Names of their full blocks.
    pub hashes: &'a [BlockHash],
    /// Tokens that may be drafted, at least 1.
    pub most: usize,
    /// Where they go; empty.
    pub draft: &'a mut Vec<u32>,
}

impl Speculation {
    /// Every source.
    pub const ALL: &[Speculation] = &[Speculation::Off, Speculation::Ngram];

    /// The name in settings.
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

    /// By [`Speculation::name`]; the error lists the names there are.
    fn from_str(name: &str) -> Result<Speculation, String> {
        Speculation::ALL.iter().copied().find(|speculation| speculation.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Speculation::ALL.iter().map(|speculation| speculation.name()).collect();
            format!("there is no speculation {name:?}; there are {}", names.join(", "))
        })
    }
}
