//! Any of the networks with its weights, and the memory that it takes.

use std::sync::Arc;

use hanzo_engine_kernels::HeadShape;
use hanzo_engine_kernels::cpu::{ThreadPool, Tier};
use hanzo_engine_runtime::engine::EngineMemory;
use hanzo_engine_runtime::{LoadError, VoiceFiles, VoiceKind};

use crate::error::SpeakError;
use crate::kokoro::{Kokoro, KokoroConfig};
use crate::limits::ROOM_BYTES;
use crate::nn::{Compute, KernelSplit, matrix_bytes, scratch_bytes};
use crate::noise::Noise;
use crate::script::SpeechPiece;
use crate::vits::{Vits, VitsConfig};
use crate::weights::Weights;

/// Network with its compute device.
pub struct Speaker {
    compute: Compute,
    network: Box<dyn Says>,
}

/// Network that synthesises pieces of text.
pub(crate) trait Says: Send {
    /// Synthesises a piece.
    fn say(
        &self,
        compute: &mut Compute,
        piece: &SpeechPiece,
        speed: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, SpeakError>;
}

impl Says for Kokoro {
    fn say(
        &self,
        compute: &mut Compute,
        piece: &SpeechPiece,
        speed: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, SpeakError> {
        self.speak(compute, &piece.tokens, &piece.style, speed, noise)
    }
}

impl Says for Vits {
    fn say(
        &self,
        compute: &mut Compute,
        piece: &SpeechPiece,
        speed: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, SpeakError> {
        self.speak(compute, &piece.tokens, &piece.style, speed, noise)
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

/// Shapes of the matrices as they will be packed, from the tensors' shapes. The taps of a convolution are side
/// by side.
fn shapes(files: &VoiceFiles) -> Vec<(usize, usize)> {
    with_taps(files, |[_, _, taps]| taps)
}

/// Computes the shapes with the number of taps that `count` returns.
fn with_taps(files: &VoiceFiles, count: impl Fn([usize; 3]) -> usize) -> Vec<(usize, usize)> {
    let shape = |shape: &[usize]| match *shape {
        [rows, cols] => Some((rows, cols)),
        [outer, inner, 1] => Some((outer, inner)),
        [outer, inner, taps] => Some((outer, inner * count([outer, inner, taps]))),
        _ => None,
    };
    files
        .tensors
        .iter()
        .filter_map(|tensor| shape(&tensor.shape))
        .filter(|&(rows, cols)| rows * cols > 1)
        .collect()
}

/// Memory that [`Speaker::load`] takes.
///
/// # Errors
/// [`LoadError`] naming the unsupported setting.
pub fn memory(files: &VoiceFiles, pool: &Arc<ThreadPool>, tier: Tier) -> Result<EngineMemory, LoadError> {
    let heads = heads(files)?;
    let shapes = shapes(files);
    // Convolutions by evaluation points store more numbers.
    let packed = with_taps(files, |sizes| KernelSplit::of(sizes).map_or(sizes[2], KernelSplit::taps));
    let packed: u64 = packed.into_iter().map(|shape| matrix_bytes(pool, tier, shape)).sum();
    // Other tensors stay unpacked, and LSTM weights are also stored transposed.
    let plain: u64 = files.tensors.iter().map(|tensor| 4 * tensor.elements() as u64).sum::<u64>() / 4;
    let voices: u64 = files.voices.iter().map(|(_, voice)| voice.bytes.len() as u64).sum();
    Ok(EngineMemory {
        weights_bytes: packed + plain + voices,
        kv_bytes: 0,
        scratch_bytes: scratch_bytes(pool, tier, &shapes, heads) + ROOM_BYTES,
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
        let mut compute = Compute::new(pool, tier);
        let weights = Weights::new(&files.info.name, &files.tensors);
        let network: Box<dyn Says> = match files.kind {
            VoiceKind::Kokoro => {
                let config = KokoroConfig::read(&files.config_file, &files.config)?;
                Box::new(Kokoro::load(&mut compute, &weights, &config, progress)?)
            }
            VoiceKind::Vits | VoiceKind::Piper => {
                let config = VitsConfig::read(files, &weights)?;
                Box::new(Vits::load(&mut compute, files, &weights, &config, progress)?)
            }
        };
        let width = shapes(files).iter().map(|&(rows, cols)| rows.max(cols)).max().unwrap_or(1);
        compute.reserve(width, heads)?;
        files.tensors.iter().for_each(|tensor| tensor.bytes.release());
        Ok(Speaker { compute, network })
    }

    /// Name of the device for people.
    pub fn device(&self) -> String {
        self.compute.device()
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
        let samples = self.network.say(&mut self.compute, piece, speed, noise)?;
        if samples.iter().any(|sample| !sample.is_finite()) {
            return Err(SpeakError::NotANumber);
        }
        Ok(samples)
    }
}
