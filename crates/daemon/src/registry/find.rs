//! Choice of the loaded model that a request means: by name, or by the wanted capability if it names none.

use std::{collections::BTreeMap, sync::Arc};

use hanzo_engine_runtime::Task;
use hanzo_engine_store::{Match, find_name};

use super::{EntryState, InUse, RegistryEntry};
use crate::{
    error::Error,
    name_key::key,
    served::{ServedModel, task_words},
};

/// Capability that a request without a model name needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capability {
    /// Chat completion.
    Chat,
    /// Text completion.
    Generate,
    /// Embeddings, scores or labels.
    Task(Task),
    /// Transcription.
    Transcribe,
    /// Speech synthesis.
    Speak,
    /// Tokenization, which every model offers.
    Any,
}

impl Capability {
    /// Whether a model has the capability.
    pub(crate) fn of(self, served: &ServedModel) -> bool {
        match self {
            Capability::Chat => served.generates && served.text.template.is_some(),
            Capability::Generate => served.generates,
            Capability::Task(task) => served.embedder.tasks.contains(&task),
            Capability::Transcribe => served.must_transcribe().is_ok(),
            Capability::Speak => served.script.is_some(),
            Capability::Any => true,
        }
    }

    fn words(self) -> String {
        match self {
            Capability::Chat => "can chat".to_owned(),
            Capability::Generate => "can generate text".to_owned(),
            Capability::Task(task) => format!("can {}", task_words(task)),
            Capability::Transcribe => "can transcribe speech".to_owned(),
            Capability::Speak => "can say texts".to_owned(),
            Capability::Any => "are loaded".to_owned(),
        }
    }
}

/// Only model with the capability. Since every decoder can embed, a dedicated embedding model is preferred.
pub(super) fn only_able(
    entries: &BTreeMap<String, RegistryEntry>,
    wanted: Capability,
) -> Result<InUse, Error> {
    let ready = entries.values().filter_map(|entry| match &entry.state {
        EntryState::Ready(served) => Some((entry, served)),
        EntryState::Loading(_) | EntryState::Draining(_) | EntryState::Failed { .. } => None,
    });
    let mut able: Vec<(&RegistryEntry, &Arc<ServedModel>)> =
        ready.filter(|(_, served)| wanted.of(served)).collect();
    let made_for_it: Vec<_> = able.iter().copied().filter(|(_, served)| !served.generates).collect();
    if made_for_it.len() == 1 && matches!(wanted, Capability::Task(_)) {
        able = made_for_it;
    }
    match able[..] {
        [(entry, _)] => entry.in_use(),
        [] if let Some(not_yet) = entries.values().find_map(|entry| entry.not_yet(wanted)) => Err(not_yet),
        _ => Err(Error::Unnamed {
            wanted: wanted.words(),
            able: able.iter().map(|(_, served)| served.name.clone()).collect(),
            loaded: entries.values().map(|entry| entry.name.clone()).collect(),
        }),
    }
}

/// Model that answers to `asked`. An empty name is valid if there is only one model.
pub(super) fn find<'a>(
    entries: &'a BTreeMap<String, RegistryEntry>,
    asked: &str,
) -> Result<&'a RegistryEntry, Error> {
    let names = || entries.values().map(|entry| entry.name.clone()).collect::<Vec<_>>();
    if asked.is_empty() {
        let mut all = entries.values();
        return match (all.next(), all.next()) {
            (Some(entry), None) => Ok(entry),
            _ => Err(Error::Unnamed { wanted: Capability::Any.words(), able: names(), loaded: names() }),
        };
    }
    match find_name(asked, entries.values().map(|entry| entry.name.as_str())) {
        Match::One(name) => entries.get(&key(name)).ok_or_else(|| not_loaded(asked, &names())),
        Match::Ambiguous(candidates) => {
            let candidates = candidates.into_iter().map(str::to_owned).collect();
            Err(Error::Ambiguous { asked: asked.to_owned(), candidates })
        }
        Match::None => Err(not_loaded(asked, &names())),
    }
}

/// Error for a name that no loaded model has.
pub(super) fn not_loaded(asked: &str, loaded: &[String]) -> Error {
    Error::NotLoaded { asked: asked.to_owned(), loaded: loaded.to_vec(), stored: Vec::new() }
}
