//! Any of the networks with its weights, and the memory that it takes.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{ThreadPool, Tier};
use hanzo_engine_ops::HeadShape;
use hanzo_engine_runtime::engine::EngineMemory;
use hanzo_engine_runtime::{LoadError, VoiceFiles, VoiceKind};

use crate::error::SpeakError;
use crate::kokoro::{Kokoro, KokoroConfig};
use crate::limits::ROOM_BYTES;
use crate::nn::{Device, kernel_bytes, matrix_bytes, program_scratch_bytes};
use crate::noise::Noise;
use crate::script::SpeechPiece;
use crate::vits::{Vits, VitsConfig};
use crate::weights::Weights;

/// Network with its device.
pub struct Speaker {
    device: Device,
    network: Box<dyn Says>,
}

/// Network that synthesises pieces of text.
pub(crate) trait Says: Send {
    /// Synthesises a piece.
    fn say(
        &self,
        device: &mut Device,
        piece: &SpeechPiece,
        speed: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, SpeakError>;
}

impl Says for Kokoro {
    fn say(
        &self,
        device: &mut Device,
        piece: &SpeechPiece,
        speed: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, SpeakError> {
        self.speak(device, &piece.tokens, &piece.style, speed, noise)
    }
}

impl Says for Vits {
    fn say(
        &self,
        device: &mut Device,
        piece: &SpeechPiece,
        speed: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, SpeakError> {
        self.speak(device, &piece.tokens, &piece.style, speed, noise)
    }
}

/// Shape of a network's attention heads on the device.
fn heads(files: &VoiceFiles) -> Result<HeadShape, LoadError> {
    match files.kind {
        VoiceKind::Kokoro => Ok(Kokoro::heads(&KokoroConfig::read(&files.config_file, &files.config)?)),
        VoiceKind::Vits | VoiceKind::Piper => {
            VitsConfig::read(files, &Weights::new(&files.info.name, &files.tensors))?;
            Ok(Vits::heads())
        }
    }
}

/// Shape of the weights of matrices and convolutions: outer and inner channels, and taps.
fn sizes(files: &VoiceFiles) -> Vec<[usize; 3]> {
    let size = |shape: &[usize]| match *shape {
        [outer, inner] => Some([outer, inner, 1]),
        [outer, inner, taps] => Some([outer, inner, taps]),
        _ => None,
    };
    let sizes = files.tensors.iter().filter_map(|tensor| size(&tensor.shape));
    sizes.filter(|size| size.iter().product::<usize>() > 1).collect()
}

/// Widest input or output of a network's matrices. Queries, keys and values are one matrix, and so are both directions of an LSTM.
fn program_width(files: &VoiceFiles) -> usize {
    let matrices = sizes(files).into_iter().filter(|&[.., taps]| taps == 1);
    3 * matrices.map(|[outer, inner, _]| outer.max(inner)).max().unwrap_or(1)
}

/// Memory that [`Speaker::load`] takes.
///
/// # Errors
/// [`LoadError`] naming the unsupported setting.
pub fn memory(files: &VoiceFiles, pool: &Arc<ThreadPool>, tier: Tier) -> Result<EngineMemory, LoadError> {
    let scratch = program_scratch_bytes(pool, tier, program_width(files), heads(files)?);
    let packed = sizes(files).into_iter().map(|[outer, inner, taps]| match taps {
        1 => matrix_bytes(pool, tier, [outer, inner]),
        // Some convolutions store more numbers than their kernels have.
        _ => kernel_bytes(pool, tier, [outer, inner, taps]),
    });
    let packed: u64 = packed.sum();
    // Other tensors stay unpacked, and LSTM weights are also stored transposed.
    let plain: u64 = files.tensors.iter().map(|tensor| 4 * tensor.elements() as u64).sum::<u64>() / 4;
    let voices: u64 = files.voices.iter().map(|(_, voice)| voice.bytes.len() as u64).sum();
    Ok(EngineMemory {
        weights_bytes: packed + plain + voices,
        kv_bytes: 0,
        scratch_bytes: scratch + ROOM_BYTES,
    })
}

impl Speaker {
    /// Reads and packs the weights.
    ///
    /// # Errors
    /// [`LoadError`] naming the tensor or the setting.
    pub fn load(
        files: &VoiceFiles,
        pool: Arc<ThreadPool>,
        tier: Tier,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Speaker, LoadError> {
        let heads = heads(files)?;
        let mut device = Device::new(pool, tier);
        let weights = Weights::new(&files.info.name, &files.tensors);
        let network: Box<dyn Says> = match files.kind {
            VoiceKind::Kokoro => {
                let config = KokoroConfig::read(&files.config_file, &files.config)?;
                Box::new(Kokoro::load(&device, &weights, &config, progress)?)
            }
            VoiceKind::Vits | VoiceKind::Piper => {
                let config = VitsConfig::read(files, &weights)?;
                Box::new(Vits::load(&device, files, &weights, &config, progress)?)
            }
        };
        device.reserve(program_width(files), heads)?;
        files.tensors.iter().for_each(|tensor| tensor.bytes.release());
        Ok(Speaker { device, network })
    }

    /// Name of the device for people.
    pub fn device(&self) -> String {
        self.device.name()
    }

    /// Synthesises a piece. Samples are usually between -1 and 1.
    ///
    /// # Errors
    /// [`SpeakError`].
    pub(crate) fn say(
        &mut self,
        piece: &SpeechPiece,
        speed: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, SpeakError> {
        let samples = self.network.say(&mut self.device, piece, speed, noise)?;
        if samples.iter().any(|sample| !sample.is_finite()) {
            return Err(SpeakError::NotANumber);
        }
        Ok(samples)
    }
}
