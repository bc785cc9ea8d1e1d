//! Reasoning settings in all client formats: OpenAI's `reasoning_effort`, OpenRouter's `reasoning`, DeepSeek's
//! `thinking`, and the budgets of vLLM, Qwen's API and llama.cpp.

use hanzo_engine_proto::v1;

use crate::{
    declare::{Integer, Words, fields},
    error::ApiError,
    unsupported::REASONING,
};

/// Words for how long a model reasons.
pub(crate) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Tokens of a budget; -1 means no bound.
pub(crate) const BUDGET: Integer<i64> = Integer(-1..=u32::MAX as i64);

fields! {
    /// Settings of a model's reasoning, apart from OpenRouter's object.
    #[derive(Default)]
    pub(crate) struct ThinkingFields {
        /// Effort of reasoning.
        reasoning_effort?: &'static str = Words(EFFORTS),
        /// Whether the model reasons.
        enable_thinking?: bool,
        /// Setting of DeepSeek and Anthropic.
        thinking?: ThinkingSetting,
        /// Maximum tokens of reasoning; -1 for no limit.
        thinking_token_budget?: i64 = BUDGET,
        /// Qwen's name of thinking_token_budget.
        thinking_budget?: i64 = BUDGET,
        /// llama.cpp's name of thinking_token_budget.
        thinking_budget_tokens?: i64 = BUDGET,
        /// Second name of thinking_token_budget at llama.cpp.
        reasoning_budget?: i64 = BUDGET,
        /// Second name of thinking_token_budget at llama.cpp.
        reasoning_budget_tokens?: i64 = BUDGET,
    }
}

fields! {
    /// All settings of a model's reasoning.
    pub(crate) struct ReasoningFields {
        ..thinking: ThinkingFields,
        /// OpenRouter's setting.
        reasoning?: ReasoningSetting,
    }
}

fields! {
    /// Setting of DeepSeek and Anthropic.
    #[derive(Default)]
    pub(crate) struct ThinkingSetting {
        /// Whether the model reasons.
        r#type?: &'static str = Words(["enabled", "disabled", "auto", "adaptive"]),
        /// Maximum tokens of reasoning; -1 for no limit.
        budget_tokens?: i64 = BUDGET,
    }
}

fields! {
    /// OpenRouter's setting.
    pub(crate) struct ReasoningSetting inert [&REASONING] {
        /// Effort of reasoning.
        effort?: &'static str = Words(EFFORTS),
        /// Maximum tokens of reasoning; -1 for no limit.
        max_tokens?: i64 = BUDGET,
        /// Whether the model reasons.
        enabled?: bool,
    }
}

impl ReasoningFields {
    /// All settings in one. Contradictory ones are refused.
    pub(crate) fn settings(self) -> Result<ReasoningSettings, ApiError> {
        let mut settings = self.thinking.settings()?;
        if let Some(own) = self.reasoning {
            own.effort.map_or(Ok(()), |effort| settings.set_effort("reasoning.effort", effort))?;
            own.max_tokens.map_or(Ok(()), |tokens| settings.bound("reasoning.max_tokens", tokens))?;
            own.enabled.map_or(Ok(()), |enabled| settings.enable("reasoning.enabled", enabled))?;
        }
        Ok(settings)
    }
}

impl ThinkingFields {
    /// These settings in one. Contradictory ones are refused.
    pub(crate) fn settings(self) -> Result<ReasoningSettings, ApiError> {
        let mut settings = ReasoningSettings::default();
        self.reasoning_effort.map_or(Ok(()), |effort| settings.set_effort("reasoning_effort", effort))?;
        self.enable_thinking.map_or(Ok(()), |enabled| settings.enable("enable_thinking", enabled))?;
        if let Some(own) = self.thinking {
            match own.r#type {
                None | Some("auto") => {}
                Some(word) => settings.enable("thinking.type", word != "disabled")?,
            }
            own.budget_tokens.map_or(Ok(()), |tokens| settings.bound("thinking.budget_tokens", tokens))?;
        }
        for (name, tokens) in [
            ("thinking_token_budget", self.thinking_token_budget),
            ("thinking_budget", self.thinking_budget),
            ("thinking_budget_tokens", self.thinking_budget_tokens),
            ("reasoning_budget", self.reasoning_budget),
            ("reasoning_budget_tokens", self.reasoning_budget_tokens),
        ] {
            tokens.map_or(Ok(()), |tokens| settings.bound(name, tokens))?;
        }
        Ok(settings)
    }
}

/// Reasoning settings of a request.
#[derive(Debug, Default)]
pub(crate) struct ReasoningSettings {
    enabled: Option<bool>,
    effort: Option<&'static str>,
    tokens_max: Option<i64>, // -1: no bound
}

impl ReasoningSettings {
    /// Template variables, with their values in JSON.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let effort = self.effort.filter(|effort| *effort != "none");
        // With a budget of no tokens, reasoning is off.
        let enabled = self.enabled.or((self.tokens_max == Some(0)).then_some(false));
        let enabled = enabled.map(|enabled| ("enable_thinking", enabled.to_string()));
        enabled.into_iter().chain(effort.map(|effort| ("reasoning_effort", format!("\"{effort}\""))))
    }

    /// Token budget of the request.
    pub(crate) fn bounds(&self) -> Option<v1::Reasoning> {
        let tokens_max = self.tokens_max.and_then(|tokens| u32::try_from(tokens).ok())?;
        Some(v1::Reasoning { tokens_max: Some(tokens_max) })
    }

    /// Sets the reasoning effort that the field at `path` says.
    pub(crate) fn set_effort(&mut self, path: &str, effort: &'static str) -> Result<(), ApiError> {
        if self.effort.is_some_and(|other| other != effort) {
            return Err(ApiError::field(path, "says another effort than reasoning_effort"));
        }
        self.effort = Some(effort);
        self.enable(path, effort != "none")
    }

    /// Turns reasoning on or off, as the field at `path` says.
    pub(crate) fn enable(&mut self, path: &str, enabled: bool) -> Result<(), ApiError> {
        if self.enabled.is_some_and(|other| other != enabled) {
            let problem = "contradicts another field, which says whether the model is to reason";
            return Err(ApiError::field(path, problem));
        }
        self.enabled = Some(enabled);
        Ok(())
    }

    /// Sets the token budget that the field at `path` says.
    pub(crate) fn bound(&mut self, path: &str, tokens: i64) -> Result<(), ApiError> {
        if self.tokens_max.is_some_and(|other| other != tokens) {
            let problem = "contradicts another field, which says how long the model may reason";
            return Err(ApiError::field(path, problem));
        }
        self.tokens_max = Some(tokens);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{declare::Declaration as _, fields::fields_of};

    const BUDGETS: [&str; 5] = [
        "thinking_token_budget",
        "thinking_budget",
        "thinking_budget_tokens",
        "reasoning_budget",
        "reasoning_budget_tokens",
    ];

    fn read(body: Value) -> Result<(Value, Option<u32>), String> {
        let mut fields = fields_of(&body, false);
        let read = ReasoningFields::read(&mut fields).and_then(|read| fields.finish().map(|()| read));
        let thinking = read
            .and_then(ReasoningFields::settings)
            .map_err(|error| error.json()["error"]["param"].as_str().unwrap().to_owned())?;
        let value = |(name, json): (&str, String)| (name.to_owned(), serde_json::from_str(&json).unwrap());
        let bound = thinking.bounds().and_then(|bounds| bounds.tokens_max);
        Ok((Value::Object(thinking.variables().map(value).collect()), bound))
    }

    #[test]
    fn everyones_words_are_understood() {
        let (on, off) = (json!({"enable_thinking": true}), json!({"enable_thinking": false}));
        let low = json!({"enable_thinking": true, "reasoning_effort": "low"});
        for (body, variables, bound) in [
            (json!({}), json!({}), None),
            (json!({"reasoning_effort": "none"}), off.clone(), None),
            (json!({"reasoning_effort": "low"}), low.clone(), None),
            (json!({"reasoning": {"effort": "low", "max_tokens": 9, "exclude": false}}), low, Some(9)),
            (json!({"reasoning": {"enabled": true}}), on.clone(), None),
            (json!({"reasoning": {}, "thinking": {}}), json!({}), None),
            (json!({"enable_thinking": false}), off.clone(), None),
            (json!({"thinking": {"type": "disabled"}}), off, None),
            (json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}), on, Some(1024)),
            (json!({"thinking": {"type": "auto"}}), json!({}), None),
            (json!({"thinking_budget": -1}), json!({}), None),
            (
                json!({"thinking_budget": 0, "reasoning_budget": 0}),
                json!({"enable_thinking": false}),
                Some(0),
            ),
        ] {
            assert_eq!(read(body.clone()), Ok((variables, bound)), "{body}");
        }
        for name in BUDGETS {
            assert_eq!(read(json!({name: 77})), Ok((json!({}), Some(77))));
            assert_eq!(read(json!({name: -2})), Err(name.to_owned()));
        }
        for (body, param) in [
            (json!({"reasoning": {"effort": "odd"}}), "reasoning.effort"),
            (json!({"reasoning": {"exclude": true}}), "reasoning.exclude"),
            (json!({"reasoning": {"other": 1}}), "reasoning.other"),
            (json!({"reasoning": "low"}), "reasoning"),
            (json!({"reasoning_effort": "low", "reasoning": {"effort": "high"}}), "reasoning.effort"),
            (json!({"reasoning_effort": "none", "enable_thinking": true}), "enable_thinking"),
            (json!({"thinking_budget": 1, "thinking_token_budget": 2}), "thinking_budget"),
            (json!({"thinking": {"type": "deep"}}), "thinking.type"),
        ] {
            assert_eq!(read(body.clone()), Err(param.to_owned()), "{body}");
        }
    }
}
