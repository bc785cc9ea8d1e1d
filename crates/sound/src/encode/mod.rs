//! Encoding of sound: mono samples into a file of some format, as they arrive.

mod flac;
#[cfg(feature = "mp3")]
mod mp3;
mod opus;
mod wav;

use self::wav::header;
use crate::Resampler;

/// Sample rate of [`SoundFormat::Pcm`]. A file without a header needs a fixed rate, and this is OpenAI's.
pub const PCM_RATE: u32 = 24_000;

/// Format of a sound file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoundFormat {
    /// 16-bit PCM after a header that leaves the length unknown.
    Wav,
    /// Signed 16-bit little-endian samples at [`PCM_RATE`], without a header.
    Pcm,
    /// MPEG layer III at a constant bit rate.
    Mp3,
    /// 16-bit FLAC, whose header leaves the length unknown.
    Flac,
    /// Opus in Ogg.
    Opus,
}

impl SoundFormat {
    /// Media type for HTTP.
    pub fn mime_type(self) -> &'static str {
        match self {
            SoundFormat::Wav => "audio/wav",
            SoundFormat::Pcm => "audio/pcm",
            SoundFormat::Mp3 => "audio/mpeg",
            SoundFormat::Flac => "audio/flac",
            SoundFormat::Opus => "audio/ogg",
        }
    }

    /// Sample rate of a file of this format made from samples at `rate`.
    pub fn sample_rate(self, rate: u32) -> u32 {
        if self == SoundFormat::Pcm { PCM_RATE } else { rate }
    }
}

/// Reason why no file can be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CannotEncode(String);

/// Encoder of one file.
pub struct Encoder(EncoderKind);

enum EncoderKind {
    /// Header, until it is written before the first sample.
    Wav(Vec<u8>),
    Pcm(Box<Resampler>),
    #[cfg(feature = "mp3")]
    Mp3(mp3::Mp3),
    Flac(flac::Flac),
    Opus(Box<opus::Opus>),
}

impl Encoder {
    /// Creates an encoder for samples at `sample_rate`.
    ///
    /// # Errors
    /// If the format is not in this build, or does not support the rate.
    pub fn new(format: SoundFormat, sample_rate: u32) -> Result<Encoder, CannotEncode> {
        Ok(Encoder(match format {
            SoundFormat::Wav => EncoderKind::Wav(header(sample_rate)),
            SoundFormat::Pcm => EncoderKind::Pcm(Box::new(Resampler::new(sample_rate, PCM_RATE))),
            SoundFormat::Flac => EncoderKind::Flac(flac::Flac::new(sample_rate)),
            SoundFormat::Opus => EncoderKind::Opus(Box::new(opus::Opus::new(sample_rate)?)),
            #[cfg(feature = "mp3")]
            SoundFormat::Mp3 => EncoderKind::Mp3(mp3::Mp3::new(sample_rate)?),
            #[cfg(not(feature = "mp3"))]
            SoundFormat::Mp3 => {
                return Err(CannotEncode(
                    "this build makes no mp3; ask for opus, flac, wav or pcm".to_owned(),
                ));
            }
        }))
    }

    /// Returns the next bytes of the file.
    pub fn push(&mut self, samples: &[f32]) -> Vec<u8> {
        let whole = samples.iter().map(|&sample| to_i16(sample));
        match &mut self.0 {
            EncoderKind::Wav(header) => {
                let mut bytes = std::mem::take(header);
                bytes.extend(whole.flat_map(i16::to_le_bytes));
                bytes
            }
            EncoderKind::Pcm(resampler) => pcm(|out| resampler.push(samples, out)),
            #[cfg(feature = "mp3")]
            EncoderKind::Mp3(mp3) => mp3.push(whole.collect()),
            EncoderKind::Flac(flac) => flac.push(whole),
            EncoderKind::Opus(opus) => opus.push(samples),
        }
    }

    /// Returns the last bytes of the file.
    pub fn finish(self) -> Vec<u8> {
        match self.0 {
            EncoderKind::Wav(header) => header,
            EncoderKind::Pcm(mut resampler) => pcm(|out| resampler.finish(out)),
            #[cfg(feature = "mp3")]
            EncoderKind::Mp3(mp3) => mp3.finish(),
            EncoderKind::Flac(flac) => flac.finish(),
            EncoderKind::Opus(opus) => opus.finish(),
        }
    }
}

/// Bytes of the samples that `resample` appends.
fn pcm(resample: impl FnOnce(&mut Vec<f32>)) -> Vec<u8> {
    let mut samples = Vec::new();
    resample(&mut samples);
    samples.into_iter().flat_map(|sample| to_i16(sample).to_le_bytes()).collect()
}

fn to_i16(sample: f32) -> i16 {
    (sample.clamp(-1.0, 1.0) * f32::from(i16::MAX)).round() as i16
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::{Hint, Limits, Resampler, SPEECH_RATE, Sound};

    /// A tone that grows louder, with noise, and silence at the end; a bit more than a second.
    fn sound(rate: u32) -> Vec<f32> {
        let mut noise = 1_u32;
        let mut sample = |at: u32| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let time = at as f32 / rate as f32;
            let tone = (time * 440.0 * std::f32::consts::TAU).sin() * time.min(0.8);
            tone + (noise >> 16) as f32 / 65_536.0 * 0.01
        };
        let loud = rate + rate / 7;
        (0..loud).map(&mut sample).chain(std::iter::repeat_n(0.0, rate as usize / 5)).collect()
    }

    /// File encoded from pieces of various lengths.
    fn encoded(format: SoundFormat, rate: u32, samples: &[f32]) -> Vec<u8> {
        let mut encoder = Encoder::new(format, rate).unwrap();
        let (mut bytes, mut rest, mut length) = (Vec::new(), samples, 1);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(length.min(rest.len()));
            bytes.extend(encoder.push(piece));
            (rest, length) = (after, length * 3);
        }
        bytes.extend(encoder.finish());
        bytes
    }

    /// Decodes a file at the rate of speech models.
    fn heard(bytes: Vec<u8>) -> Vec<f32> {
        let limits = Limits { bytes_max: 1 << 24, seconds_max: 60.0 };
        let mut sound = Sound::open(Cursor::new(bytes), &Hint::default(), &limits).unwrap();
        let mut all = Vec::new();
        while let Some(chunk) = sound.next_chunk().unwrap() {
            all.extend(chunk);
        }
        all
    }

    fn at_speech_rate(rate: u32, samples: &[f32]) -> Vec<f32> {
        let (mut resampler, mut all) = (Resampler::new(rate, SPEECH_RATE), Vec::new());
        resampler.push(samples, &mut all);
        resampler.finish(&mut all);
        all
    }

    /// Signal-to-noise ratio in dB.
    fn snr_db(wanted: &[f32], got: &[f32]) -> f32 {
        let power = |samples: &mut dyn Iterator<Item = f32>| samples.map(|s| s * s).sum::<f32>();
        let differs = power(&mut wanted.iter().zip(got).map(|(a, b)| a - b));
        10.0 * (power(&mut wanted.iter().copied()) / differs.max(1e-12)).log10()
    }

    #[test]
    fn a_wav_is_a_header_and_samples() {
        let mut encoder = Encoder::new(SoundFormat::Wav, 24_000).unwrap();
        let mut bytes = encoder.push(&[0.0, 1.0]);
        bytes.extend(encoder.push(&[-1.0, 2.0]));
        bytes.extend(encoder.finish());
        assert_eq!(&bytes[..4], b"RIFF");
        assert_eq!(bytes[24..28], 24_000u32.to_le_bytes());
        let samples: Vec<i16> =
            bytes[44..].chunks_exact(2).map(|two| i16::from_le_bytes([two[0], two[1]])).collect();
        assert_eq!(samples, [0, 32_767, -32_767, 32_767]);
    }

    /// Samples of a headerless file.
    fn pcm_samples(bytes: &[u8]) -> Vec<f32> {
        let sample = |two: &[u8]| f32::from(i16::from_le_bytes([two[0], two[1]])) / f32::from(i16::MAX);
        bytes.chunks_exact(2).map(sample).collect()
    }

    #[test]
    fn pcm_has_the_rate_of_openai_whatever_the_voice() {
        for rate in [16_000, 22_050, 24_000, 44_100] {
            // A chirp from 100 Hz to 7 kHz within 2 s, whose phase is exact at every rate.
            let chirp = |rate: u32| -> Vec<f32> {
                let at = |n: u32| f64::from(n) / f64::from(rate);
                let phase = |t: f64| std::f64::consts::TAU * (100.0 * t + 6_900.0 * t * t / 4.0);
                // The sound fades in and out, to have no edges.
                let fade = |t: f64| (t / 0.05).min((2.0 - t) / 0.05).clamp(0.0, 1.0);
                let fade = move |t: f64| 0.5 - 0.5 * (std::f64::consts::PI * fade(t)).cos();
                (0..2 * rate).map(|n| (0.8 * fade(at(n)) * phase(at(n)).sin()) as f32).collect()
            };
            // `encoded` pushes pieces of 1, 3, 9 … samples: a click at a border would show.
            let got = pcm_samples(&encoded(SoundFormat::Pcm, rate, &chirp(rate)));
            assert_eq!(got.len(), 2 * PCM_RATE as usize, "{rate}");
            let snr = snr_db(&chirp(PCM_RATE), &got);
            assert!(snr > 80.0, "{rate}: {snr} dB");
        }
    }

    #[test]
    fn pcm_is_as_soxr_resamples_it() {
        // Written by testdata/make_resample.py: 22,050 Hz in, 24,000 Hz out, both i16 and little-endian.
        let given = pcm_samples(include_bytes!("../../testdata/chirp_22050.pcm"));
        let wanted = pcm_samples(include_bytes!("../../testdata/chirp_24000.pcm"));
        let got = pcm_samples(&encoded(SoundFormat::Pcm, 22_050, &given));
        assert_eq!(got.len(), wanted.len());
        let snr = snr_db(&wanted, &got);
        assert!(snr > 75.0, "{snr} dB");
    }

    #[test]
    fn what_is_written_without_loss_is_read_as_it_was() {
        for rate in [24_000, 22_050, 16_000, 96_000] {
            let samples = sound(rate);
            let wanted = heard(encoded(SoundFormat::Wav, rate, &samples));
            let flac = encoded(SoundFormat::Flac, rate, &samples);
            assert!(
                flac.len() < 2 * samples.len() * 7 / 10,
                "{rate}: {} of {}",
                flac.len(),
                2 * samples.len()
            );
            assert_eq!(heard(flac), wanted, "{rate}");
        }
        // Frames of one sample, of one value, of extreme ones; and no frame.
        for samples in [vec![0.5], vec![0.25; 9_000], (0..9_000).map(|at| (at * at % 7 - 3) as f32).collect()]
        {
            let wanted = heard(encoded(SoundFormat::Wav, 24_000, &samples));
            assert_eq!(heard(encoded(SoundFormat::Flac, 24_000, &samples)), wanted);
        }
        assert_eq!(encoded(SoundFormat::Flac, 24_000, &[]).len(), 42);
    }

    #[test]
    fn an_opus_file_is_as_long_as_what_it_was_made_of_and_sounds_like_it() {
        for rate in [24_000, 22_050, 16_000, 48_000] {
            let samples = sound(rate);
            let bytes = encoded(SoundFormat::Opus, rate, &samples);
            assert!(bytes.len() < 14_000, "{rate}: {}", bytes.len());
            let (wanted, got) = (at_speech_rate(rate, &samples), heard(bytes));
            assert!(wanted.len().abs_diff(got.len()) <= 1, "{rate}: {} {}", wanted.len(), got.len());
            let snr = snr_db(&wanted, &got);
            assert!(snr > 12.0, "{rate}: {snr} dB");
        }
        assert_eq!(heard(encoded(SoundFormat::Opus, 24_000, &[0.1])).len(), 1);
    }

    #[cfg(feature = "mp3")]
    #[test]
    fn an_mp3_is_as_long_as_what_it_was_made_of_and_sounds_like_it() {
        let samples = sound(24_000);
        let bytes = encoded(SoundFormat::Mp3, 24_000, &samples);
        assert_eq!((bytes[0], bytes[1] & 0xe0), (0xff, 0xe0), "a frame's first bits");
        // 64 kbit/s.
        assert!((8_000 * 132 / 100..8_000 * 142 / 100).contains(&bytes.len()), "{}", bytes.len());
        let (wanted, got) = (at_speech_rate(24_000, &samples), heard(bytes));
        // Encoder and decoder delay the sound by some frames.
        let shift = (0..2_000).max_by_key(|&shift| (snr_db(&wanted, &got[shift..]) * 1e3) as i64).unwrap();
        assert!(snr_db(&wanted, &got[shift..]) > 12.0, "{} dB", snr_db(&wanted, &got[shift..]));
    }

    #[cfg(feature = "mp3")]
    #[test]
    fn a_rate_that_mp3_does_not_know_is_refused() {
        assert!(Encoder::new(SoundFormat::Mp3, 23_999).is_err());
    }
}
