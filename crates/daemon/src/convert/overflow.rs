//! Conversion of options for prompts that are too long, and of the prefix cache's salt.

use hanzo_engine_proto::v1;
use hanzo_engine_runtime::tokenizer::CutSide;

use super::embed::truncate_side;
use crate::{
    error::Error,
    limits::CACHE_SALT_BYTES_MAX,
    prompt::{Keep, Overflow, Truncate},
};

/// Converts the options for prompts that are too long.
pub(super) fn overflow(wire: &v1::InferRequest) -> Result<Overflow, Error> {
    let side = match truncate_side(wire.truncate_side)? {
        v1::TruncateSide::Right => CutSide::Right,
        v1::TruncateSide::Left | v1::TruncateSide::Unspecified => CutSide::Left,
    };
    let most = |field, tokens: i32, least| match usize::try_from(tokens) {
        Ok(tokens) if tokens >= least => Ok(Some(tokens)),
        _ if tokens == -1 => Ok(None),
        _ => Err(Error::field(field, format!("must be -1 or at least {least}, not {tokens}"))),
    };
    let truncate = wire.truncate_prompt_tokens.map(|tokens| most("truncate_prompt_tokens", tokens, 1));
    let keep = wire.keep_tokens.map(|tokens| most("keep_tokens", tokens, 0)).transpose()?;
    Ok(Overflow {
        truncate: truncate.transpose()?.map(|tokens| Truncate { tokens, side }),
        shift: wire.context_shift,
        keep: keep.map(|tokens| tokens.map_or(Keep::Prompt, Keep::Tokens)),
    })
}

/// Salt that separates the request's cached prefixes from those of other salts.
pub(super) fn cache_salt(salt: String) -> Result<Vec<u8>, Error> {
    if salt.len() > CACHE_SALT_BYTES_MAX {
        let reason = format!("must have at most {CACHE_SALT_BYTES_MAX} bytes, not {}", salt.len());
        return Err(Error::field("cache_salt", reason));
    }
    Ok(salt.into_bytes())
}
