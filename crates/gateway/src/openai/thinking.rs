//! Reasoning settings in all client formats: OpenAI's `reasoning_effort`, OpenRouter's `reasoning`, DeepSeek's
//! `thinking`, and the budgets of vLLM, Qwen's API and llama.cpp.

use hanzo_engine_proto::v1;

use crate::{
    error::ApiError,
    fields::{Field, Fields},
};

const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Names of a budget in tokens; -1 means none.
const BUDGETS: [&str; 5] = [
    "thinking_token_budget",
    "thinking_budget",
    "thinking_budget_tokens",
    "reasoning_budget",
    "reasoning_budget_tokens",
];

/// Reasoning settings of a request.
#[derive(Debug, Default)]
pub(crate) struct ReasoningSettings {
    enabled: Option<bool>,
    effort: Option<&'static str>,
    tokens_max: Option<i64>, // -1: no bound
}

impl ReasoningSettings {
    /// Reads all reasoning fields. Contradictory ones are refused.
    pub(crate) fn read(fields: &mut Fields) -> Result<ReasoningSettings, ApiError> {
        let mut thinking = ReasoningSettings::default();
        if let Some(field) = fields.take("reasoning_effort") {
            thinking.set_effort(field)?;
        }
        if let Some(field) = fields.take("enable_thinking") {
            thinking.enable(field, field.boolean()?)?;
        }
        if let Some(field) = fields.take("thinking") {
            thinking.object(field.object()?)?;
        }
        if let Some(field) = fields.take("reasoning") {
            let mut own = field.object()?;
            own.take("effort").map_or(Ok(()), |field| thinking.set_effort(field))?;
            own.take("max_tokens").map_or(Ok(()), |field| thinking.bound(field))?;
            if let Some(field) = own.take("enabled") {
                thinking.enable(field, field.boolean()?)?;
            }
            if own.flag("exclude")? {
                let problem = "not supported by this build; the only value it accepts is false";
                return Err(ApiError::unsupported("reasoning.exclude", problem));
            }
            // OpenAI's setting for reasoning summaries.
            own.take("summary").map_or(Ok(""), |field| field.word(&["auto"]))?;
            own.finish()?;
        }
        for name in BUDGETS {
            fields.take(name).map_or(Ok(()), |field| thinking.bound(field))?;
        }
        Ok(thinking)
    }

    /// Reads Anthropic's and DeepSeek's object.
    fn object(&mut self, mut own: Fields) -> Result<(), ApiError> {
        if let Some(field) = own.take("type") {
            match field.word(&["enabled", "disabled", "auto", "adaptive"])? {
                "auto" => {}
                word => self.enable(field, word != "disabled")?,
            }
        }
        own.take("budget_tokens").map_or(Ok(()), |field| self.bound(field))?;
        own.finish()
    }

    /// Reads that object alone.
    pub(crate) fn of_object(own: Fields) -> Result<ReasoningSettings, ApiError> {
        let mut thinking = ReasoningSettings::default();
        thinking.object(own)?;
        Ok(thinking)
    }

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

    /// Sets the reasoning effort.
    pub(crate) fn set_effort(&mut self, field: Field) -> Result<(), ApiError> {
        let effort = field.word(&EFFORTS)?;
        if self.effort.is_some_and(|other| other != effort) {
            return Err(field.error("says another effort than reasoning_effort"));
        }
        self.effort = Some(effort);
        self.enable(field, effort != "none")
    }

    /// Turns reasoning on or off.
    pub(crate) fn enable(&mut self, field: Field, enabled: bool) -> Result<(), ApiError> {
        if self.enabled.is_some_and(|other| other != enabled) {
            return Err(field.error("contradicts another field, which says whether the model is to reason"));
        }
        self.enabled = Some(enabled);
        Ok(())
    }

    /// Sets the token budget.
    pub(crate) fn bound(&mut self, field: Field) -> Result<(), ApiError> {
        let tokens = field.integer(-1..=i64::from(u32::MAX))?;
        if self.tokens_max.is_some_and(|other| other != tokens) {
            return Err(field.error("contradicts another field, which says how long the model may reason"));
        }
        self.tokens_max = Some(tokens);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fields::fields_of;

    fn read(body: Value) -> Result<(Value, Option<u32>), String> {
        let mut fields = fields_of(&body, false);
        let read =
            ReasoningSettings::read(&mut fields).and_then(|thinking| fields.finish().map(|()| thinking));
        let thinking = read.map_err(|error| error.json()["error"]["param"].as_str().unwrap().to_owned())?;
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
