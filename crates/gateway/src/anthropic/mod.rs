//! Anthropic's API: `POST /v1/messages` and `POST /v1/messages/count_tokens`, compatible with its SDKs and
//! agents.
//!
//! A request becomes the same plan as an OpenAI chat request, so all sampling fields of the other APIs are
//! accepted. Without `thinking`, the model's default applies.

pub(crate) mod blocks;
pub(crate) mod count;
pub(crate) mod error;
pub(crate) mod messages;
mod reply;
pub(crate) mod request;
