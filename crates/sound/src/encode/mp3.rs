//! MP3 encoder, based on shine (github.com/toots/shine, in Rust): fixed-point, constant bit rate. Its state
//! must not leave the thread that created it, so each file has a thread, which ends with it.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use shine_rs::mp3_encoder::{Mp3Encoder, Mp3EncoderConfig, StereoMode};

use super::CannotEncode;

/// Bit rate for mono, enough for speech.
const KBIT_PER_S: u32 = 64;

pub(super) struct Mp3 {
    samples: SyncSender<Vec<i16>>, // empty: end of the sound
    bytes: Receiver<Vec<u8>>,
}

impl Mp3 {
    pub(super) fn new(sample_rate: u32) -> Result<Mp3, CannotEncode> {
        let config = Mp3EncoderConfig::new()
            .sample_rate(sample_rate)
            .bitrate(KBIT_PER_S)
            .channels(1)
            .stereo_mode(StereoMode::Mono);
        let cannot = |error: String| CannotEncode(format!("no mp3 of {sample_rate} Hz: {error}"));
        config.validate().map_err(|error| cannot(error.to_string()))?;
        let (samples, given) = sync_channel::<Vec<i16>>(0);
        let (made, bytes) = sync_channel(0);
        let run = move || {
            let Ok(mut encoder) = Mp3Encoder::new(config) else { return };
            for samples in given {
                let frames = match samples.is_empty() {
                    true => encoder.finish().map(|last| vec![last]),
                    false => encoder.encode_interleaved(&samples),
                };
                let Ok(frames) = frames else { return };
                if made.send(frames.concat()).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("mp3".to_owned()).spawn(run);
        thread.map_err(|error| cannot(error.to_string()))?;
        Ok(Mp3 { samples, bytes })
    }

    pub(super) fn push(&self, samples: Vec<i16>) -> Vec<u8> {
        if samples.is_empty() { Vec::new() } else { self.ask(samples) }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.ask(Vec::new())
    }

    /// Returns nothing once the encoder has failed.
    fn ask(&self, samples: Vec<i16>) -> Vec<u8> {
        let sent = self.samples.send(samples);
        sent.ok().and_then(|()| self.bytes.recv().ok()).unwrap_or_default()
    }
}
