//! Voice activity gate: removes long pauses before a speech model hears them, and maps times back. Models
//! invent text in silence, and silence costs as much as speech. The gate is conservative. It removes only
//! stretches of over two seconds in which no 10 ms rise above the sound's noise floor or above the limit of
//! audibility. Some of each pause stays on both sides. A sound without any such frame is removed entirely. If a
//! voice activity network is available, it decides instead, and music, machines and noise are removed too.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::SPEECH_RATE;
use crate::silero::{CHUNK, Silero, SileroWeights};
use crate::time_map::TimeMap;

/// Samples of a frame for energy measurement: 10 ms.
const FRAME: usize = SPEECH_RATE as usize / 100;
/// Samples of a pause kept at each side, in whole frames: 0.4 s.
const PAD: usize = SPEECH_RATE as usize * 2 / 5;
/// Minimum samples of a pause beyond that before some are removed: 2 s.
const CUT_MIN: usize = SPEECH_RATE as usize * 2;
/// Speech probabilities at which speech begins, and down to which it continues (from the network's authors,
/// `utils_vad.py`).
const SPEAKS: f32 = 0.5;
const SPEAKS_ON: f32 = 0.35;
/// Level below which nothing counts as speech, in dBFS.
const SILENT_DB: f32 = -65.0;
/// Level of speech above the noise floor, in dB.
const ABOVE_FLOOR_DB: f32 = 5.0;
/// Maximum noise floor, in dBFS. Louder background, such as music and machines, is kept.
const FLOOR_DB_MAX: f32 = -50.0;
/// Frames over which the floor is measured: 10 s; and the minimum number.
const FLOOR_FRAMES: usize = 1000;
const FLOOR_FRAMES_MIN: usize = 100;
/// Share of frames below the floor, as a divisor.
const FLOOR_SHARE: usize = 10;
/// Number of levels told apart, in dB below full scale.
const LEVELS: usize = 121;
/// Pole of a high-pass filter at 77 Hz, which removes rumble and a constant offset.
const RUMBLE_POLE: f32 = 0.97;

/// Gate for one sound.
pub struct Gate {
    /// Samples of an incomplete frame.
    part: Vec<f32>,
    hears: Hears,
    /// Newest frames of a pause, which may still be passed on.
    held: VecDeque<f32>,
    /// Samples of this pause already removed.
    dropped: u64,
    /// Frames of this pause that were passed on.
    passed: usize,
    /// True if anything was passed on as speech.
    heard: bool,
    /// True if pauses are passed on too.
    keeps_pauses: bool,
    map: TimeMap,
}

/// Detector of frames that are worth hearing.
enum Hears {
    Loudness(Loudness),
    Network { network: Silero, speaks: bool },
}

/// Detector by level above the sound's noise floor.
struct Loudness {
    /// State of the filter: its last input and output.
    last: (f32, f32),
    /// Levels of the last frames, and the number of frames at each level.
    recent: VecDeque<u8>,
    counts: [u16; LEVELS],
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// Creates a gate that detects speech by energy.
    pub fn new() -> Gate {
        let recent = VecDeque::with_capacity(FLOOR_FRAMES);
        Self::with(Hears::Loudness(Loudness { last: (0.0, 0.0), recent, counts: [0; LEVELS] }))
    }

    /// Creates a gate that detects speech by a network.
    pub fn by_network(weights: &Arc<SileroWeights>) -> Gate {
        Self::with(Hears::Network { network: Silero::new(weights.clone()), speaks: false })
    }

    /// Creates a gate that passes on all samples. Its map knows the pauses.
    pub fn keeping_pauses() -> Gate {
        Gate { keeps_pauses: true, ..Self::new() }
    }

    fn with(hears: Hears) -> Gate {
        let frame = hears.frame();
        Gate {
            part: Vec::with_capacity(frame),
            hears,
            held: VecDeque::new(),
            dropped: 0,
            // Sound before the first word is a pause, of which nothing need be kept at its start.
            passed: PAD.div_ceil(frame),
            heard: false,
            keeps_pauses: false,
            map: TimeMap::default(),
        }
    }

    /// Takes 16 kHz samples, and appends those worth hearing to `out`.
    pub fn push(&mut self, mut samples: &[f32], out: &mut Vec<f32>) {
        let size = self.hears.frame();
        self.map.take(samples.len());
        while !samples.is_empty() {
            let (now, later) = samples.split_at(samples.len().min(size - self.part.len()));
            self.part.extend_from_slice(now);
            samples = later;
            if self.part.len() == size {
                let frame = std::mem::take(&mut self.part);
                self.frame(&frame, out);
                self.part = frame;
                self.part.clear();
            }
        }
    }

    /// Ends the sound, and appends the rest.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        // A network needs whole frames. An incomplete last frame may have the start of speech.
        if self.dropped > 0 || !self.heard {
            let rest = std::mem::take(&mut self.part);
            let mut whole = rest.clone();
            whole.resize(self.hears.frame(), 0.0);
            let is_heard = matches!(self.hears, Hears::Network { .. })
                && !rest.is_empty()
                && self.hears.is_heard(&whole);
            if is_heard {
                self.speech(&rest, out);
            }
        }
        if (self.heard || self.keeps_pauses) && self.dropped == 0 {
            let held: Vec<f32> = self.held.drain(..).collect();
            self.pass(&held, out);
            let part = std::mem::take(&mut self.part);
            self.pass(&part, out);
        }
        self.held.clear();
        self.part.clear();
    }

    /// Time map of the samples passed on so far.
    pub fn map(&self) -> &TimeMap {
        &self.map
    }

    fn frame(&mut self, frame: &[f32], out: &mut Vec<f32>) {
        let pad = PAD.div_ceil(frame.len());
        if self.hears.is_heard(frame) {
            self.speech(frame, out);
        } else if self.passed < pad || self.keeps_pauses {
            self.passed += 1;
            self.pass(frame, out);
        } else {
            self.held.extend(frame);
            let pad = pad * frame.len();
            let most = if self.dropped > 0 || !self.heard { pad } else { pad + CUT_MIN };
            if self.held.len() > most {
                let leaves = self.held.len() - pad;
                self.held.drain(..leaves);
                self.dropped += leaves as u64;
            }
        }
    }

    /// Passes on a frame with speech, after the held frames.
    fn speech(&mut self, frame: &[f32], out: &mut Vec<f32>) {
        self.heard = true;
        let held: Vec<f32> = self.held.drain(..).collect();
        self.pass(&held, out);
        self.map.speech_begins(held.len(), std::mem::take(&mut self.dropped));
        self.pass(frame, out);
        self.map.speech_ends();
        self.passed = 0;
    }

    fn pass(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.map.pass(samples.len());
        out.extend_from_slice(samples);
    }
}

impl Hears {
    /// Samples of a frame.
    fn frame(&self) -> usize {
        match self {
            Hears::Loudness(_) => FRAME,
            Hears::Network { .. } => CHUNK,
        }
    }

    fn is_heard(&mut self, frame: &[f32]) -> bool {
        match self {
            Hears::Loudness(loudness) => loudness.is_heard(frame),
            Hears::Network { network, speaks } => {
                let chance = network.chance(frame);
                // NaN counts as speech: better heard twice than lost.
                *speaks = chance.is_nan() || chance >= if *speaks { SPEAKS_ON } else { SPEAKS };
                *speaks
            }
        }
    }
}

impl Loudness {
    fn is_heard(&mut self, frame: &[f32]) -> bool {
        let mut energy = 0.0;
        for &sample in frame {
            let high = sample - self.last.0 + RUMBLE_POLE * self.last.1;
            self.last = (sample, high);
            energy += high * high;
        }
        // A sample that is not finite would spoil the filter for good.
        if !energy.is_finite() {
            self.last = (0.0, 0.0);
        }
        let level_db = 10.0 * (energy / FRAME as f32).max(1e-12).log10();
        let threshold = SILENT_DB.max(self.floor_db() + ABOVE_FLOOR_DB);
        let level = (-level_db).clamp(0.0, (LEVELS - 1) as f32) as u8;
        if self.recent.len() == FLOOR_FRAMES
            && let Some(oldest) = self.recent.pop_front()
        {
            self.counts[usize::from(oldest)] -= 1;
        }
        self.recent.push_back(level);
        self.counts[usize::from(level)] += 1;
        // NaN counts as speech: better heard twice than lost.
        level_db.is_nan() || level_db > threshold
    }

    /// Noise floor in dBFS: the level that a tenth of the last frames stay below, if low enough for a floor.
    fn floor_db(&self) -> f32 {
        if self.recent.len() < FLOOR_FRAMES_MIN {
            return f32::NEG_INFINITY;
        }
        let mut below = 0;
        for (level, &count) in self.counts.iter().enumerate().rev() {
            below += usize::from(count);
            if below * FLOOR_SHARE >= self.recent.len() {
                return (-(level as f32)).min(FLOOR_DB_MAX);
            }
        }
        FLOOR_DB_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: usize = SPEECH_RATE as usize;

    fn noise(seconds: f64, db: f32, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let scale = 10f32.powf(db / 20.0) * 3f32.sqrt();
        (0..(seconds * RATE as f64) as usize)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 * scale - scale
            })
            .collect()
    }

    /// Bursts of a harmonic tone at 4 Hz, as syllables are.
    fn speech(seconds: f64, db: f32) -> Vec<f32> {
        let scale = 10f32.powf(db / 20.0) * 2.0;
        (0..(seconds * RATE as f64) as usize)
            .map(|n| {
                let t = n as f32 / RATE as f32;
                let syllable = (std::f32::consts::TAU * 4.0 * t).sin().max(0.0);
                let tone: f32 =
                    (1..6).map(|k| (std::f32::consts::TAU * 140.0 * k as f32 * t).sin() / k as f32).sum();
                scale * syllable * tone
            })
            .collect()
    }

    /// Result of the gate for a sound in pieces of `piece` samples.
    fn gated(sound: &[f32], piece: usize) -> (Vec<f32>, TimeMap) {
        gated_by(Gate::new(), sound, piece)
    }

    fn gated_by(mut gate: Gate, sound: &[f32], piece: usize) -> (Vec<f32>, TimeMap) {
        let mut out = Vec::new();
        for samples in sound.chunks(piece) {
            gate.push(samples, &mut out);
        }
        gate.finish(&mut out);
        (out, gate.map().clone())
    }

    #[test]
    fn silence_is_left_out_whole() {
        for sound in [vec![0.0; 30 * RATE], vec![0.0; RATE / 2], noise(20.0, -72.0, 3), vec![0.3; 10 * RATE]]
        {
            let (out, map) = gated(&sound, 1000);
            // A constant begins with a click.
            assert!(out.len() <= RATE, "{} samples of silence", out.len());
            assert!(map.passed_s() <= 1.0);
        }
    }

    #[test]
    fn what_is_said_is_passed_on_and_found_again() {
        for floor_db in [-100.0, -60.0, -52.0] {
            let mut sound = noise(5.0, floor_db, 1);
            let at = [sound.len(), sound.len() + 20 * RATE];
            sound.extend(speech(4.0, -30.0));
            sound.extend(noise(16.0, floor_db, 2));
            sound.extend(speech(3.0, -30.0));
            sound.extend(noise(6.0, floor_db, 5));
            let background: Vec<f32> = noise(sound.len() as f64 / RATE as f64, floor_db, 9);
            for (sample, noise) in sound.iter_mut().zip(background) {
                *sample += noise;
            }
            let (out, map) = gated(&sound, 777);
            assert!(out.len() < 17 * RATE, "{floor_db}: {} s are left", out.len() as f64 / RATE as f64);
            assert!(map.cuts() >= 2, "{map:?}");
            // Every sample passed on is at the position in the map, and both stretches of speech are complete.
            let mut found = vec![false; sound.len()];
            for (n, sample) in out.iter().enumerate() {
                let back = (map.start(n as f64 / RATE as f64) * RATE as f64).round() as usize;
                assert_eq!(sound[back], *sample, "sample {n} is not {back}");
                found[back] = true;
            }
            for (at, seconds) in at.into_iter().zip([4, 3]) {
                assert!(
                    found[at..at + seconds * RATE].iter().all(|found| *found),
                    "{floor_db}: speech was cut"
                );
            }
        }
    }

    #[test]
    fn segments_lie_where_somebody_spoke() {
        // 5 s of silence, 4 s of speech, 12 s of pause, 3 s of speech, and 6 s of silence.
        let mut sound = vec![0.0; 5 * RATE];
        sound.extend(speech(4.0, -25.0));
        sound.extend(vec![0.0; 12 * RATE]);
        sound.extend(speech(3.0, -25.0));
        sound.extend(vec![0.0; 6 * RATE]);
        let near = |(a, b): (f64, f64), (c, d): (f64, f64)| (a - c).abs() < 0.15 && (b - d).abs() < 0.15;
        let (out, map) = gated(&sound, 777);
        let heard_s = out.len() as f64 / RATE as f64;
        // The model reports the start of the second segment at the end of the first.
        assert!(near(map.segment(0.0, 4.4), (5.0, 9.0)), "{:?}", map.segment(0.0, 4.4));
        assert!(near(map.segment(4.4, 30.0), (21.0, 24.0)), "{heard_s} {:?}", map.segment(4.4, 30.0));
        let mut keeping = (Gate::keeping_pauses(), Vec::new());
        sound.chunks(777).for_each(|piece| keeping.0.push(piece, &mut keeping.1));
        keeping.0.finish(&mut keeping.1);
        assert_eq!(keeping.1, sound);
        let map = keeping.0.map();
        assert!(near(map.segment(0.0, 9.0), (5.0, 9.0)) && near(map.segment(9.0, 99.0), (21.0, 24.0)));
        assert_eq!(map.segment(6.0, 8.0), (6.0, 8.0), "speech stays where it is");
    }

    #[test]
    fn pieces_do_not_matter() {
        let mut sound = speech(2.0, -25.0);
        sound.extend(vec![0.0; 8 * RATE]);
        sound.extend(speech(1.5, -40.0));
        let whole = gated(&sound, usize::MAX);
        for piece in [1, 159, 160, 161, 16_000] {
            assert_eq!(gated(&sound, piece), whole, "in pieces of {piece}");
        }
    }

    #[test]
    fn short_pauses_and_loud_floors_stay() {
        let mut sound = speech(3.0, -25.0);
        sound.extend(vec![0.0; 2 * RATE]);
        sound.extend(speech(3.0, -25.0));
        assert_eq!(gated(&sound, 4096).0, sound);
        // A machine, or music: the energy gate cannot know that no one speaks.
        let machine = noise(30.0, -30.0, 4);
        assert!(gated(&machine, 4096).0.len() > 29 * RATE);
    }

    #[test]
    fn a_network_decides_where_there_is_one() {
        let weights = Arc::new(crate::silero::tests::of_low_tones());
        let tone = |seconds: usize, hertz: f32| {
            let sample = move |n: usize| 0.3 * (std::f32::consts::TAU * hertz * n as f32 / RATE as f32).sin();
            (0..seconds * RATE).map(sample)
        };
        // A high hum is loud, but no speech.
        let mut sound: Vec<f32> = tone(7, 6000.0).collect();
        let first = sound.len();
        sound.extend(tone(2, 400.0).chain(tone(1, 6000.0)).chain(tone(2, 400.0)).chain(tone(9, 6000.0)));
        let last = sound.len();
        sound.extend(tone(1, 400.0).take(CHUNK + 100));
        assert!(gated(&sound, 4096).0.len() > sound.len() - RATE / 2, "by its energy all of it is heard");
        let (out, map) = gated_by(Gate::by_network(&weights), &sound, 777);
        assert_eq!(map.cuts(), 2, "{map:?}");
        let mut found = vec![false; sound.len()];
        for (n, sample) in out.iter().enumerate() {
            let back = (map.start(n as f64 / RATE as f64) * RATE as f64).round() as usize;
            assert_eq!(sound[back], *sample, "sample {n} is not {back}");
            found[back] = true;
        }
        assert!(
            found[first..first + 5 * RATE].iter().all(|found| *found),
            "speech was cut, or a short pause in it"
        );
        assert!(found[last..].iter().all(|found| *found), "a word at the very end was cut");
        assert!(out.len() < 9 * RATE, "{} s are left", out.len() as f64 / RATE as f64);
        for piece in [1, 511, 513, usize::MAX] {
            assert_eq!(
                gated_by(Gate::by_network(&weights), &sound, piece),
                (out.clone(), map.clone()),
                "in pieces of {piece}"
            );
        }
        // It begins with a click.
        let hum: Vec<f32> = tone(9, 6000.0).take(280 * CHUNK).collect();
        assert!(gated_by(Gate::by_network(&weights), &hum, 4096).0.len() < RATE);
    }
}
