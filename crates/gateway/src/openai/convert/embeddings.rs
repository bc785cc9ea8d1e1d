//! The request of `/v1/embeddings`.

use hanzo_engine_proto::v1::{self, EmbedOutput};

use crate::{
    Config,
    error::ApiError,
    fields::Fields,
    openai::{convert, unsupported},
    vectors::convert::{Inputs, either, inputs, options},
};

/// What a body asks for.
#[derive(Debug)]
pub(crate) struct Embeddings {
    /// Without its inputs and its id; the model is empty where none is named.
    pub(crate) request: v1::EmbedRequest,
    pub(crate) inputs: Inputs,
    /// The numbers as base64 of little-endian f32.
    pub(crate) base64: bool,
}

/// Reads a body, with what vLLM, Infinity, Jina and Cohere add to OpenAI's.
pub(crate) fn request(mut fields: Fields<'_>, config: &Config) -> Result<Embeddings, ApiError> {
    let model = convert::model(&mut fields)?;
    let inputs = inputs(fields.require("input")?, config.embedding_inputs_max)?;
    let format = either(&mut fields, "encoding_format", "embedding_type")?;
    let format = format.map(|field| field.word(&["float", "base64"])).transpose()?;
    let options = options(&mut fields)?;
    unsupported::embedding(&mut fields)?;
    fields.finish()?;
    let request = v1::EmbedRequest { model, output: EmbedOutput::Pooled.into(), ..options };
    Ok(Embeddings { request, inputs, base64: format == Some("base64") })
}
