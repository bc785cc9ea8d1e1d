//! Streaming decoding of a file's bytes to chunks of 16 kHz mono. A header's claims are checked before anything
//! is decoded, and the decoded amount is checked as it grows. A packet that cannot be decoded loses only its
//! own sound.

use std::{
    io::{ErrorKind, Read},
    panic::{AssertUnwindSafe, catch_unwind},
};

use symphonia::core::{
    codecs::audio::well_known::CODEC_ID_OPUS,
    common::Limit,
    errors::Error,
    formats::{FormatOptions, FormatReader, Track, TrackType, probe::Hint as ProbeHint},
    io::{MediaSourceStream, MediaSourceStreamOptions},
    meta::MetadataOptions,
};

use crate::{
    Resampler, SPEECH_RATE,
    codec::{Decoder, NoDecoder, codec_name},
    error::SoundError,
    source::{self, SoundSource},
};

/// Supported formats, for messages.
pub(crate) const FORMATS: &str =
    "wav, mp3, flac, ogg or webm (Opus, Vorbis), m4a or aac (AAC-LC, ALAC), aiff";
/// Supported sample rates.
const RATE_MIN: u32 = 4_000;
const RATE_MAX: u32 = 384_000;
/// Maximum number of channels.
const CHANNELS_MAX: usize = 32;
/// Samples of a chunk: one second. A single packet may give more.
const CHUNK_SAMPLES: usize = SPEECH_RATE as usize;
/// Maximum bytes of tags, and of pictures in them, kept while a file is opened.
const TAGS_BYTES_MAX: usize = 64 << 10;
/// Length in a header from which on it counts as unknown, in bytes. Headers of streams are written before the
/// length is known.
const UNKNOWN_BYTES: f64 = 0x7fff_0000_u32 as f64;
/// Maximum consecutive malformed packets before the file is refused.
const BROKEN_PACKETS_MAX: u32 = 64;
/// Maximum consecutive packets of other tracks.
const SILENT_PACKETS_MAX: u32 = 1 << 20;
/// Seconds by which a file may be shorter than its header states: an encoder's delay that the header counts, or
/// a last packet.
const SHORT_S_MAX: f64 = 0.1;

/// Limits of a sound.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum bytes of the file.
    pub bytes_max: u64,
    /// Maximum seconds of sound.
    pub seconds_max: f64,
}

/// Information about a file besides its bytes.
#[derive(Clone, Debug, Default)]
pub struct Hint {
    /// Name of the file, whose extension matters.
    pub file_name: String,
    /// Media type, such as `audio/mpeg`.
    pub mime_type: String,
}

/// Properties of a sound.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    /// Short name of its container.
    pub format: &'static str,
    /// Name of its codec.
    pub codec: String,
    /// Original samples per second.
    pub rate: u32,
    /// Original number of channels; 0 if only the decoded sound tells.
    pub channels: usize,
    /// Length in seconds, if its header states it.
    pub seconds: Option<f64>,
}

/// Sound that is being decoded.
pub struct Sound {
    reader: Box<dyn FormatReader>,
    decoder: Decoder,
    track: u32,
    info: Info,
    limits: Limits,
    /// Length that the header promises, if the file must have it.
    promised: Option<f64>,
    /// Current rate, with the resampler to 16 kHz. A sound that changes its rate gets a new one.
    resampler: Option<(u32, Resampler)>,
    interleaved: Vec<f32>,
    mono: Vec<f32>,
    out: Vec<f32>,
    /// Samples decoded at the current rate, and seconds decoded at earlier rates.
    frames: u64,
    before_s: f64,
    ended: bool,
}

impl Sound {
    /// Opens a sound. Reads as much of it as needed to identify it.
    ///
    /// # Errors
    /// Any of [`SoundError`].
    pub fn open<R>(reader: R, hint: &Hint, limits: &Limits) -> Result<Sound, SoundError>
    where
        R: Read + Send + Sync + 'static,
    {
        let source = source::open(reader, limits.bytes_max)?;
        contained("sound", || Sound::of(source, hint, limits))?
    }

    fn of(source: SoundSource, hint: &Hint, limits: &Limits) -> Result<Sound, SoundError> {
        let SoundSource { head, media } = source;
        let stream = MediaSourceStream::new(media, MediaSourceStreamOptions::default());
        let tags = MetadataOptions::default()
            .limit_tag_bytes(Limit::Maximum(TAGS_BYTES_MAX))
            .limit_visual_bytes(Limit::Maximum(TAGS_BYTES_MAX));
        let reader = symphonia::default::get_probe()
            .probe(&probe_hint(hint), stream, FormatOptions::default(), tags)
            .map_err(|error| unopened(error, &head, limits.bytes_max))?;
        let format = reader.format_info().short_name;
        let track = reader.default_track(TrackType::Audio).or_else(|| reader.first_track(TrackType::Audio));
        let Some(track) = track else { return Err(SoundError::NoAudioTrack) };
        let Some(params) = track.codec_params.as_ref().and_then(|params| params.audio()) else {
            return Err(SoundError::NoAudioTrack);
        };
        let codec = codec_name(params);
        let rate = match params.codec {
            CODEC_ID_OPUS => 48_000,
            _ => params.sample_rate.unwrap_or(0),
        };
        let channels = params.channels.as_ref().map_or(0, |channels| channels.count());
        if rate != 0 {
            check(rate, channels.max(1))?;
        }
        let bytes_per_frame = channels.max(1) as f64 * f64::from(params.bits_per_sample.unwrap_or(16)) / 8.0;
        // A stream's header is written before its length is known.
        let is_known = |seconds: f64| {
            let bytes = seconds * f64::from(rate) * bytes_per_frame;
            seconds > 0.0 && !(format == "wave" && bytes >= UNKNOWN_BYTES)
        };
        let seconds = stated_seconds(track, rate).filter(|&seconds| is_known(seconds));
        if seconds.is_some_and(|seconds| seconds > limits.seconds_max) {
            return Err(SoundError::TooLong { max_s: limits.seconds_max });
        }
        let promised = seconds.filter(|_| ["wave", "flac", "isomp4"].contains(&format));
        let decoder = Decoder::new(params).map_err(|error| match error {
            NoDecoder::Unsupported => {
                let profile = if codec == "AAC" { " of a profile other than LC" } else { "" };
                SoundError::Codec { codec: format!("{codec}{profile}"), formats: FORMATS }
            }
            NoDecoder::Broken(reason) => SoundError::Broken { format, reason },
        })?;
        let track = track.id;
        let info = Info { format, codec, rate, channels, seconds };
        Ok(Sound {
            reader,
            decoder,
            track,
            info,
            limits: *limits,
            promised,
            resampler: None,
            interleaved: Vec::new(),
            mono: Vec::new(),
            out: Vec::new(),
            frames: 0,
            before_s: 0.0,
            ended: false,
        })
    }

    /// Properties of the sound.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Seconds decoded so far: all of them after the last chunk.
    pub fn seconds(&self) -> f64 {
        match &self.resampler {
            Some((rate, _)) => self.before_s + self.frames as f64 / f64::from(*rate),
            None => 0.0,
        }
    }

    /// Returns the next samples, 16 kHz mono. A chunk is one second, except the last, and unless a packet is
    /// longer. None at the end, and after an error.
    ///
    /// # Errors
    /// Any of [`SoundError`].
    pub fn next_chunk(&mut self) -> Result<Option<Vec<f32>>, SoundError> {
        let format = self.info.format;
        let chunk = contained(format, AssertUnwindSafe(|| self.fill()))?;
        if chunk.is_err() {
            self.ended = true;
            self.out.clear();
        }
        chunk
    }

    fn fill(&mut self) -> Result<Option<Vec<f32>>, SoundError> {
        while self.out.len() < CHUNK_SAMPLES && !self.ended {
            if !self.more()? {
                self.ended = true;
                if let Some((_, resampler)) = &mut self.resampler {
                    resampler.finish(&mut self.out);
                }
                if self.seconds() == 0.0 {
                    return Err(SoundError::Empty);
                }
                if let Some(said_s) = self.promised.filter(|said| self.seconds() + SHORT_S_MAX < *said) {
                    return Err(SoundError::Truncated { found_s: self.seconds(), said_s });
                }
            }
        }
        Ok(Some(std::mem::take(&mut self.out)).filter(|chunk| !chunk.is_empty()))
    }

    /// Decodes a packet. Returns false at the end.
    fn more(&mut self) -> Result<bool, SoundError> {
        let (mut broken, mut silent) = (0, 0);
        loop {
            let broken_file =
                |error: Error| SoundError::Broken { format: self.info.format, reason: error.to_string() };
            let packet = match self.reader.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => return Ok(false),
                Err(Error::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
                Err(Error::IoError(error)) => return Err(source::failed(error, self.limits.bytes_max)),
                // Chained streams: after the first follows another sound.
                Err(Error::ResetRequired) => return Ok(false),
                Err(Error::DecodeError(_)) if broken < BROKEN_PACKETS_MAX => {
                    broken += 1;
                    continue;
                }
                Err(error) => return Err(broken_file(error)),
            };
            if packet.track_id != self.track {
                silent += 1;
                if silent > SILENT_PACKETS_MAX {
                    return Err(broken_file(Error::LimitError("there is no sound between its pictures")));
                }
                continue;
            }
            match self.decoder.decode(&packet, &mut self.interleaved) {
                Ok((rate, channels)) => return self.take(rate, channels).map(|()| true),
                Err(Error::DecodeError(_) | Error::IoError(_)) if broken < BROKEN_PACKETS_MAX => broken += 1,
                Err(error) => return Err(broken_file(error)),
            }
        }
    }

    /// Mixes decoded samples to mono and resamples them.
    fn take(&mut self, rate: u32, channels: usize) -> Result<(), SoundError> {
        if self.interleaved.is_empty() {
            return Ok(());
        }
        check(rate, channels)?;
        self.mono.clear();
        let share = 1.0 / channels as f32;
        let finite = |sample: f32| if sample.is_finite() { sample.clamp(-8.0, 8.0) } else { 0.0 };
        let mixed = |frame: &[f32]| finite(frame.iter().sum::<f32>() * share);
        self.mono.extend(self.interleaved.chunks_exact(channels).map(mixed));
        if self.resampler.as_ref().is_none_or(|(known, _)| *known != rate) {
            (self.before_s, self.frames) = (self.seconds(), 0);
            if let Some((_, mut before)) = self.resampler.take() {
                before.finish(&mut self.out);
            }
            self.info.rate = rate;
            self.resampler = Some((rate, Resampler::new(rate, SPEECH_RATE)));
        }
        self.frames += self.mono.len() as u64;
        if self.seconds() > self.limits.seconds_max {
            return Err(SoundError::TooLong { max_s: self.limits.seconds_max });
        }
        self.info.channels = channels;
        if let Some((_, resampler)) = &mut self.resampler {
            resampler.push(&self.mono, &mut self.out);
        }
        Ok(())
    }
}

/// Error of a file that no format recognises, or that cannot be read. `head` is its first bytes.
fn unopened(error: Error, head: &[u8], bytes_max: u64) -> SoundError {
    match error {
        Error::IoError(error) if error.kind() != ErrorKind::UnexpectedEof => source::failed(error, bytes_max),
        // Neither the marks nor the end were those of a known format.
        error => match known_head(head) {
            Some(format) => SoundError::Broken { format, reason: error.to_string() },
            None => SoundError::UnknownFormat { formats: FORMATS },
        },
    }
}

/// Length of a track as its file states it. `rate` is in Hz, or 0 if unknown.
fn stated_seconds(track: &Track, rate: u32) -> Option<f64> {
    // In units of the container's clock, or in samples.
    let frames = track.num_frames.filter(|_| rate != 0).map(|frames| frames as f64 / f64::from(rate));
    frames.or_else(|| {
        let time = track.time_base?.calc_duration(track.duration?)?;
        Some(time.as_secs_f64())
    })
}

fn check(rate: u32, channels: usize) -> Result<(), SoundError> {
    if !(RATE_MIN..=RATE_MAX).contains(&rate) {
        return Err(SoundError::Rate { rate, min: RATE_MIN, max: RATE_MAX });
    }
    if !(1..=CHANNELS_MAX).contains(&channels) {
        return Err(SoundError::Channels { channels, max: CHANNELS_MAX });
    }
    Ok(())
}

/// Runs library code on untrusted bytes. A panic becomes an error of the file.
fn contained<T>(format: &'static str, work: impl FnOnce() -> T) -> Result<T, SoundError> {
    let work = AssertUnwindSafe(work);
    catch_unwind(work)
        .map_err(|_| SoundError::Broken { format, reason: "its parts contradict each other".to_owned() })
}

fn probe_hint(hint: &Hint) -> ProbeHint {
    let mut probe = ProbeHint::new();
    if let Some((_, end)) = hint.file_name.rsplit_once('.') {
        probe.with_extension(&end.to_ascii_lowercase());
    }
    if !hint.mime_type.is_empty() {
        let mime = hint.mime_type.split(';').next().unwrap_or_default();
        probe.mime_type(mime.trim());
    }
    probe
}

/// Format by the first bytes, for messages.
fn known_head(head: &[u8]) -> Option<&'static str> {
    let is = |at: usize, mark: &[u8]| head.get(at..at + mark.len()) == Some(mark);
    let known = [
        (is(0, b"RIFF") && is(8, b"WAVE"), "wave"),
        (is(0, b"fLaC"), "flac"),
        (is(0, b"OggS"), "ogg"),
        (is(0, &[0x1a, 0x45, 0xdf, 0xa3]), "webm"),
        (is(4, b"ftyp"), "mp4"),
        (is(0, b"FORM"), "aiff"),
        (is(0, b"ID3"), "mp3"),
    ];
    known.into_iter().find_map(|(is, name)| is.then_some(name))
}
