//! Packet decoders: those of the container library, and Opus, which the library lacks.

use opus_decoder::{OpusDecoder, OpusMultistreamDecoder};
use symphonia::core::{
    codecs::audio::{
        AudioCodecParameters, AudioDecoder, AudioDecoderOptions, CODEC_ID_NULL_AUDIO,
        well_known::{CODEC_ID_OPUS, *},
    },
    errors::Error,
    packet::Packet,
};

/// Maximum samples per channel of an Opus packet: 120 ms.
const OPUS_FRAMES_MAX: usize = 5760;
/// Sample rate at which Opus is decoded.
const OPUS_RATE: u32 = 48_000;
/// Samples per channel in an AAC frame.
const AAC_FRAMES: usize = 1024;
/// Bytes of Opus's header for one stream.
const OPUS_HEAD_BYTES: usize = 19;

/// Decoder of one track.
pub(crate) enum Decoder {
    /// Decoder of the library, and the number of samples still to skip at the start.
    Library(Box<dyn AudioDecoder>, usize),
    Opus(Opus),
}

/// Opus decoder, for one stream or several.
pub(crate) struct Opus {
    streams: Streams,
    channels: usize,
    /// Samples still to skip at the start.
    skip: usize,
    pcm: Vec<f32>,
}

enum Streams {
    One(Box<OpusDecoder>),
    Several(OpusMultistreamDecoder),
}

/// Reason why there is no decoder.
pub(crate) enum NoDecoder {
    Unsupported,
    Broken(String),
}

impl Decoder {
    /// Creates the decoder for a track.
    pub(crate) fn new(track: &AudioCodecParameters) -> Result<Decoder, NoDecoder> {
        if track.codec == CODEC_ID_OPUS {
            return Opus::new(track).map(Decoder::Opus);
        }
        let made =
            symphonia::default::get_codecs().make_audio_decoder(track, &AudioDecoderOptions::default());
        // AAC decoders output the first sound one frame late, whatever the encoder.
        let late = if track.codec == CODEC_ID_AAC { AAC_FRAMES } else { 0 };
        made.map(|decoder| Decoder::Library(decoder, late)).map_err(|error| match error {
            Error::Unsupported(_) => NoDecoder::Unsupported,
            error => NoDecoder::Broken(error.to_string()),
        })
    }

    /// Decodes a packet into interleaved samples in `out`. Returns the rate and the number of channels, or the
    /// packet's error.
    pub(crate) fn decode(&mut self, packet: &Packet, out: &mut Vec<f32>) -> Result<(u32, usize), Error> {
        out.clear();
        match self {
            Decoder::Library(decoder, late) => {
                let buffer = decoder.decode(packet)?;
                buffer.copy_to_vec_interleaved(out);
                let channels = buffer.spec().channels().count();
                let leaves = (*late).min(buffer.frames());
                *late -= leaves;
                out.drain(..leaves * channels);
                Ok((buffer.spec().rate(), channels))
            }
            Decoder::Opus(opus) => opus.decode(packet, out),
        }
    }
}

impl Opus {
    fn new(track: &AudioCodecParameters) -> Result<Opus, NoDecoder> {
        let broken = |reason: &str| NoDecoder::Broken(reason.to_owned());
        let head = track.extra_data.as_deref().unwrap_or_default();
        if head.len() < OPUS_HEAD_BYTES || !head.starts_with(b"OpusHead") {
            return Err(broken("there is no Opus header"));
        }
        let channels = usize::from(head[9]);
        let pre_skip = usize::from(u16::from_le_bytes([head[10], head[11]]));
        let failed = |error: opus_decoder::OpusError| NoDecoder::Broken(error.to_string());
        let streams = match (head[18], channels) {
            (0, 1 | 2) => Streams::One(Box::new(OpusDecoder::new(OPUS_RATE, channels).map_err(failed)?)),
            (1, 1..=8) => {
                let Some([streams, coupled, mapping @ ..]) = head.get(OPUS_HEAD_BYTES..) else {
                    return Err(broken("the Opus header is cut"));
                };
                let mapping = mapping.get(..channels).ok_or_else(|| broken("the Opus header is cut"))?;
                let (streams, coupled) = (usize::from(*streams), usize::from(*coupled));
                if streams > channels {
                    return Err(broken("the Opus header has more streams than channels"));
                }
                let made = OpusMultistreamDecoder::new(OPUS_RATE, channels, streams, coupled, mapping);
                Streams::Several(made.map_err(failed)?)
            }
            _ => return Err(NoDecoder::Unsupported),
        };
        Ok(Opus { streams, channels, skip: pre_skip, pcm: Vec::new() })
    }

    fn decode(&mut self, packet: &Packet, out: &mut Vec<f32>) -> Result<(u32, usize), Error> {
        let spec = (OPUS_RATE, self.channels);
        if packet.data.is_empty() {
            return Ok(spec);
        }
        self.pcm.resize(OPUS_FRAMES_MAX * self.channels, 0.0);
        let decoded = match &mut self.streams {
            Streams::One(decoder) => decoder.decode_float(&packet.data, &mut self.pcm, false),
            Streams::Several(decoder) => decoder.decode_float(&packet.data, &mut self.pcm, false),
        };
        let frames = decoded.map_err(|_| Error::DecodeError("a packet of Opus is malformed"))?;
        // Some containers state for packets what the header states for the stream.
        let start = usize::try_from(packet.trim_start.get()).unwrap_or(frames).max(self.skip);
        let end = usize::try_from(packet.trim_end.get()).unwrap_or(frames);
        self.skip = self.skip.saturating_sub(frames);
        let end = frames.saturating_sub(end);
        let start = start.min(end);
        out.extend_from_slice(&self.pcm[start * self.channels..end * self.channels]);
        Ok(spec)
    }
}

/// Name of a codec.
pub(crate) fn codec_name(track: &AudioCodecParameters) -> String {
    let known = match track.codec {
        CODEC_ID_OPUS => "Opus",
        CODEC_ID_AAC => "AAC",
        CODEC_ID_ALAC => "ALAC",
        CODEC_ID_VORBIS => "Vorbis",
        CODEC_ID_FLAC => "FLAC",
        CODEC_ID_MP3 => "MP3",
        CODEC_ID_SPEEX => "Speex",
        CODEC_ID_AC3 => "AC-3",
        CODEC_ID_EAC3 => "E-AC-3",
        CODEC_ID_AC4 => "AC-4",
        CODEC_ID_DCA => "DTS",
        CODEC_ID_TRUEHD => "TrueHD",
        CODEC_ID_WMA => "WMA",
        CODEC_ID_ADPCM_G722 => "G.722",
        CODEC_ID_ADPCM_G726 | CODEC_ID_ADPCM_G726LE => "G.726",
        CODEC_ID_ADPCM_MS => "ADPCM",
        CODEC_ID_ADPCM_IMA_WAV | CODEC_ID_ADPCM_IMA_QT => "IMA ADPCM",
        CODEC_ID_WAVPACK => "WavPack",
        CODEC_ID_MONKEYS_AUDIO => "Monkey's Audio",
        CODEC_ID_TTA => "TTA",
        CODEC_ID_NULL_AUDIO => "a codec without a name",
        other => return format!("codec {other}"),
    };
    known.to_owned()
}
