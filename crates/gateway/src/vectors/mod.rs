//! Embedding requests, independent of any API: parsing the inputs, calling the engine in pieces, and writing
//! the answer's JSON piece by piece.
//!
//! A request becomes calls of bounded size, of which a few run at a time. Their packed answers are held until
//! all have succeeded, so that a failure gets an error status. The JSON, which is several times as large, never
//! exists as a whole. Dropping the answer cancels the calls.

pub(crate) mod calls;
pub(crate) mod cohere;
pub(crate) mod inputs;
pub(crate) mod json;
pub(crate) mod openai;
pub(crate) mod response;
