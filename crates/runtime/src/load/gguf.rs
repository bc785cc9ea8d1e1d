//! Text files of a GGUF file, and the name of its quantisation.

use std::sync::Arc;

use super::{GenerationDefaults, TextFiles, TokenizerSource};
use crate::chat::ChatOpening;
use crate::error::LoadError;
use crate::gguf::Metadata;

/// Names of `general.file_type`, by number; missing numbers were withdrawn from the format.
const FILE_TYPES: &[(u32, &str)] = &[
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4"),
    (39, "NVFP4"),
    (40, "Q1_0"),
    (41, "Q2_0"),
];

/// Keys of tokens that end a text (eos), a turn (eot) or a message (eom).
const END_TOKENS: &[&str] =
    &["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Text-related content of a file.
pub(crate) fn text_files(metadata: &Arc<Metadata>) -> Result<TextFiles, LoadError> {
    Ok(TextFiles {
        file: metadata.file().to_owned(),
        tokenizer: TokenizerSource::Gguf(metadata.clone()),
        chat_template: metadata.string("tokenizer.chat_template")?.map(str::to_owned),
        bos: metadata.u32("tokenizer.ggml.bos_token_id")?,
        eos: end_tokens(metadata)?,
        generation: generation(metadata)?,
        opening: ChatOpening::default(),
    })
}

fn end_tokens(metadata: &Metadata) -> Result<Vec<u32>, LoadError> {
    /// List of all end tokens, which Ollama's converter also writes.
    const ALL: &str = "tokenizer.ggml.eos_token_ids";
    let mut tokens = Vec::new();
    for key in END_TOKENS {
        tokens.extend(metadata.u32(key)?);
    }
    for token in metadata.integers(ALL)?.unwrap_or_default() {
        let token = u32::try_from(token);
        tokens.push(token.map_err(|_| metadata.corrupt(ALL, "a token is below 0"))?);
    }
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}

fn generation(metadata: &Metadata) -> Result<GenerationDefaults, LoadError> {
    Ok(GenerationDefaults {
        do_sample: None,
        temperature: metadata.f32("general.sampling.temp")?,
        top_k: metadata.u32("general.sampling.top_k")?,
        top_p: metadata.f32("general.sampling.top_p")?,
        min_p: metadata.f32("general.sampling.min_p")?,
        repetition_penalty: metadata.f32("general.sampling.penalty_repeat")?,
        repeat_last_n: metadata.i32("general.sampling.penalty_last_n")?,
        xtc_probability: metadata.f32("general.sampling.xtc_probability")?,
        xtc_threshold: metadata.f32("general.sampling.xtc_threshold")?,
        // An impossible default must not make every request fail.
        mirostat: metadata.u32("general.sampling.mirostat")?.filter(|version| *version == 2),
        mirostat_tau: metadata.f32("general.sampling.mirostat_tau")?,
        mirostat_eta: metadata.f32("general.sampling.mirostat_eta")?,
        ..GenerationDefaults::default()
    })
}

/// Name of a file's quantisation, if it has the number.
pub(crate) fn file_type(metadata: &Metadata) -> Result<Option<String>, LoadError> {
    let Some(number) = metadata.u32("general.file_type")? else { return Ok(None) };
    Ok(FILE_TYPES.iter().find(|(id, _)| *id == number).map(|(_, name)| (*name).to_owned()))
}
