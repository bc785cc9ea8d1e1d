//! Sound going out: samples of one channel into a file of some format, as they come.

#[cfg(feature = "mp3")]
mod mp3;
mod wav;

use self::wav::header;

/// How a file of sound is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 16-bit PCM behind a header that says that the length is not known.
    Wav,
    /// 16-bit little-endian samples alone.
    Pcm,
    /// MPEG layer III of a constant rate.
    Mp3,
}

impl Format {
    /// What HTTP calls it.
    pub fn mime_type(self) -> &'static str {
        match self {
            Format::Wav => "audio/wav",
            Format::Pcm => "audio/pcm",
            Format::Mp3 => "audio/mpeg",
        }
    }
}

/// Why no file can be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CannotEncode(String);

/// What writes one file.
pub struct Encoder(Kind);

enum Kind {
    /// What stands before the first sample.
    Samples(Vec<u8>),
    #[cfg(feature = "mp3")]
    Mp3(mp3::Mp3),
}

impl Encoder {
    /// For so many samples a second.
    ///
    /// # Errors
    /// That the format is not in this build, or knows no such rate.
    pub fn new(format: Format, sample_rate: u32) -> Result<Encoder, CannotEncode> {
        Ok(Encoder(match format {
            Format::Wav => Kind::Samples(header(sample_rate)),
            Format::Pcm => Kind::Samples(Vec::new()),
            #[cfg(feature = "mp3")]
            Format::Mp3 => Kind::Mp3(mp3::Mp3::new(sample_rate)?),
            #[cfg(not(feature = "mp3"))]
            Format::Mp3 => {
                return Err(CannotEncode("this build makes no mp3; ask for wav or pcm".to_owned()));
            }
        }))
    }

    /// The file's next bytes.
    pub fn push(&mut self, samples: &[f32]) -> Vec<u8> {
        let samples = samples.iter().map(|&sample| to_i16(sample));
        match &mut self.0 {
            Kind::Samples(before) => {
                let mut bytes = std::mem::take(before);
                bytes.extend(samples.flat_map(i16::to_le_bytes));
                bytes
            }
            #[cfg(feature = "mp3")]
            Kind::Mp3(mp3) => mp3.push(samples.collect()),
        }
    }

    /// The file's last bytes.
    pub fn finish(self) -> Vec<u8> {
        match self.0 {
            Kind::Samples(before) => before,
            #[cfg(feature = "mp3")]
            Kind::Mp3(mp3) => mp3.finish(),
        }
    }
}

fn to_i16(sample: f32) -> i16 {
    (sample.clamp(-1.0, 1.0) * f32::from(i16::MAX)).round() as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "mp3")]
    fn tone() -> Vec<f32> {
        (0..24_000).map(|at| (at as f32 * 440.0 * std::f32::consts::TAU / 24_000.0).sin() * 0.5).collect()
    }

    #[test]
    fn a_wav_is_a_header_and_samples() {
        let mut encoder = Encoder::new(Format::Wav, 24_000).unwrap();
        let mut bytes = encoder.push(&[0.0, 1.0]);
        bytes.extend(encoder.push(&[-1.0, 2.0]));
        bytes.extend(encoder.finish());
        assert_eq!(&bytes[..4], b"RIFF");
        assert_eq!(bytes[24..28], 24_000u32.to_le_bytes());
        let samples: Vec<i16> =
            bytes[44..].chunks_exact(2).map(|two| i16::from_le_bytes([two[0], two[1]])).collect();
        assert_eq!(samples, [0, 32_767, -32_767, 32_767]);
    }

    #[cfg(feature = "mp3")]
    #[test]
    fn an_mp3_is_as_long_as_what_it_was_made_of() {
        let mut encoder = Encoder::new(Format::Mp3, 24_000).unwrap();
        let mut bytes = Vec::new();
        for piece in tone().chunks(1_000) {
            bytes.extend(encoder.push(piece));
        }
        bytes.extend(encoder.finish());
        assert_eq!((bytes[0], bytes[1] & 0xe0), (0xff, 0xe0), "a frame's first bits");
        // 64 kbit a second.
        assert!((7_900..8_700).contains(&bytes.len()), "{}", bytes.len());
    }

    #[cfg(feature = "mp3")]
    #[test]
    fn a_rate_that_mp3_does_not_know_is_refused() {
        assert!(Encoder::new(Format::Mp3, 23_999).is_err());
    }
}
