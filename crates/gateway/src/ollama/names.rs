//! Model names of Ollama's clients. Without a tag, a name means the tag `latest`.

use hanzo_engine_proto::v1::{ModelState, ModelStatus};
use tonic::Status;

use crate::{
    app::App,
    asker::Asker,
    declare::{Raw, fields},
    error::ApiError,
    fields::Field,
    limits::MODEL_NAME_BYTES_MAX,
};

const LATEST: &str = ":latest";

fields! {
    /// Name of the model that an Ollama request is about.
    pub(crate) struct OllamaName<'a> {
        /// Name of the model. Without a tag it means latest.
        model?: Field<'a> = Raw("string 1..512"),
        /// Older name of model.
        name?: Field<'a> = Raw("string"),
    }
}

impl OllamaName<'_> {
    /// The name. An empty one counts as absent.
    pub(super) fn get(&self) -> Result<String, ApiError> {
        let given = |field: &Field<'_>| field.value().as_str().as_deref() != Some("");
        let Some(field) = self.model.filter(given).or(self.name.filter(given)) else {
            return Err(ApiError::body("model is required"));
        };
        let name = field.string()?;
        match name.len() > MODEL_NAME_BYTES_MAX {
            true => Err(field.error(format!("is over {MODEL_NAME_BYTES_MAX} bytes long"))),
            false => Ok(name),
        }
    }
}

/// Name under which a model is listed, with a tag.
pub(super) fn listed(name: &str) -> String {
    match name.rsplit('/').next().is_some_and(|model| model.contains(':')) {
        true => name.to_owned(),
        false => format!("{name}{LATEST}"),
    }
}

/// Name to give to a model, without the tag `latest`.
pub(super) fn given(name: &str) -> &str {
    name.strip_suffix(LATEST).unwrap_or(name)
}

/// Whether `asked` means the model `full`; case and owner are ignored.
fn is(full: &str, asked: &str) -> bool {
    let model = full.split_once('/').map_or(full, |(_, model)| model);
    full.eq_ignore_ascii_case(asked) || model.eq_ignore_ascii_case(asked)
}

/// Engine's name of a model. A name tagged `latest` may be known with or without the tag.
pub(super) async fn known(app: &App, asker: &Asker, name: String) -> Result<String, Status> {
    let Some(bare) = name.strip_suffix(LATEST).filter(|bare| !bare.is_empty()) else { return Ok(name) };
    let mut engine = app.engine(asker);
    let stats = engine.stats().await?;
    let mut loaded: Vec<String> =
        stats.models.into_iter().filter_map(|model| Some(model.status?.name)).collect();
    if loaded.iter().any(|full| is(full, bare)) && !loaded.iter().any(|full| is(full, &name)) {
        return Ok(bare.to_owned());
    }
    loaded.extend(engine.list().await?.models.into_iter().map(|model| model.name));
    Ok(if loaded.iter().any(|full| is(full, &name)) { name } else { bare.to_owned() })
}

/// Loaded model of that name.
pub(super) async fn loaded(app: &App, asker: &Asker, name: &str) -> Result<Option<ModelStatus>, Status> {
    let stats = app.engine(asker).stats().await?;
    let named = |full: &str| is(full, name) || is(given(full), name);
    let ready = |status: &ModelStatus| status.state() == ModelState::Ready && named(&status.name);
    Ok(stats.models.into_iter().filter_map(|model| model.status).find(ready))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_tag_is_the_latest() {
        for (name, shown) in [
            ("hanzo-demo", "hanzo-demo:latest"),
            ("qwen/qwen3-4b", "qwen/qwen3-4b:latest"),
            ("qwen/qwen3-4b:Q4_K_M", "qwen/qwen3-4b:Q4_K_M"),
            ("small:latest", "small:latest"),
        ] {
            assert_eq!(listed(name), shown);
        }
        assert!(is("Qwen/Qwen3-4B", "qwen3-4b") && is("a", "A") && !is("a/b", "a"));
    }
}
