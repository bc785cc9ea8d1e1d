//! Draft model of another model: found, opened, and refused if it does not qualify.

use hanzo_engine_runtime::{LoadError, ModelFiles, Network, OpenedModel, Speculation};
use hanzo_engine_store::Store;

use crate::{
    config::EngineSection,
    error::Error,
    source::{ModelSource, resolve},
};

/// Opened draft model.
pub(crate) struct Draft(OpenedModel);

/// Resolves the source of a draft model.
///
/// # Errors
/// [`Error::Field`] if speculative decoding is off; errors of [`resolve`].
pub(crate) fn find(
    asked: &str,
    section: &EngineSection,
    store: Option<&Store>,
) -> Result<ModelSource, Error> {
    if section.speculation == Speculation::Off {
        let reason = "nothing is drafted where engine.speculation is off; set it to ngram";
        return Err(Error::field("draft_model", reason));
    }
    Ok(resolve(asked, store)?.source)
}

impl Draft {
    /// Opens the draft model of another model.
    ///
    /// # Errors
    /// Errors of opening it, and [`LoadError::Unsupported`] if one of the two is not a decoder.
    pub(crate) fn open(source: &ModelSource, of: &OpenedModel) -> Result<Draft, LoadError> {
        let refuse = |opened: &OpenedModel, reason: &str| {
            let (file, value) = (of.info().name.clone(), opened.info().name.clone());
            Err(LoadError::Unsupported {
                file,
                key: "draft_model".to_owned(),
                value,
                reason: reason.to_owned(),
            })
        };
        let draft = source.open()?;
        match (&of.network, &draft.network) {
            (Network::Decoder(own), Network::Decoder(other))
                if own.spec.keeps_states() || other.spec.keeps_states() =>
            {
                let reason = "a layer's state cannot be taken back where a drafted token is not drawn; load without draft_model";
                refuse(&draft, reason)
            }
            (Network::Decoder(_), Network::Decoder(_)) => Ok(Draft(draft)),
            (Network::Whisper(_), _) | (_, Network::Whisper(_)) => {
                refuse(&draft, "what writes down speech drafts nothing, and nothing drafts for it")
            }
            (Network::Encoder(_), _) => refuse(&draft, "an encoder generates nothing that could be drafted"),
            (Network::Voice(_), _) | (_, Network::Voice(_)) => {
                refuse(&draft, "a model that speaks generates nothing that could be drafted")
            }
            (_, Network::Encoder(_)) => refuse(&draft, "an encoder generates nothing, and cannot draft"),
        }
    }

    /// Files of the draft model.
    pub(crate) fn files(&self) -> &ModelFiles {
        self.0.decoder().expect("no other is opened as a draft model")
    }
}
