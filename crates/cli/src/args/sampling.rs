//! Arguments for sampling and for constraints on the answer.

use std::fs::File;
use std::io::Read;

use clap::Args;
use hanzo_engine_proto::v1::{self, constraint::Of};

use crate::error::CliError;

/// Maximum bytes of a schema or a grammar, as in the daemon.
const CONSTRAINT_BYTES_MAX: u64 = 512 << 10;

/// Sampling options. Unset ones take the model's own default, or are off. The daemon checks the ranges.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature: 0 is greedy, higher is more varied, up to 2 [default: the model's own]
    #[arg(long, short, value_name = "T", value_parser = temperature)]
    pub(crate) temperature: Option<f32>,
    /// Seed that reproduces a sampled answer exactly
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Keep only the K likeliest tokens; 0: all [default: the model's own]
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Keep only the likeliest tokens with this total probability [default: the model's own]
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Keep only tokens with at least this share of the likeliest one's probability [default: the model's own]
    #[arg(long, value_name = "P")]
    pub(crate) min_p: Option<f32>,
    /// Keep only the most typical tokens (closest to the expected surprise) with this total probability
    #[arg(long, value_name = "P")]
    pub(crate) typical_p: Option<f32>,
    /// Keep only tokens whose logits are at most this many standard deviations below the largest
    #[arg(long, value_name = "N")]
    pub(crate) top_n_sigma: Option<f32>,
    /// Probability of removing all tokens above --xtc-threshold except the least likely of them
    #[arg(long, value_name = "P")]
    pub(crate) xtc_probability: Option<f32>,
    /// Probability threshold of --xtc-probability [default: 0.1]
    #[arg(long, value_name = "P")]
    pub(crate) xtc_threshold: Option<f32>,
    /// Range by which the temperature rises where the model is unsure and falls where it is sure
    #[arg(long, value_name = "T")]
    pub(crate) dynatemp_range: Option<f32>,
    /// Exponent of the normalised entropy [default: 1]
    #[arg(long, value_name = "X")]
    pub(crate) dynatemp_exponent: Option<f32>,
    /// 2: control the surprise per token (Mirostat 2); 0: off
    #[arg(long, value_name = "VERSION")]
    pub(crate) mirostat: Option<u32>,
    /// Target surprise in bits [default: 5]
    #[arg(long, value_name = "BITS")]
    pub(crate) mirostat_tau: Option<f32>,
    /// Learning rate of Mirostat [default: 0.1]
    #[arg(long, value_name = "RATE")]
    pub(crate) mirostat_eta: Option<f32>,
    /// Factor that makes earlier tokens less likely; 1: off [default: the model's own]
    #[arg(long, value_name = "X")]
    pub(crate) repetition_penalty: Option<f32>,
    /// Subtracted from a token's logit for each earlier occurrence, -2 to 2
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Subtracted from the logit of a token that occurred, -2 to 2
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Number of last tokens for these three penalties; -1: all, 0: none [default: -1]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) repeat_last_n: Option<i32>,
    /// Strength of the penalty on repeated token sequences (DRY); 0: off
    #[arg(long, value_name = "X")]
    pub(crate) dry_multiplier: Option<f32>,
    /// Base by which the penalty grows with each token of a repetition [default: 1.75]
    #[arg(long, value_name = "X")]
    pub(crate) dry_base: Option<f32>,
    /// Length in tokens from which on a repetition is penalised [default: 2]
    #[arg(long, value_name = "N")]
    pub(crate) dry_allowed_length: Option<u32>,
    /// Number of last tokens that DRY looks at; -1: all [default: -1]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) dry_penalty_last_n: Option<i32>,
}

impl SamplingArgs {
    /// Builds the message of a request.
    pub(crate) fn message(&self) -> v1::Sampling {
        v1::Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self.seed,
            typical_p: self.typical_p,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exponent,
            mirostat: self.mirostat,
            mirostat_tau: self.mirostat_tau,
            mirostat_eta: self.mirostat_eta,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_penalty_last_n: self.dry_penalty_last_n,
            repeat_last_n: self.repeat_last_n,
            ..Default::default()
        }
    }
}

/// Constraint on the answer. At most one of them.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "What the answer must be")]
#[group(multiple = false)]
pub(crate) struct ConstraintArgs {
    /// Answer with a JSON object
    #[arg(long)]
    pub(crate) json_object: bool,
    /// Answer with JSON that fits a schema: the schema itself, or its file
    #[arg(long, value_name = "SCHEMA")]
    pub(crate) json_schema: Option<String>,
    /// Answer as a grammar allows: a file in GBNF, llama.cpp's notation
    #[arg(long, value_name = "FILE")]
    pub(crate) grammar: Option<String>,
    /// Answer with text that matches this regular expression completely
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) regex: Option<String>,
    /// Answer with one of these texts; repeatable
    #[arg(long, value_name = "TEXT")]
    pub(crate) choice: Vec<String>,
}

impl ConstraintArgs {
    /// Builds the message of a request. Reads files.
    pub(crate) fn message(&self) -> Result<Option<v1::Constraint>, CliError> {
        let of = if self.json_object {
            Of::JsonObject(true)
        } else if let Some(schema) = &self.json_schema {
            let is_schema = schema.trim_start().starts_with('{');
            Of::JsonSchema(if is_schema { schema.clone() } else { read("--json-schema", schema)? })
        } else if let Some(path) = &self.grammar {
            Of::Gbnf(read("--grammar", path)?)
        } else if let Some(expression) = &self.regex {
            Of::Regex(expression.clone())
        } else if !self.choice.is_empty() {
            Of::Choices(v1::Choices { texts: self.choice.clone() })
        } else {
            return Ok(None);
        };
        Ok(Some(v1::Constraint { of: Some(of) }))
    }
}

fn read(flag: &str, path: &str) -> Result<String, CliError> {
    let failed = |reason: String| CliError::Usage(format!("{flag}: {path}: {reason}"));
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(failed("is no file".to_owned()));
    }
    let mut text = String::new();
    file.take(CONSTRAINT_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > CONSTRAINT_BYTES_MAX {
        return Err(failed(format!("is longer than {CONSTRAINT_BYTES_MAX} bytes")));
    }
    Ok(text)
}

fn temperature(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if (0.0..=2.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 2".to_owned()),
    }
}
