//! Convolutions in front of a tower's layers, computed as matrix products of unfolded inputs: Whisper's two
//! convolutions over the frames of a window, or Qwen3-ASR's three over the bands and frames of each second.

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{Activation, AnyBackend, BufferId, BufferRole, KernelError, Op};

use super::AudioSpec;
use super::files::{Affine, StemFiles};
use super::spec::Planes;
use crate::error::LoadError;
use crate::mel::unfold;
use crate::network::ProgramBuilder;
use crate::vision::{batch_of, pack};

const GELU: Activation = Activation::GeluErf;
/// Maximum number of output positions that one step computes for a chunk.
pub(super) const PLACES_MAX: usize = 416;

/// Convolutions on a backend.
pub(super) struct Stem {
    weights: StemWeights,
    buffers: StemBuffers,
    program: StemProgram,
}

/// Weights of the convolutions.
enum StemWeights {
    /// Two convolutions over frames.
    Frames {
        first: Linear,  // (hidden, 3 * mels)
        second: Linear, // (hidden, 3 * hidden)
    },
    /// Three convolutions over bands and frames.
    Planes {
        convolutions: [Linear; 3], // (channels, 9), (channels, 9 * channels) twice
        out: ops::Matrix,          // (hidden, channels * bands)
    },
}

/// Ops of the convolutions.
#[derive(Default)]
struct StemProgram {
    convolutions: Vec<Vec<Op>>, // from `narrow`, those after the first from `wide`, to `given`
    last: Vec<Op>,              // from `wide` or `rows` to the layers' input
}

/// Weight matrix with its bias.
struct Linear {
    weight: ops::Matrix,
    bias: ops::Vector,
}

/// Buffers: the unfolded input of the first convolution, the unfolded input of the others, a convolution's output,
/// and the input of the projection to rows.
struct StemBuffers {
    narrow: ops::Buffer,       // (places, 3 * mels or 9)
    wide: ops::Buffer,         // (places or rows, 3 * hidden or 9 * channels)
    given: ops::Buffer,        // (places, hidden or channels)
    rows: Option<ops::Buffer>, // (rows, channels * bands)
}

/// Rows and columns of the buffers.
pub(super) fn buffer_shapes(spec: &AudioSpec) -> [Option<(usize, usize)>; 4] {
    let (rows, hidden) = (spec.rows, spec.layers.hidden);
    match spec.planes {
        None => [Some((rows, 3 * spec.mels)), Some((rows, 3 * hidden)), Some((rows, hidden)), None],
        Some(Planes { channels, .. }) => [
            Some((PLACES_MAX, 9)),
            Some((PLACES_MAX, 9 * channels)),
            Some((PLACES_MAX, channels)),
            Some((rows, channels * spec.bands_left())),
        ],
    }
}

/// Numbers held in host memory while the convolutions run.
pub(super) fn host_numbers(spec: &AudioSpec) -> usize {
    let hidden = spec.layers.hidden;
    match spec.planes {
        None => spec.rows * 3 * spec.mels.max(hidden) + spec.frames() * hidden,
        Some(Planes { frames, channels }) => {
            let first = spec.mels.div_ceil(2) * frames.div_ceil(2) * channels;
            2 * first + PLACES_MAX * 9 * channels + spec.rows * channels * spec.bands_left()
        }
    }
}

impl Stem {
    /// Reads and packs the weights, allocates the buffers, and builds the ops. `out` is the buffer of the layers' input.
    pub(super) fn load(
        backend: &AnyBackend,
        files: &StemFiles,
        spec: &AudioSpec,
        out: BufferId,
    ) -> Result<Self, LoadError> {
        let linear = |affine: &Affine| {
            let bias = backend.vector(&affine.bias.to_f32()?)?;
            Ok::<_, LoadError>(Linear { weight: pack(backend, &affine.weight)?, bias })
        };
        let weights = match files {
            StemFiles::Frames { first, second } => {
                StemWeights::Frames { first: linear(first)?, second: linear(second)? }
            }
            StemFiles::Planes { convolutions: [first, second, third], out } => StemWeights::Planes {
                convolutions: [linear(first)?, linear(second)?, linear(third)?],
                out: pack(backend, out)?,
            },
        };
        let buffers = StemBuffers::new(backend, spec)?;
        let mut stem = Stem { weights, buffers, program: StemProgram::default() };
        stem.program = stem.build(out);
        Ok(stem)
    }

    fn build(&self, out: BufferId) -> StemProgram {
        let b = &self.buffers;
        let (narrow, wide, given) = (b.narrow.id(), b.wide.id(), b.given.id());
        let mut p = ProgramBuilder::default();
        let mut convolve = |Linear { weight, bias }: &Linear, x, out| {
            p.activated(weight, Some(bias), GELU, x, out);
            p.finish_ops()
        };
        match (&self.weights, &b.rows) {
            (StemWeights::Frames { first, second }, _) => StemProgram {
                convolutions: vec![convolve(first, narrow, given)],
                last: convolve(second, wide, out),
            },
            (StemWeights::Planes { convolutions, out: last }, rows) => {
                let reads = [narrow, wide, wide].into_iter();
                let convolutions = convolutions.iter().zip(reads).map(|(of, x)| convolve(of, x, given));
                let convolutions = convolutions.collect();
                p.matmul(last, None, rows.as_ref().expect("there is one behind planes").id(), out);
                StemProgram { convolutions, last: p.finish_ops() }
            }
        }
    }

    /// Computes the layers' input from a window's frames, `(frames, mels)`, before position embeddings are added,
    /// for the given number of rows. Leaves the last step open, so the caller ends it.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn run(
        &mut self,
        backend: &mut AnyBackend,
        spec: &AudioSpec,
        frames: &[f32],
        rows: usize,
    ) -> Result<(), KernelError> {
        let Self { buffers, program, .. } = self;
        let Some(planes) = spec.planes else {
            return over_frames(backend, program, spec, frames, rows, buffers);
        };
        let seen = over_planes(backend, program, frames, spec.mels, planes, buffers)?;
        let Some(buffer) = &mut buffers.rows else { return Ok(()) };
        backend.begin(&batch_of(&[rows]))?;
        backend.write_rows(buffer, 0, &seen)?;
        backend.run_all(&program.last);
        Ok(())
    }
}

impl StemBuffers {
    fn new(backend: &AnyBackend, spec: &AudioSpec) -> Result<Self, KernelError> {
        let [narrow, wide, given, rows] = buffer_shapes(spec).map(|shape| {
            shape.map(|(rows, cols)| backend.buffer(BufferRole::Operand, rows, cols)).transpose()
        });
        const ALWAYS: &str = "every stem has this one";
        Ok(StemBuffers {
            narrow: narrow?.expect(ALWAYS),
            wide: wide?.expect(ALWAYS),
            given: given?.expect(ALWAYS),
            rows: rows?,
        })
    }
}

fn over_frames(
    backend: &mut AnyBackend,
    program: &StemProgram,
    spec: &AudioSpec,
    frames: &[f32],
    rows: usize,
    StemBuffers { narrow, wide, given, .. }: &mut StemBuffers,
) -> Result<(), KernelError> {
    let (mels, hidden, batch) = (spec.mels, spec.layers.hidden, batch_of(&[rows]));
    let mut heard = vec![0.0; 2 * rows * hidden];
    let mut seen = vec![0.0; rows * 3 * mels.max(hidden)];
    // The first convolution has twice as many rows as a step: it takes two steps.
    for (half, heard) in heard.chunks_exact_mut(rows * hidden).enumerate() {
        let seen = &mut seen[..rows * 3 * mels];
        for (row, seen) in seen.chunks_exact_mut(3 * mels).enumerate() {
            unfold(frames, mels, (half * rows + row) as isize - 1, seen);
        }
        backend.begin(&batch)?;
        let written = backend.write_rows(narrow.id(), 0, seen);
        backend.run_all(&program.convolutions[0]);
        backend.end().and(written)?;
        backend.read_rows(given.id(), 0, heard)?;
    }
    let seen = &mut seen[..rows * 3 * hidden];
    for (row, seen) in seen.chunks_exact_mut(3 * hidden).enumerate() {
        // Positions after the sound's last row do not take part.
        unfold(&heard, hidden, 2 * row as isize - 1, seen);
    }
    backend.begin(&batch)?;
    backend.write_rows(wide, 0, seen)?;
    backend.run_all(&program.last);
    Ok(())
}

/// Input of the projection to rows, `(rows, channels * bands)`. Frames missing from the last chunk are zeros.
fn over_planes(
    backend: &mut AnyBackend,
    program: &StemProgram,
    frames: &[f32],
    mels: usize,
    planes: Planes,
    StemBuffers { narrow, wide, given, .. }: &mut StemBuffers,
) -> Result<Vec<f32>, KernelError> {
    let mut rows = Vec::new();
    for chunk in frames.chunks(planes.frames * mels) {
        let mut plane = Plane { bands: mels, frames: planes.frames, channels: 1, numbers: Vec::new() };
        plane.numbers = (0..mels * planes.frames)
            .map(|place| {
                chunk.get(place % planes.frames * mels + place / planes.frames).copied().unwrap_or(0.0)
            })
            .collect();
        for ops in &program.convolutions {
            let seen = if plane.channels == 1 { &mut *narrow } else { &mut *wide };
            plane = plane.convolve(backend, ops, planes.channels, seen, given)?;
        }
        let heard = planes.rows_of_chunk(chunk.len() / mels);
        for frame in 0..heard {
            let places = |channel| {
                (0..plane.bands).map(move |band| (band * plane.frames + frame) * plane.channels + channel)
            };
            rows.extend((0..plane.channels).flat_map(places).map(|place| plane.numbers[place]));
        }
    }
    Ok(rows)
}

/// Activations over bands and frames, `(bands, frames, channels)`.
struct Plane {
    bands: usize,
    frames: usize,
    channels: usize,
    numbers: Vec<f32>,
}

impl Plane {
    /// Output of a 3×3 convolution with stride 2. Positions outside are zeros.
    fn convolve(
        &self,
        backend: &mut AnyBackend,
        ops: &[Op],
        channels: usize,
        seen: &mut ops::Buffer,
        given: &ops::Buffer,
    ) -> Result<Plane, KernelError> {
        let (bands, frames) = (self.bands.div_ceil(2), self.frames.div_ceil(2));
        let (places, width) = (bands * frames, 9 * self.channels);
        let mut numbers = vec![0.0; places * channels];
        for (piece, given_numbers) in numbers.chunks_mut(PLACES_MAX * channels).enumerate() {
            let count = given_numbers.len() / channels;
            let first = piece * PLACES_MAX;
            let mut around = vec![0.0; count * width];
            for (place, around) in around.chunks_exact_mut(width).enumerate() {
                self.around((first + place) / frames, (first + place) % frames, around);
            }
            backend.begin(&batch_of(&[count]))?;
            let written = backend.write_rows(seen.id(), 0, &around);
            backend.run_all(ops);
            backend.end().and(written)?;
            backend.read_rows(given.id(), 0, given_numbers)?;
        }
        Ok(Plane { bands, frames, channels, numbers })
    }

    /// Unfolded input of one output position: for each channel three frames of each of three bands.
    fn around(&self, band: usize, frame: usize, out: &mut [f32]) {
        for tap in 0..9 {
            let band = (2 * band + tap / 3).checked_sub(1).filter(|&band| band < self.bands);
            let frame = (2 * frame + tap % 3).checked_sub(1).filter(|&frame| frame < self.frames);
            let to = out.iter_mut().skip(tap).step_by(9);
            if let (Some(band), Some(frame)) = (band, frame) {
                let from = &self.numbers[(band * self.frames + frame) * self.channels..][..self.channels];
                to.zip(from).for_each(|(to, from)| *to = *from);
            }
        }
    }
}
