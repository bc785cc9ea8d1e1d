//! Ollama's `options`: sampling settings and limits of the answer. Options about how Ollama's runner uses the
//! machine are accepted and ignored, because they do not affect answers, and this engine is configured at its
//! start.

use hanzo_engine_proto::v1;

use super::names;
use crate::{
    app::App,
    asker::Asker,
    config::Config,
    declare::{Integer, Raw, fields},
    error::ApiError,
    fields::Field,
    openai::{plan, sampling::SamplingFields},
    unsupported::{OLLAMA_OPTIONS, OLLAMA_RUNNER},
};

fields! {
    /// Ollama's options: sampling settings, and limits of the answer.
    pub(crate) struct OllamaOptions<'a> inert [&OLLAMA_RUNNER, &OLLAMA_OPTIONS] {
        ..sampling: SamplingFields,
        /// Maximum tokens of the answer; a negative number for no limit.
        num_predict?: i64 = Integer(-2..=i64::from(u32::MAX)),
        /// Texts at which the answer ends.
        stop?: Field<'a> = Raw("string | string[]"),
        /// Number of the first tokens that a context shift keeps.
        num_keep?: i32 = Integer(-1..=i32::MAX),
        /// Minimum context length, in tokens. It is refused where the model's context is shorter.
        num_ctx?: u32 = Integer(1..=u32::MAX),
    }
}

/// Parsed options.
#[derive(Debug, Default)]
pub(super) struct Options {
    pub(super) sampling: v1::Sampling,
    pub(super) stop: v1::StopConditions,
    pub(super) keep_tokens: Option<i32>,
    /// Minimum context length, in tokens.
    pub(super) num_ctx: Option<u32>,
}

impl OllamaOptions<'_> {
    /// Options by the contract's names.
    pub(super) fn options(self, config: &Config) -> Result<Options, ApiError> {
        let max_tokens = match self.num_predict {
            Some(0) => {
                let problem = "must be at least 1, or -1 for no limit, got 0";
                return Err(ApiError::field("options.num_predict", problem));
            }
            // The engine limits it to the rest of the context.
            tokens => tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX)),
        };
        let strings = self.stop.map(|f| plan::stop_strings(f, config.stop_strings_max)).transpose()?;
        // A negative seed means a random one.
        let seed = self.sampling.seed.and_then(|seed| u64::try_from(seed).ok());
        Ok(Options {
            sampling: v1::Sampling { seed, ..self.sampling.settings()? },
            stop: v1::StopConditions {
                max_tokens,
                strings: strings.unwrap_or_default(),
                ..v1::StopConditions::default()
            },
            keep_tokens: self.num_keep,
            num_ctx: self.num_ctx,
        })
    }
}

/// Refuses a context longer than the model's, which was fixed when it was loaded.
pub(super) async fn check_context(
    app: &App,
    asker: &Asker,
    model: &str,
    num_ctx: Option<u32>,
) -> Result<(), ApiError> {
    let Some(asked) = num_ctx else { return Ok(()) };
    let has = match names::loaded(app, asker, model).await? {
        Some(status) => status.context_tokens_max,
        None => {
            let shown = app.engine(asker).show(model.to_owned()).await?;
            let loaded = shown.status.map(|status| status.context_tokens_max).filter(|tokens| *tokens > 0);
            loaded.unwrap_or(shown.context_tokens_max)
        }
    };
    if asked > has && has > 0 {
        let problem = format!(
            "{asked} is over the context of {model}, which is {has} tokens; ask for less, or load it with more (POST /v1/models/load, context_tokens_max)"
        );
        return Err(ApiError::field("options.num_ctx", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{declare::Natural as _, fields::fields_of};

    fn check(options: Value) -> Result<Options, String> {
        let body = json!({"options": options});
        let options = OllamaOptions::of(fields_of(&body, false).take("options").unwrap());
        options
            .and_then(|options| options.options(&Config::default()))
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn options_are_the_contracts_fields() {
        let read = check(json!({
            "temperature": 0.5, "top_k": 9, "top_p": 0.25, "min_p": 0.125, "typical_p": 0.75, "seed": 42, "num_predict": 7,
            "repeat_penalty": 1.5, "repeat_last_n": -1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "mirostat": 2,
            "mirostat_tau": 4.0, "mirostat_eta": 0.5, "stop": ["a", "b"], "num_keep": 24, "num_ctx": 512, "tfs_z": 1.0,
            "penalize_newline": true, "num_gpu": -1, "num_thread": 8, "use_mmap": false, "num_batch": 512,
        }));
        let read = read.unwrap();
        let drawn = &read.sampling;
        assert_eq!((drawn.temperature, drawn.top_k, drawn.top_p), (Some(0.5), Some(9), Some(0.25)));
        assert_eq!((drawn.min_p, drawn.typical_p, drawn.seed), (Some(0.125), Some(0.75), Some(42)));
        assert_eq!((drawn.repetition_penalty, drawn.repeat_last_n), (Some(1.5), Some(-1)));
        assert_eq!((drawn.presence_penalty, drawn.frequency_penalty), (Some(0.5), Some(-0.5)));
        assert_eq!((drawn.mirostat, drawn.mirostat_tau, drawn.mirostat_eta), (Some(2), Some(4.0), Some(0.5)));
        assert_eq!(
            (read.stop.max_tokens, read.stop.strings),
            (Some(7), vec!["a".to_owned(), "b".to_owned()])
        );
        assert_eq!((read.keep_tokens, read.num_ctx), (Some(24), Some(512)));
        let endless = check(json!({"num_predict": -1, "seed": -1, "stop": null, "stop": []})).unwrap();
        assert_eq!((endless.stop.max_tokens, endless.sampling.seed), (Some(u32::MAX), None));
        assert_eq!(check(json!({"repeat_penalty": 1.1})).unwrap().sampling.repeat_last_n, Some(64));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_its_name() {
        for (options, start) in [
            (json!({"mirostat": 1}), "mirostat: version 1 is not supported"),
            (json!({"tfs_z": 0.5}), "options.tfs_z: not supported"),
            (json!({"penalize_newline": false}), "options.penalize_newline: not supported"),
            (json!({"num_predict": 0}), "options.num_predict: must be at least 1"),
            (json!({"temperature": 3}), "options.temperature: must be at least 0"),
            (json!({"num_ctx": 0}), "options.num_ctx: expected an integer"),
            (json!({"num_gpu": "all"}), "options.num_gpu: expected a number"),
            (json!({"temprature": 1}), "options.temprature: unknown field"),
            (json!([]), "options: expected an object"),
        ] {
            let error = check(options.clone()).unwrap_err();
            assert!(error.starts_with(start), "{options}: {error}");
        }
    }
}
