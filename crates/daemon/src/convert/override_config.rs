//! Checks and messages of [`OverrideConfig`], the overrides of a model's files from its configuration or from flags.

use std::fs;

use hanzo_engine_proto::v1;

use crate::{
    config::OverrideConfig,
    convert::{overrides::overrides, topology},
    error::Error,
};

impl OverrideConfig {
    /// Checks whether no override is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that every value is in its range; no file is read.
    ///
    /// # Errors
    /// A message with the first invalid value and the reason.
    pub fn check(&self) -> Result<(), String> {
        let numbers = [
            ("rope_scale", self.rope_scale),
            ("rope_freq_base", self.rope_freq_base),
            ("yarn_attn_factor", self.yarn_attn_factor),
            ("yarn_beta_fast", self.yarn_beta_fast),
            ("yarn_beta_slow", self.yarn_beta_slow),
        ];
        // 0 means unset on the wire; in a configuration it is a mistake.
        if let Some((name, _)) = numbers.into_iter().find(|(_, number)| *number == Some(0.0)) {
            return Err(format!("overrides: {name}: must be a number above 0"));
        }
        if self.yarn_orig_ctx == Some(0) {
            return Err("overrides: yarn_orig_ctx: must be at least 1".to_owned());
        }
        if self.mmproj.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            return Err("overrides: mmproj: must be a file or none".to_owned());
        }
        if self.isq.as_deref() == Some("") {
            return Err("overrides: isq: must be bits or the name of a type".to_owned());
        }
        match overrides(self.wire(String::new(), Vec::new())) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Builds the wire message; reads the template's file.
    ///
    /// # Errors
    /// A message about the file that cannot be read.
    pub fn message(&self) -> Result<Option<v1::Overrides>, String> {
        if self.is_empty() {
            return Ok(None);
        }
        let template = match &self.chat_template {
            None => String::new(),
            Some(path) => {
                let text = fs::read_to_string(path);
                let text = text.map_err(|error| format!("chat_template: {}: {error}", path.display()))?;
                if text.trim().is_empty() {
                    return Err(format!("chat_template: {}: the file is empty", path.display()));
                }
                text
            }
        };
        let rules = self.topology.as_deref().map_or(Ok(Vec::new()), topology::read)?;
        let message = self.wire(template, rules);
        // This also checks the file's rules.
        overrides(message.clone()).map_err(|error| error.to_string())?;
        Ok(Some(message))
    }

    fn wire(&self, chat_template: String, topology: Vec<v1::TopologyRule>) -> v1::Overrides {
        v1::Overrides {
            chat_template,
            tokenizer: self.tokenizer.as_ref().map_or_else(String::new, |path| path.display().to_string()),
            kv: self.override_kv.clone(),
            rope_scaling: self.rope_scaling.clone().unwrap_or_default(),
            rope_scale: self.rope_scale.unwrap_or(0.0),
            rope_freq_base: self.rope_freq_base.unwrap_or(0.0),
            yarn_orig_ctx: self.yarn_orig_ctx.unwrap_or(0),
            yarn_attn_factor: self.yarn_attn_factor.unwrap_or(0.0),
            yarn_beta_fast: self.yarn_beta_fast.unwrap_or(0.0),
            yarn_beta_slow: self.yarn_beta_slow.unwrap_or(0.0),
            isq: self.isq.clone().unwrap_or_default(),
            topology,
            imatrix: self.imatrix.as_ref().map_or_else(String::new, |path| path.display().to_string()),
            mmproj: self.mmproj.as_ref().map_or_else(String::new, |path| path.display().to_string()),
        }
    }

    /// Reads the overrides for the engine.
    ///
    /// # Errors
    /// [`Error::Field`], also for a file that cannot be read.
    pub(crate) fn read(&self) -> Result<hanzo_engine_runtime::Overrides, Error> {
        let message = self.message().map_err(|reason| Error::field("overrides", reason))?;
        overrides(message.unwrap_or_default())
    }
}
