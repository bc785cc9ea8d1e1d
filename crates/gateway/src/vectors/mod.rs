//! Texts to vectors, in no surface's own words: reading the inputs, calling the engine in pieces, and writing
//! the answer's JSON piece by piece.
//!
//! A request becomes calls of bounded size, a few of which run at a time. What they answer is held, packed, until
//! all have succeeded, so that a failure has its own status; the JSON, several times as large, never exists as a
//! whole. Dropping the answer drops the calls.

pub(crate) mod calls;
pub(crate) mod cohere;
pub(crate) mod inputs;
pub(crate) mod json;
pub(crate) mod response;
