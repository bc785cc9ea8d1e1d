//! Arguments of `serve`, `run` and `load` that override a model's files, named as in llama.cpp.

use crate::error::CliError;
use crate::paths;
use clap::Args;
use hanzo_engine_daemon::config::OverrideConfig;
use std::path::PathBuf;

/// Overrides of a model's files.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "In place of the model's files")]
pub(crate) struct OverrideArgs {
    /// Chat template, a Jinja file
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Tokenizer: a directory, one of its files such as tokenizer.json, or a GGUF file
    #[arg(long, value_name = "PATH")]
    pub(crate) tokenizer: Option<String>,
    /// Vision projector (mmproj) of a GGUF model, a file, or none for text only; a matching file beside the
    /// model is found automatically
    #[arg(long, value_name = "FILE")]
    pub(crate) mmproj: Option<String>,
    /// Metadata value, of type int, float, bool or str, for a key of GGUF metadata or of config.json;
    /// repeatable
    #[arg(long, value_name = "KEY=TYPE:VALUE")]
    pub(crate) override_kv: Vec<String>,
    /// Scaling of the rotary embedding for a longer context: none, linear or yarn
    #[arg(long, value_name = "HOW")]
    pub(crate) rope_scaling: Option<String>,
    /// Factor by which the context grows
    #[arg(long, value_name = "N")]
    pub(crate) rope_scale: Option<f32>,
    /// Inverse of --rope-scale: 1 / N
    #[arg(long, value_name = "1/N", conflicts_with = "rope_scale")]
    pub(crate) rope_freq_scale: Option<f32>,
    /// Base frequency of the rotary embedding
    #[arg(long, value_name = "BASE")]
    pub(crate) rope_freq_base: Option<f32>,
    /// YaRN: original context length in tokens
    #[arg(long, value_name = "TOKENS")]
    pub(crate) yarn_orig_ctx: Option<u32>,
    /// YaRN: factor on cosine and sine
    #[arg(long, value_name = "FACTOR")]
    pub(crate) yarn_attn_factor: Option<f32>,
    /// YaRN: rotations above which frequencies are unchanged
    #[arg(long, value_name = "TURNS")]
    pub(crate) yarn_beta_fast: Option<f32>,
    /// YaRN: rotations below which frequencies are divided
    #[arg(long, value_name = "TURNS")]
    pub(crate) yarn_beta_slow: Option<f32>,
    /// Quantise matrices while loading: 2, 3, 4, 5, 6 or 8 bits, or a type such as Q4_K, Q8_0, IQ4_XS, MXFP4,
    /// FP8, AFQ4 or HQQ4
    #[arg(long, value_name = "TYPE")]
    pub(crate) isq: Option<String>,
    /// Rules for the types of single layers and tensors, a TOML or YAML file
    #[arg(long, value_name = "FILE")]
    pub(crate) topology: Option<PathBuf>,
    /// Importance matrix from `imatrix` or llama-imatrix: weighs quantisation errors by column, for --isq or
    /// --topology
    #[arg(long, value_name = "FILE")]
    pub(crate) imatrix: Option<String>,
}

impl OverrideArgs {
    /// Builds the configuration; paths become absolute.
    ///
    /// # Errors
    /// The invalid flag, and the reason.
    pub(crate) fn config(&self) -> Result<OverrideConfig, CliError> {
        let scale = match self.rope_freq_scale {
            Some(scale) if scale.is_nan() || scale <= 0.0 => {
                return Err(CliError::Usage(format!("--rope-freq-scale must be above 0, not {scale}")));
            }
            Some(scale) => Some(1.0 / scale),
            None => self.rope_scale,
        };
        let tokenizer = self.tokenizer.as_deref().map(paths::absolute).transpose();
        let tokenizer = tokenizer.map_err(|error| CliError::Usage(format!("--tokenizer: {error}")))?;
        let mmproj = match self.mmproj.as_deref() {
            None | Some("none") => Ok(self.mmproj.clone()),
            Some(path) => paths::absolute(path).map(Some),
        };
        let mmproj = mmproj.map_err(|error| CliError::Usage(format!("--mmproj: {error}")))?;
        let imatrix = self.imatrix.as_deref().map(paths::absolute).transpose();
        let imatrix = imatrix.map_err(|error| CliError::Usage(format!("--imatrix: {error}")))?;
        let config = OverrideConfig {
            chat_template: self.chat_template.clone(),
            tokenizer: tokenizer.map(PathBuf::from),
            mmproj: mmproj.map(PathBuf::from),
            override_kv: self.override_kv.clone(),
            rope_scaling: self.rope_scaling.clone(),
            rope_scale: scale,
            rope_freq_base: self.rope_freq_base,
            yarn_orig_ctx: self.yarn_orig_ctx,
            yarn_attn_factor: self.yarn_attn_factor,
            yarn_beta_fast: self.yarn_beta_fast,
            yarn_beta_slow: self.yarn_beta_slow,
            isq: self.isq.clone(),
            topology: self.topology.clone(),
            imatrix: imatrix.map(PathBuf::from),
        };
        config.check().map_err(|reason| CliError::Usage(flagged(&reason)))?;
        // Report a missing file before anything is loaded.
        config.message().map_err(|reason| CliError::Usage(flagged(&reason)))?;
        Ok(config)
    }
}

/// Replaces a field's name in an error by its flag.
fn flagged(reason: &str) -> String {
    let reason = reason.trim_start_matches("overrides: ").trim_start_matches("overrides.");
    let Some((name, why)) = reason.split_once(": ") else { return reason.to_owned() };
    let name = if name == "kv" { "override_kv" } else { name };
    format!("--{}: {why}", name.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_names_its_flag() {
        let refused = |args: OverrideArgs| match args.config() {
            Err(CliError::Usage(reason)) => reason,
            other => panic!("{other:?}"),
        };
        let plain = OverrideArgs::default();
        for (args, flag) in [
            (
                OverrideArgs { chat_template: Some("/no/such.jinja".into()), ..plain.clone() },
                "--chat-template: /no/such",
            ),
            (OverrideArgs { tokenizer: Some("/no/such".into()), ..plain.clone() }, "--tokenizer: /no/such"),
            (OverrideArgs { mmproj: Some("/no/such.gguf".into()), ..plain.clone() }, "--mmproj: /no/such"),
            (OverrideArgs { override_kv: vec!["x".into()], ..plain.clone() }, "--override-kv: "),
            (OverrideArgs { rope_scaling: Some("ntk".into()), ..plain.clone() }, "--rope-scaling: "),
            (
                OverrideArgs { topology: Some("/no/such.toml".into()), ..plain.clone() },
                "--topology: /no/such",
            ),
            (OverrideArgs { imatrix: Some("/no/such.gguf".into()), ..plain.clone() }, "--imatrix: /no/such"),
            (OverrideArgs { isq: Some("q9".into()), ..plain.clone() }, "--isq: "),
            (OverrideArgs { isq: Some(String::new()), ..plain.clone() }, "--isq: "),
            (OverrideArgs { rope_scale: Some(0.0), ..plain.clone() }, "--rope-scale: "),
            (OverrideArgs { rope_freq_scale: Some(0.0), ..plain.clone() }, "--rope-freq-scale "),
            (OverrideArgs { yarn_beta_fast: Some(-1.0), ..plain.clone() }, "--yarn-beta-fast: "),
        ] {
            let reason = refused(args);
            assert!(reason.starts_with(flag), "{flag}: {reason}");
        }
        let blind = OverrideArgs { mmproj: Some("none".into()), ..plain.clone() };
        assert_eq!(blind.config().unwrap().mmproj, Some("none".into()));
        let halved = OverrideArgs { rope_freq_scale: Some(0.25), ..plain.clone() };
        assert_eq!(halved.config().unwrap().rope_scale, Some(4.0));
        assert!(plain.config().unwrap().is_empty());
    }
}
