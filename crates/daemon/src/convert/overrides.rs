//! Overrides of a model's files, from the wire's message.

use std::path::PathBuf;

use hanzo_engine_proto::v1;
use hanzo_engine_runtime::{
    Overrides,
    limits::TEMPLATE_FILE_BYTES_MAX,
    overrides::{KeyOverride, Mmproj, RopeOverrides},
};

use crate::{convert::topology, error::Error};

/// Converts the message. Zero and empty values are unset.
///
/// # Errors
/// [`Error::Field`] naming the first invalid value.
pub(crate) fn overrides(wire: v1::Overrides) -> Result<Overrides, Error> {
    let v1::Overrides {
        chat_template,
        tokenizer,
        kv,
        rope_scaling,
        rope_scale,
        rope_freq_base,
        yarn_orig_ctx,
        yarn_attn_factor,
        yarn_beta_fast,
        yarn_beta_slow,
        isq,
        topology,
        mmproj,
        imatrix,
    } = wire;
    if chat_template.len() as u64 > TEMPLATE_FILE_BYTES_MAX {
        let reason =
            format!("has {} bytes; at most {TEMPLATE_FILE_BYTES_MAX} are possible", chat_template.len());
        return Err(Error::field("overrides.chat_template", reason));
    }
    let scaling = match rope_scaling.as_str() {
        "" => None,
        name => Some(name.parse().map_err(|reason: String| Error::field("overrides.rope_scaling", reason))?),
    };
    let isq = match isq.as_str() {
        "" => None,
        name => Some(name.parse().map_err(|reason: String| Error::field("overrides.isq", reason))?),
    };
    let set = |number: f32| (number != 0.0).then_some(number);
    let read =
        |text: &String| text.parse::<KeyOverride>().map_err(|reason| Error::field("overrides.kv", reason));
    let overrides = Overrides {
        chat_template: (!chat_template.is_empty()).then_some(chat_template),
        mmproj: match mmproj.as_str() {
            "" => Mmproj::Beside,
            "none" => Mmproj::None,
            path => Mmproj::File(PathBuf::from(path)),
        },
        tokenizer: (!tokenizer.is_empty()).then(|| PathBuf::from(tokenizer)),
        rope: RopeOverrides {
            scaling,
            scale: set(rope_scale),
            freq_base: set(rope_freq_base),
            original_context: (yarn_orig_ctx > 0).then_some(yarn_orig_ctx),
            attention_factor: set(yarn_attn_factor),
            beta_fast: set(yarn_beta_fast),
            beta_slow: set(yarn_beta_slow),
        },
        isq,
        topology: topology::rules(topology)?,
        imatrix: (!imatrix.is_empty()).then(|| PathBuf::from(imatrix)),
        keys: kv.iter().map(read).collect::<Result<_, _>>()?,
    };
    overrides.check().map_err(|(name, reason)| Error::field("overrides", format!("{name}: {reason}")))?;
    Ok(overrides)
}
