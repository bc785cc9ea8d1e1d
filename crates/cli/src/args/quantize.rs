//! `quantize`: its arguments.

use super::{EngineArgs, StoreArgs};
use clap::Args;
use hanzo_engine_daemon::quantize::{Affine, DType, MIXES, Mix, QuantiseOptions, QuantizeTarget};
use std::path::PathBuf;

/// Arguments of `quantize`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine quantize ./qwen3-4b-BF16.gguf ./qwen3-4b-Q4_K_M.gguf --to Q4_K_M
  hanzo-engine quantize ./Qwen3-4B ./qwen3-4b-BF16.gguf --to BF16
  hanzo-engine quantize ./Qwen3-4B ./Qwen3-4B-AFQ4 --to AFQ4
  hanzo-engine quantize ./qwen3-4b-BF16.gguf --to Q5_K_S --dry-run
  hanzo-engine quantize ./qwen3-4b-BF16.gguf ./qwen3-4b-IQ4_XS.gguf --to IQ4_XS --imatrix ./qwen3-4b.imatrix.gguf
  hanzo-engine quantize ./model-F16.gguf ./model.gguf --to Q4_K_M --tensor-type 'blk.*.attn_v=Q8_0' --token-embedding-type Q8_0

TYPE is one of: TQ1_0, TQ2_0, Q2_K, Q3_K_S, Q3_K_M, Q3_K_L, IQ4_XS, MXFP4_MOE, IQ4_NL, Q4_0, Q4_K_S, Q4_K_M, Q4_1, Q5_0, Q5_K_S, Q5_K_M, Q5_1, Q6_K, Q8_0, F16, BF16, F32. GGUF tensors get the types that llama.cpp's mixes of these names give them: some more bits where it matters most, and others where rows are not whole blocks.
A folder (config.json, a tokenizer, weights of safetensors or PyTorch) becomes what llama.cpp's converter makes of it, of the families llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma, gemma2 and gemma3; others are refused by name. Matrices that are quantised already (GPTQ, AWQ, AFQ ...) become floats, and other types with --allow-requantize.
AFQ4 (groups of 64; AFQ4_G32, AFQ4_G128 and 2, 3, 5, 6 and 8 bits likewise) makes a folder of safetensors in MLX's layout, as mlx-lm does, of a folder: every matrix whose rows are whole groups, but routers. --tensor-type takes AFQ types and the folder's names then, and OUT must not be there, --force or not.
OUT has its name when it is whole; until then it is OUT.part.

--json prints {\"file\": null or the path, \"source_bytes\", \"size_bytes\", \"parameters\", \"bits_per_weight\", \"tensors\": [{\"name\", \"shape\", \"from\", \"to\", \"bytes\"}]}.")]
pub(crate) struct QuantizeArgs {
    /// Path to a GGUF file or a model's folder, or the name of a model
    #[arg(value_name = "IN")]
    pub(crate) model: String,
    /// File to write, or folder for AFQ types
    #[arg(value_name = "OUT", required_unless_present = "dry_run")]
    pub(crate) output: Option<PathBuf>,
    /// Target type
    #[arg(long, value_name = "TYPE", value_parser = target)]
    pub(crate) to: To,
    /// Use that type for every matrix, without the mix's exceptions
    #[arg(long)]
    pub(crate) pure: bool,
    /// Leave the output matrix as it is
    #[arg(long, conflicts_with = "output_type")]
    pub(crate) keep_output: bool,
    /// Type of the output matrix, such as Q6_K
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    pub(crate) output_type: Option<DType>,
    /// Type of the token embedding
    #[arg(long, value_name = "TYPE", value_parser = dtype)]
    pub(crate) token_embedding_type: Option<DType>,
    /// Type of tensors whose names contain this text, with * for any text; repeatable, the first match counts
    #[arg(long, value_name = "PATTERN=TYPE", value_parser = named_type)]
    pub(crate) tensor_type: Vec<(String, DType)>,
    /// Importance matrix of the model, from llama-imatrix (.gguf or .dat), to weigh quantisation errors by
    /// column
    #[arg(long, value_name = "FILE")]
    pub(crate) imatrix: Option<PathBuf>,
    /// Quantise tensors that are already quantised, which loses more than from F16 or BF16
    #[arg(long)]
    pub(crate) allow_requantize: bool,
    /// Compute threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Print the type that each tensor would get, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Target format of a quantisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum To {
    /// GGUF file.
    Mix(Mix),
    /// Folder in MLX's layout.
    Affine(DType),
}

impl To {
    /// Name of the target as users write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            To::Mix(mix) => mix.name,
            To::Affine(dtype) => dtype.label(),
        }
    }
}

impl QuantizeArgs {
    /// Builds the target from the flags. Fails if a flag does not apply to the format.
    pub(crate) fn target(&self) -> Result<QuantizeTarget, String> {
        let (keep_output, requantize, named) =
            (self.keep_output, self.allow_requantize, self.tensor_type.clone());
        match self.to {
            To::Mix(mix) => Ok(QuantizeTarget::Mix(QuantiseOptions {
                mix,
                pure: self.pure,
                keep_output,
                output: self.output_type,
                token_embedding: self.token_embedding_type,
                named,
                requantize,
            })),
            To::Affine(dtype) => {
                let flags = [
                    ("--pure", self.pure),
                    ("--output-type", self.output_type.is_some()),
                    ("--token-embedding-type", self.token_embedding_type.is_some()),
                    ("--imatrix", self.imatrix.is_some()),
                ];
                if let Some((flag, _)) = flags.into_iter().find(|(_, given)| *given) {
                    return Err(format!(
                        "{flag} is for GGUF files, and {} is none: --tensor-type says types of single matrices",
                        dtype.label()
                    ));
                }
                if let Some((part, other)) = named.iter().find(|(_, dtype)| dtype.affine().is_none()) {
                    return Err(format!(
                        "--tensor-type {part}={other}: beside {} matrices are AFQ too",
                        dtype.label()
                    ));
                }
                Ok(QuantizeTarget::Affine(Affine { dtype, keep_output, named, requantize }))
            }
        }
    }
}

fn target(name: &str) -> Result<To, String> {
    let affine = DType::ALL.iter().filter(|dtype| dtype.affine().is_some());
    if let Some(dtype) = affine.clone().find(|dtype| dtype.label().eq_ignore_ascii_case(name)) {
        return Ok(To::Affine(*dtype));
    }
    let names = || MIXES.iter().map(|mix| mix.name).chain(affine.clone().map(|dtype| dtype.label()));
    Mix::named(name)
        .map(To::Mix)
        .ok_or_else(|| format!("no such type; there are {}", names().collect::<Vec<_>>().join(", ")))
}

fn dtype(name: &str) -> Result<DType, String> {
    let found = DType::ALL.iter().find(|dtype| dtype.label().eq_ignore_ascii_case(name));
    found.copied().ok_or_else(|| "no such type of a tensor; Q4_K, Q6_K, Q8_0 and F16 are such".to_owned())
}

fn named_type(text: &str) -> Result<(String, DType), String> {
    let (pattern, name) = text.rsplit_once('=').ok_or("PATTERN=TYPE is needed, such as attn_v=Q8_0")?;
    if let Some(c) = pattern.chars().find(|c| "^$[](){}|+?\\".contains(*c)) {
        return Err(format!("{c} of {pattern}: no expressions are taken; * stands for any text"));
    }
    if pattern.is_empty() {
        return Err("nothing before the =".to_owned());
    }
    Ok((pattern.to_owned(), dtype(name)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_named_tensors() {
        assert_eq!(named_type("blk.*.attn_v=q8_0"), Ok(("blk.*.attn_v".to_owned(), DType::Q8_0)));
        for (text, part) in [
            ("attn_v", "PATTERN=TYPE"),
            ("=Q8_0", "nothing"),
            ("a=Q9", "no such"),
            (r"a\.b=Q8_0", "expressions"),
        ] {
            assert!(named_type(text).unwrap_err().contains(part), "{text}");
        }
        assert_eq!(target("q4_k").map(To::name), Ok("Q4_K_M"));
        assert_eq!(target("afq4_g32"), Ok(To::Affine(DType::AFQ4_G32)));
        assert!(target("Q4_K_X").unwrap_err().contains("Q3_K_L, IQ4_XS"));
    }
}
