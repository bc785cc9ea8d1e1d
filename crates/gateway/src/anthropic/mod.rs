//! Anthropic's API: `POST /v1/messages` and `POST /v1/messages/count_tokens`, in the shapes that its SDKs and agents know.
//!
//! A request becomes the same plan as a chat's, so every field of sampling that the other surfaces take is taken here too.
//! Where a request says nothing of `thinking`, the model does as it does by itself.

mod blocks;
pub(crate) mod count;
pub(crate) mod error;
pub(crate) mod messages;
mod reply;
mod request;
