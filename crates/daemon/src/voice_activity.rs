//! Voice activity detection in sounds. Uses Silero VAD if the setting `server.voice_activity` names its weights,
//! otherwise the sound's energy. The weights are read once, at startup.

use std::path::Path;
use std::sync::Arc;

use hanzo_engine_runtime::{LoadError, safetensors};
use hanzo_engine_sound::{Gate, SileroWeights};

use crate::ConfigError;

const KEY: &str = "server.voice_activity";

/// Factory of detectors, one for each sound.
pub(crate) struct VoiceActivity(Option<Arc<SileroWeights>>);

impl VoiceActivity {
    /// Uses the network whose weights are in this file.
    ///
    /// # Errors
    /// [`ConfigError::File`] with the file's problem.
    pub(crate) fn open(file: Option<&Path>) -> Result<VoiceActivity, ConfigError> {
        let Some(file) = file else { return Ok(VoiceActivity(None)) };
        let wrong = |reason: String| ConfigError::File { key: KEY.to_owned(), reason };
        let tensors = safetensors::open(file).map_err(|error: LoadError| wrong(error.to_string()))?;
        let find = |name: &str| {
            let tensor = tensors.iter().find(|tensor| tensor.name == name)?;
            Some((tensor.shape.clone(), tensor.to_f32().ok()?))
        };
        let weights = SileroWeights::new(find).map_err(|reason| {
            let hint = "its makers' silero_vad_16k.safetensors is wanted";
            wrong(format!("{}: {reason}; {hint}", file.display()))
        })?;
        Ok(VoiceActivity(Some(Arc::new(weights))))
    }

    /// Creates the detector for a new sound.
    pub(crate) fn gate(&self) -> Gate {
        self.0.as_ref().map_or_else(Gate::new, Gate::by_network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_such_network_is_refused_by_name() {
        assert!(VoiceActivity::open(None).is_ok());
        let refused = |file: &Path| VoiceActivity::open(Some(file)).err().expect("it is refused").to_string();
        let missing = refused(Path::new("/no/silero.safetensors"));
        assert!(
            missing.starts_with("server.voice_activity: ") && missing.contains("/no/silero"),
            "{missing}"
        );
        let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("../voice/testdata/vits/model.safetensors");
        let other = refused(&other);
        assert!(other.contains("tensor stft_conv.weight is missing; its makers'"), "{other}");
    }
}
