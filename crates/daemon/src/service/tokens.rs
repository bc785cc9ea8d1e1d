//! The calls Tokenize and Detokenize.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use hanzo_engine_proto::v1;
use tonic::Request;

use super::{Core, answer_by, deadline, within};
use crate::{
    convert::request,
    error::Error,
    limits::TOKEN_PIECES_MAX,
    on_demand::Demand,
    prompt,
    prompt_builder::{Build, is_large},
    registry::Capability,
};

/// Converts text or a chat to tokens.
pub(super) async fn tokenize(
    core: &Arc<Core>,
    request: Request<v1::TokenizeRequest>,
) -> Result<v1::TokenizeResponse, Error> {
    let _active = core.drain.enter()?;
    let by = answer_by(deadline(&request, Instant::now())?);
    let client = core.clients.of(&request, &request.get_ref().client)?;
    let v1::TokenizeRequest { model, input, add_special_tokens, parse_special, pieces, keep_alive, .. } =
        request.into_inner();
    let keep_alive = request::keep_alive(keep_alive.as_deref())?;
    let wanted = match &input {
        Some(v1::tokenize_request::Input::Chat(_)) => Capability::Chat,
        Some(v1::tokenize_request::Input::Text(_)) | None => Capability::Any,
    };
    let served = core.models.chosen(&model, "", wanted, Demand { by, keep_alive, told: None }).await?.served;
    // It waits in the model's bounded queue like any request.
    let _place = served.enter()?;
    let is_large_input = request::tokenize_is_large(&input);
    let input = request::tokenize(input, add_special_tokens, parse_special)?;
    let text = served.text.clone();
    let asked = Build { what: "tokenizing the text", client, by, is_large: is_large_input };
    let context_tokens_max = served.size.context_tokens_max();
    let work = served.prompts.run(asked, move |interrupted| {
        let (ids, rendered) = prompt::tokenize(input, &text, context_tokens_max, interrupted)?;
        if pieces && ids.len() > TOKEN_PIECES_MAX {
            let reason = format!(
                "{} tokens are too many; at most {TOKEN_PIECES_MAX} are told piece by piece",
                ids.len()
            );
            return Err(Error::field("pieces", reason));
        }
        let piece = |id: &u32| Bytes::copy_from_slice(text.tokenizer.token_bytes(*id));
        let pieces = if pieces { ids.iter().map(piece).collect() } else { Vec::new() };
        Ok((ids, rendered, pieces))
    });
    let (ids, text, pieces) = within(by, work).await?;
    // The context's length fits in 32 bits.
    let context_tokens_max = context_tokens_max as u32;
    Ok(v1::TokenizeResponse { ids, text, context_tokens_max, pieces })
}

/// Converts tokens to text.
pub(super) async fn detokenize(
    core: &Arc<Core>,
    request: Request<v1::DetokenizeRequest>,
) -> Result<v1::DetokenizeResponse, Error> {
    let _active = core.drain.enter()?;
    let by = answer_by(deadline(&request, Instant::now())?);
    let client = core.clients.of(&request, &request.get_ref().client)?;
    let v1::DetokenizeRequest { model, ids, skip_special_tokens, .. } = request.into_inner();
    let served =
        core.models.chosen(&model, "", Capability::Any, Demand { by, ..Demand::default() }).await?.served;
    let vocab = served.text.vocab;
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
        return Err(Error::field("ids", format!("token {id} is not in the vocabulary of {vocab} tokens")));
    }
    let _place = served.enter()?;
    let text = served.text.clone();
    // Millions of tokens fit into a message.
    let is_large = is_large(size_of_val(&ids[..]));
    let asked = Build { what: "detokenizing the ids", client, by, is_large };
    let work = served.prompts.run(asked, move |interrupted| {
        Ok(text.tokenizer.decode_until(&ids, skip_special_tokens, interrupted)?)
    });
    Ok(v1::DetokenizeResponse { text: within(by, work).await? })
}
