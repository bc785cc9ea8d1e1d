//! How the tokens of an answer are chosen, and what the answer must be.

use std::fs::File;
use std::io::Read;

use clap::Args;
use hanzo_engine_proto::v1::{self, constraint::Of};

use crate::error::CliError;

/// Of a schema or a grammar: a daemon takes no larger one.
const CONSTRAINT_BYTES_MAX: u64 = 512 << 10;

/// How tokens are chosen. What is not said is the model's own, or off; the daemon knows what may be.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// 0 is greedy, higher is more varied, up to 2 [default: the model's own]
    #[arg(long, short, value_name = "T", value_parser = temperature)]
    pub(crate) temperature: Option<f32>,
    /// Repeats a varied answer exactly
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Only the K likeliest tokens; 0: all [default: the model's own]
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Only the likeliest tokens that together have this probability [default: the model's own]
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Only tokens with this share of the likeliest one's probability [default: the model's own]
    #[arg(long, value_name = "P")]
    pub(crate) min_p: Option<f32>,
    /// Only tokens about as surprising as is typical, of this probability together
    #[arg(long, value_name = "P")]
    pub(crate) typical_p: Option<f32>,
    /// Only tokens whose logits are at most so many standard deviations below the largest
    #[arg(long, value_name = "N")]
    pub(crate) top_n_sigma: Option<f32>,
    /// How often all tokens above --xtc-threshold but the least likely are left out
    #[arg(long, value_name = "P")]
    pub(crate) xtc_probability: Option<f32>,
    /// Probability that --xtc-probability looks at [default: 0.1]
    #[arg(long, value_name = "P")]
    pub(crate) xtc_threshold: Option<f32>,
    /// How much higher or lower the temperature is where the model is unsure or sure
    #[arg(long, value_name = "T")]
    pub(crate) dynatemp_range: Option<f32>,
    /// Exponent of how unsure it is [default: 1]
    #[arg(long, value_name = "X")]
    pub(crate) dynatemp_exponent: Option<f32>,
    /// 2: aim at a surprise per token (Mirostat 2); 0: off
    #[arg(long, value_name = "VERSION")]
    pub(crate) mirostat: Option<u32>,
    /// That surprise, in bits [default: 5]
    #[arg(long, value_name = "BITS")]
    pub(crate) mirostat_tau: Option<f32>,
    /// How fast it is aimed at [default: 0.1]
    #[arg(long, value_name = "RATE")]
    pub(crate) mirostat_eta: Option<f32>,
    /// Makes tokens that were said less likely; 1: off [default: the model's own]
    #[arg(long, value_name = "X")]
    pub(crate) repetition_penalty: Option<f32>,
    /// Subtracted from a token's logit for each time it was said, -2 to 2
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Subtracted from the logit of a token that was said, -2 to 2
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// How many last tokens the three look at; -1: all, 0: none [default: -1]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) repeat_last_n: Option<i32>,
    /// Strength against repeated runs of tokens (DRY); 0: off
    #[arg(long, value_name = "X")]
    pub(crate) dry_multiplier: Option<f32>,
    /// How much stronger with each token of such a run [default: 1.75]
    #[arg(long, value_name = "X")]
    pub(crate) dry_base: Option<f32>,
    /// Tokens that may be repeated freely [default: 2]
    #[arg(long, value_name = "N")]
    pub(crate) dry_allowed_length: Option<u32>,
    /// How many last tokens it looks at; -1: all [default: -1]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) dry_penalty_last_n: Option<i32>,
}

impl SamplingArgs {
    /// As requests say it.
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

/// What the answer must be; one of them.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "What the answer must be")]
#[group(multiple = false)]
pub(crate) struct ConstraintArgs {
    /// A JSON object
    #[arg(long)]
    pub(crate) json_object: bool,
    /// JSON that a schema allows: the schema itself, or the file it is in
    #[arg(long, value_name = "SCHEMA")]
    pub(crate) json_schema: Option<String>,
    /// What a grammar describes: a file in GBNF, llama.cpp's notation
    #[arg(long, value_name = "FILE")]
    pub(crate) grammar: Option<String>,
    /// What a regular expression matches, all of it
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) regex: Option<String>,
    /// One of these; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) choice: Vec<String>,
}

impl ConstraintArgs {
    /// As requests say it; files are read.
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
