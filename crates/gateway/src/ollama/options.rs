//! Ollama's `options`: sampling settings and limits of the answer. Options about how Ollama's runner uses the
//! machine are accepted and ignored, because they do not affect answers, and this engine is configured at its
//! start.

use hanzo_engine_proto::v1;

use super::names;
use crate::{
    app::App,
    asker::Asker,
    config::Config,
    declare::Declared as _,
    error::ApiError,
    fields::{Field, Fields},
    openai::{plan, sampling::SamplingFields},
};

/// Options of Ollama's runner.
const OF_THE_RUNNER: [&str; 14] = [
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "num_gqa",
    "use_mmap",
    "use_mlock",
    "low_vram",
    "numa",
    "f16_kv",
    "logits_all",
    "vocab_only",
    "embedding_only",
    "draft_num_predict",
];

/// Parsed options.
#[derive(Debug, Default)]
pub(super) struct Options {
    pub(super) sampling: v1::Sampling,
    pub(super) stop: v1::StopConditions,
    pub(super) keep_tokens: Option<i32>,
    /// Minimum context length, in tokens.
    pub(super) num_ctx: Option<u32>,
}

/// Reads `options`.
pub(super) fn read(fields: &mut Fields, config: &Config) -> Result<Options, ApiError> {
    let Some(field) = fields.take("options") else { return Ok(Options::default()) };
    let mut own = field.object()?;
    for name in OF_THE_RUNNER {
        if let Some(field) = own.take(name)
            && !(field.value().is_number() || field.value().is_boolean())
        {
            return Err(field.error("expected a number or a boolean"));
        }
    }
    // A negative seed means a random one.
    let seed = own.take("seed").map(|f| f.integer(i64::MIN..=i64::MAX)).transpose()?;
    let neutral = |own: &mut Fields, name: &str, is: fn(Field) -> bool, only: &str| match own.take(name) {
        Some(field) if !is(field) => {
            let problem = format!("not supported by this build; the only value it accepts is {only}");
            Err(ApiError::unsupported(&field.path(), problem))
        }
        _ => Ok(()),
    };
    neutral(&mut own, "tfs_z", |field| field.value().as_f64() == Some(1.0), "1")?;
    neutral(&mut own, "penalize_newline", |field| field.value().as_bool() == Some(true), "true")?;
    let max_tokens = match own.take("num_predict") {
        None => None,
        Some(field) => match field.integer(-2..=i64::from(u32::MAX))? {
            0 => return Err(field.error("must be at least 1, or -1 for no limit, got 0")),
            // The engine limits it to the rest of the context.
            tokens => Some(u32::try_from(tokens).unwrap_or(u32::MAX)),
        },
    };
    let strings = own.take("stop").map(|f| plan::stop_strings(f, config.stop_strings_max)).transpose()?;
    let options = Options {
        sampling: v1::Sampling {
            seed: seed.and_then(|seed| u64::try_from(seed).ok()),
            ..SamplingFields::read(&mut own)?.settings()?
        },
        stop: v1::StopConditions {
            max_tokens,
            strings: strings.unwrap_or_default(),
            ..v1::StopConditions::default()
        },
        keep_tokens: own.take("num_keep").map(|f| f.integer(-1..=i32::MAX)).transpose()?,
        num_ctx: own.take("num_ctx").map(|f| f.integer(1..=u32::MAX)).transpose()?,
    };
    own.finish()?;
    Ok(options)
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
    use crate::fields::fields_of;

    fn check(options: Value) -> Result<Options, String> {
        let body = json!({"options": options});
        read(&mut fields_of(&body, false), &Config::default()).map_err(|error| error.message().to_owned())
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
