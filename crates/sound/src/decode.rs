//! From a file's bytes, as they come, to chunks of 16 kHz mono. What a header promises is checked before anything is
//! decoded, what is decoded is counted as it goes, and a packet that cannot be decoded costs its own time and no other's.

use std::{
    io::{ErrorKind, Read},
    panic::{AssertUnwindSafe, catch_unwind},
};

use symphonia::core::{
    codecs::audio::well_known::CODEC_ID_OPUS,
    common::Limit,
    errors::Error,
    formats::{FormatOptions, FormatReader, TrackType, probe::Hint as ProbeHint},
    io::{MediaSourceStream, MediaSourceStreamOptions},
    meta::MetadataOptions,
};

use crate::{
    Resampler, SPEECH_RATE,
    codec::{Decoder, NoDecoder, codec_name},
    error::SoundError,
    source::{self, Source},
};

/// The formats that are read, for messages.
pub(crate) const FORMATS: &str =
    "wav, mp3, flac, ogg or webm (Opus, Vorbis), m4a or aac (AAC-LC, ALAC), aiff";
/// Sample rates that are taken.
const RATE_MIN: u32 = 4_000;
const RATE_MAX: u32 = 384_000;
/// Channels that are taken.
const CHANNELS_MAX: usize = 32;
/// Samples of a chunk: a second. What one packet makes may be more.
const CHUNK_SAMPLES: usize = SPEECH_RATE as usize;
/// Bytes of tags, and of pictures among them, that are kept while a file is opened.
const TAGS_BYTES_MAX: usize = 64 << 10;
/// A header's length that is at least this many bytes was not known when it was written.
const UNKNOWN_BYTES: f64 = 0x7fff_0000_u32 as f64;
/// Packets that may be malformed in a row before the file is.
const BROKEN_PACKETS_MAX: u32 = 64;
/// Packets without sound in a row: other tracks' between those of this one.
const SILENT_PACKETS_MAX: u32 = 1 << 20;
/// What a file may be shorter than it says: an encoder's delay that its header counts, a last packet.
const SHORT_S_MAX: f64 = 0.1;

/// What a sound may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the file.
    pub bytes_max: u64,
    /// Seconds of sound.
    pub seconds_max: f64,
}

/// What is said of a file beside its bytes.
#[derive(Clone, Debug, Default)]
pub struct Hint {
    /// Its name; the end of it counts.
    pub file_name: String,
    /// Its type, such as `audio/mpeg`.
    pub mime_type: String,
}

/// What a sound is.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    /// Its container, by a short name.
    pub format: &'static str,
    /// Its codec.
    pub codec: String,
    /// Samples per second, as they were.
    pub rate: u32,
    /// Channels, as they were; 0 where only the sound itself says it.
    pub channels: usize,
    /// How long it is, where its header says it.
    pub seconds: Option<f64>,
}

/// A sound that is being decoded.
pub struct Sound {
    reader: Box<dyn FormatReader>,
    decoder: Decoder,
    track: u32,
    info: Info,
    limits: Limits,
    /// What its header says that there is, where that has to be there.
    promised: Option<f64>,
    /// Its rate, and what brings it to 16 kHz; a sound that changes its rate gets another.
    resampler: Option<(u32, Resampler)>,
    interleaved: Vec<f32>,
    mono: Vec<f32>,
    out: Vec<f32>,
    /// Samples decoded at this rate, and seconds at others before it.
    frames: u64,
    before_s: f64,
    ended: bool,
}

impl Sound {
    /// Opens a sound: reads as much of it as says what it is.
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

    fn of(source: Source, hint: &Hint, limits: &Limits) -> Result<Sound, SoundError> {
        let Source { head, media } = source;
        let stream = MediaSourceStream::new(media, MediaSourceStreamOptions::default());
        let tags = MetadataOptions::default()
            .limit_tag_bytes(Limit::Maximum(TAGS_BYTES_MAX))
            .limit_visual_bytes(Limit::Maximum(TAGS_BYTES_MAX));
        let reader = symphonia::default::get_probe()
            .probe(&probe_hint(hint), stream, FormatOptions::default(), tags)
            .map_err(|error| match error {
                Error::IoError(error) if error.kind() != ErrorKind::UnexpectedEof => {
                    source::failed(error, limits.bytes_max)
                }
                // Neither its marks nor its end were as those of a known format.
                error => match known_head(&head) {
                    Some(format) => SoundError::Broken { format, reason: error.to_string() },
                    None => SoundError::UnknownFormat { formats: FORMATS },
                },
            })?;
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
        // In units of the container's clock, or in samples.
        let frames = track.num_frames.filter(|_| rate != 0).map(|frames| frames as f64 / f64::from(rate));
        let seconds = frames.or_else(|| {
            let time = track.time_base?.calc_duration(track.duration?)?;
            Some(time.as_secs_f64())
        });
        // A stream's header is written before its length is known.
        let bytes_per_frame = channels.max(1) as f64 * f64::from(params.bits_per_sample.unwrap_or(16)) / 8.0;
        let is_known = |seconds: f64| {
            let bytes = seconds * f64::from(rate) * bytes_per_frame;
            seconds > 0.0 && !(format == "wave" && bytes >= UNKNOWN_BYTES)
        };
        let seconds = seconds.filter(|&seconds| is_known(seconds));
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

    /// What it is.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Seconds decoded so far; all of them, once there is no chunk any more.
    pub fn seconds(&self) -> f64 {
        match &self.resampler {
            Some((rate, _)) => self.before_s + self.frames as f64 / f64::from(*rate),
            None => 0.0,
        }
    }

    /// The next samples, 16 kHz, of one channel; a second of them, but for the last and where a packet is longer. None: it
    /// has ended. After an error there are no more.
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

    /// Decodes a packet. Whether there was one.
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
                // Streams that follow each other: what is behind the first is another sound.
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

    /// Takes what was decoded.
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

fn check(rate: u32, channels: usize) -> Result<(), SoundError> {
    if !(RATE_MIN..=RATE_MAX).contains(&rate) {
        return Err(SoundError::Rate { rate, min: RATE_MIN, max: RATE_MAX });
    }
    if !(1..=CHANNELS_MAX).contains(&channels) {
        return Err(SoundError::Channels { channels, max: CHANNELS_MAX });
    }
    Ok(())
}

/// Runs what a library makes of a stranger's bytes: where it panics the file is refused, and nothing else happens.
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

/// The format that first bytes are of, for messages.
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
