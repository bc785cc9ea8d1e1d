//! Arguments of `serve`, `run` and `load` that override a model's files, named as in llama.cpp.

use crate::error::CliError;
use crate::paths;
use clap::Args;
use hanzo_engine_daemon::config::OverrideConfig;
use hanzo_engine_process::settings::{FlagLayer, ModelCommand, value};
use serde_json::json;

/// Overrides of a model's files.
#[derive(Debug, Args)]
#[command(next_help_heading = "In place of the model's files")]
pub(crate) struct OverrideArgs {
    /// Inverse of --rope-scale: 1 / N
    #[arg(long, value_name = "1/N", conflicts_with = "rope_scale")]
    rope_freq_scale: Option<f32>,
    #[command(flatten)]
    settings: FlagLayer<OverrideConfig, ModelCommand>,
}

impl OverrideArgs {
    /// Builds the configuration; paths become absolute.
    ///
    /// # Errors
    /// The invalid flag, and the reason.
    pub(crate) fn config(&self) -> Result<OverrideConfig, CliError> {
        let values = value("models.overrides", &json!(self.settings.values)).cloned();
        let values = values.unwrap_or_else(|| json!({}));
        let numbers =
            ["rope_scale", "rope_freq_base", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"];
        // A number that is not finite is a text here.
        let text = numbers.into_iter().find_map(|name| Some((name, values.get(name)?.as_str()?)));
        if let Some((name, number)) = text {
            return Err(CliError::Usage(flagged(&format!("{name}: must be a number above 0, not {number}"))));
        }
        let config = serde_json::from_value(values);
        let mut config: OverrideConfig = config.map_err(|error| CliError::Usage(error.to_string()))?;
        match self.rope_freq_scale {
            Some(scale) if scale.is_nan() || scale <= 0.0 => {
                return Err(CliError::Usage(format!("--rope-freq-scale must be above 0, not {scale}")));
            }
            Some(scale) => config.rope_scale = Some(1.0 / scale),
            None => {}
        }
        let paths = [&mut config.tokenizer, &mut config.mmproj, &mut config.imatrix];
        for (flag, path) in ["--tokenizer", "--mmproj", "--imatrix"].into_iter().zip(paths) {
            let Some(path) = path.as_mut().filter(|path| flag != "--mmproj" || path.as_os_str() != "none")
            else {
                continue;
            };
            let absolute = paths::absolute(&path.to_string_lossy());
            *path = absolute.map_err(|error| CliError::Usage(format!("{flag}: {error}")))?.into();
        }
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
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        overrides: OverrideArgs,
    }

    fn config(given: &[&str]) -> Result<OverrideConfig, CliError> {
        Line::parse_from(["line"].iter().chain(given)).overrides.config()
    }

    #[test]
    fn what_cannot_be_names_its_flag() {
        for (given, flag) in [
            (["--chat-template", "/no/such.jinja"], "--chat-template: /no/such"),
            (["--tokenizer", "/no/such"], "--tokenizer: /no/such"),
            (["--mmproj", "/no/such.gguf"], "--mmproj: /no/such"),
            (["--override-kv", "x"], "--override-kv: "),
            (["--rope-scaling", "ntk"], "--rope-scaling: "),
            (["--topology", "/no/such.toml"], "--topology: /no/such"),
            (["--imatrix", "/no/such.gguf"], "--imatrix: /no/such"),
            (["--isq", "q9"], "--isq: "),
            (["--isq", ""], "--isq: "),
            (["--rope-scale", "0"], "--rope-scale: "),
            (["--rope-scale", "nan"], "--rope-scale: must be a number above 0, not NaN"),
            (["--rope-freq-scale", "0"], "--rope-freq-scale "),
            (["--yarn-beta-fast=-1", "--rope-scale=2"], "--yarn-beta-fast: "),
        ] {
            let reason = match config(&given) {
                Err(CliError::Usage(reason)) => reason,
                other => panic!("{other:?}"),
            };
            assert!(reason.starts_with(flag), "{flag}: {reason}");
        }
        assert_eq!(config(&["--mmproj", "none"]).unwrap().mmproj, Some("none".into()));
        assert_eq!(config(&["--rope-freq-scale", "0.25"]).unwrap().rope_scale, Some(4.0));
        assert!(config(&[]).unwrap().is_empty());
    }
}
