//! Tests with every container and codec. `testdata/make_samples.py` writes a tone of 440 Hz that changes to
//! 1000 Hz in the middle. It must decode to those tones at the right times. Unsupported files must be refused
//! with the right reason.

use std::{
    io::{self, Cursor, Read},
    path::{Path, PathBuf},
};

use crate::{Hint, Info, Limits, Resampler, SPEECH_RATE, Sound, SoundError};

const LIMITS: Limits = Limits { bytes_max: 1 << 20, seconds_max: 60.0 };

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

/// Reader that returns a few bytes at a time, as a network does.
struct Drip(Cursor<Vec<u8>>, usize);

impl Read for Drip {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(self.1);
        self.0.read(&mut buffer[..most])
    }
}

fn decode(bytes: Vec<u8>, name: &str, limits: &Limits) -> Result<(Vec<f32>, Info, f64), SoundError> {
    let hint = Hint { file_name: name.to_owned(), mime_type: String::new() };
    let mut sound = Sound::open(Drip(Cursor::new(bytes), 700), &hint, limits)?;
    let mut samples = Vec::new();
    while let Some(chunk) = sound.next_chunk()? {
        assert!(!chunk.is_empty() && chunk.iter().all(|sample| sample.is_finite()));
        samples.extend(chunk);
    }
    Ok((samples, sound.info().clone(), sound.seconds()))
}

/// Share of the power that is at `hertz` between two times; 1 for a pure tone.
fn share(samples: &[f32], hertz: f64, from_s: f64, to_s: f64) -> f64 {
    let rate = f64::from(SPEECH_RATE);
    let range = (from_s * rate) as usize..(to_s * rate) as usize;
    let (mut sin, mut cos, mut all) = (0.0, 0.0, 0.0);
    for n in range.clone() {
        let (sample, angle) = (f64::from(samples[n]), std::f64::consts::TAU * hertz * n as f64 / rate);
        sin += sample * angle.sin();
        cos += sample * angle.cos();
        all += sample * sample;
    }
    2.0 * (sin * sin + cos * cos) / (range.len() as f64 * all)
}

/// Signal-to-noise ratio in dB between two times, compared with the encoded signal at 16 kHz.
fn signal_to_noise(samples: &[f32], seconds: f64, from_s: f64, to_s: f64) -> f64 {
    let rate = f64::from(SPEECH_RATE);
    let (mut signal, mut noise) = (0.0, 0.0);
    let range = (from_s * rate) as usize..(to_s * rate) as usize;
    for (sample, n) in samples[range.clone()].iter().zip(range) {
        let t = n as f64 / rate;
        let hertz = if t < seconds / 2.0 { 440.0 } else { 1000.0 };
        let truth = 0.4 * (std::f64::consts::TAU * hertz * t).sin();
        signal += truth * truth;
        noise += (f64::from(*sample) - truth).powi(2);
    }
    10.0 * (signal / noise).log10()
}

#[test]
fn every_format_comes_out_as_it_went_in() {
    // Name, codec, seconds, and the minimum signal-to-noise ratio in dB for formats that are exact to the
    // sample.
    let samples = [
        ("pcm_u8.wav", 0.5, 38.0),
        ("pcm_s16le.wav", 0.5, 60.0),
        ("pcm_s24le.wav", 0.5, 60.0),
        ("pcm_s32le.wav", 0.5, 60.0),
        ("pcm_f32le.wav", 0.5, 60.0),
        ("pcm_f64le.wav", 0.5, 60.0),
        ("pcm_mulaw.wav", 0.5, 30.0),
        ("pcm_alaw.wav", 0.5, 30.0),
        ("adpcm_ms.wav", 0.5, 20.0),
        ("adpcm_ima_wav.wav", 0.5, 20.0),
        ("stereo_48k.wav", 0.25, 60.0),
        ("pcm.aiff", 0.5, 60.0),
        ("mono.flac", 0.5, 60.0),
        ("stereo_44k.flac", 0.5, 60.0),
        ("alac.m4a", 0.5, 60.0),
        ("mono.mp3", 0.5, 20.0),
        ("stereo_44k.mp3", 0.5, 20.0),
        ("vorbis.ogg", 0.5, 20.0),
        ("vorbis.webm", 0.5, 20.0),
        ("opus.ogg", 0.5, 15.0),
        ("speech.opus", 0.5, 10.0),
        ("opus.webm", 0.5, 10.0),
        ("aac.m4a", 0.5, 15.0),
        ("index_first.m4a", 0.5, 15.0),
        ("aac.aac", 0.5, 15.0),
    ];
    let mut faults = Vec::new();
    for (name, seconds, least_db) in samples {
        let (samples, info, decoded_s) = match decode(file(name), name, &LIMITS) {
            Ok(decoded) => decoded,
            Err(error) => {
                faults.push(format!("{name}: {error}"));
                continue;
            }
        };
        let half = seconds / 2.0;
        let shares =
            [share(&samples, 440.0, 0.05, half - 0.05), share(&samples, 1000.0, half + 0.05, seconds - 0.03)];
        let db = signal_to_noise(&samples, seconds, 0.05, half - 0.05).min(signal_to_noise(
            &samples,
            seconds,
            half + 0.05,
            seconds - 0.05,
        ));
        println!("{name}: {info:?}, {decoded_s:.4} s, tones {shares:.4?}, {db:.1} dB");
        let long = samples.len() as f64 / f64::from(SPEECH_RATE);
        if (long - decoded_s).abs() > 1e-3 || (decoded_s - seconds).abs() > 0.15 {
            faults.push(format!("{name}: {long} s, of {decoded_s} s, of {seconds} s"));
        }
        if shares.iter().any(|share| *share < 0.97) || db < least_db {
            faults.push(format!("{name}: tones {shares:?}, {db:.1} dB"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn what_is_refused_is_said_by_name() {
    let refused = |bytes: Vec<u8>, name: &str| decode(bytes, name, &LIMITS).unwrap_err();
    assert!(matches!(refused(Vec::new(), "a.wav"), SoundError::Empty));
    for film in ["silent_film.mp4", "silent_film.webm"] {
        let error = refused(file(film), film);
        assert!(matches!(error, SoundError::NoAudioTrack), "{film}: {error}");
    }
    let error = refused(file("ac3.mp4"), "ac3.mp4");
    assert!(matches!(&error, SoundError::Codec { codec, .. } if codec == "AC-3"), "{error}");
    for text in ["<html>not found</html>".repeat(40), "{}".to_owned(), "\0".repeat(9000)] {
        let error = refused(text.into_bytes(), "a.mp3");
        assert!(matches!(error, SoundError::UnknownFormat { .. }), "{error}");
    }
    for (name, keep) in [("pcm_s16le.wav", 1000), ("stereo_48k.wav", 9000)] {
        let error = refused(file(name)[..keep].to_vec(), name);
        assert!(matches!(error, SoundError::Truncated { .. } | SoundError::Empty), "{name}: {error}");
    }
    // The index is at its end.
    let cut = file("aac.m4a")[..3000].to_vec();
    let error = refused(cut, "aac.m4a");
    assert!(matches!(error, SoundError::Broken { .. }), "{error}");
    let bytes = file("pcm_f64le.wav");
    let tight = Limits { bytes_max: 20_000, ..LIMITS };
    let error = decode(bytes.clone(), "a.wav", &tight).unwrap_err();
    assert!(matches!(error, SoundError::TooManyBytes { max: 20_000 }), "{error}");
    let error = decode(file("aac.m4a"), "a.m4a", &Limits { bytes_max: 2_000, ..LIMITS }).unwrap_err();
    assert!(matches!(error, SoundError::TooManyBytes { max: 2_000 }), "{error}");
    // Refused before decoding if the header states the length, otherwise during decoding.
    for name in ["pcm_f64le.wav", "mono.flac", "aac.m4a", "speech.opus", "mono.mp3", "vorbis.ogg"] {
        let short = Limits { seconds_max: 0.3, ..LIMITS };
        let error = decode(file(name), name, &short).unwrap_err();
        assert!(matches!(error, SoundError::TooLong { .. }), "{name}: {error}");
    }
    let mut fast = file("pcm_s16le.wav");
    fast[24..28].copy_from_slice(&1_000_000_u32.to_le_bytes());
    let error = refused(fast, "a.wav");
    assert!(matches!(error, SoundError::Rate { rate: 1_000_000, .. }), "{error}");
}

#[test]
fn a_stream_of_unknown_length_is_taken_as_it_comes() {
    let mut stream = file("pcm_s16le.wav");
    let data = stream.windows(4).position(|word| word == b"data").unwrap() + 4;
    for length in [u32::MAX, 0x7fff_ff00] {
        stream[data..data + 4].copy_from_slice(&length.to_le_bytes());
        stream[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let (_, _, seconds) = decode(stream.clone(), "", &LIMITS).unwrap();
        assert!((seconds - 0.5).abs() < 1e-9, "{seconds}");
    }
}

/// Gain in dB of a tone of `hertz` after resampling, from its root mean square, far from the edges.
fn gain_db(from: u32, hertz: f64) -> f64 {
    let mut resampler = Resampler::new(from, SPEECH_RATE);
    let tone = |n: u32| (std::f64::consts::TAU * hertz * f64::from(n) / f64::from(from)).sin() as f32;
    let (sound, mut out): (Vec<f32>, Vec<f32>) = ((0..from).map(tone).collect(), Vec::new());
    for piece in sound.chunks(997) {
        resampler.push(piece, &mut out);
    }
    resampler.finish(&mut out);
    assert_eq!(out.len(), SPEECH_RATE as usize, "a second of {from} Hz");
    let middle = &out[4000..12_000];
    let power = middle.iter().map(|sample| f64::from(*sample).powi(2)).sum::<f64>() / middle.len() as f64;
    10.0 * (2.0 * power).max(1e-30).log10()
}

#[test]
fn what_can_be_heard_stays_and_what_would_fold_goes() {
    for from in [8_000, 11_025, 22_050, 32_000, 44_100, 47_999, 48_000, 96_000, 192_000] {
        let nyquist = f64::from(from.min(SPEECH_RATE)) / 2.0;
        for share in [0.01, 0.3, 0.7, 0.9, 0.92] {
            let gain = gain_db(from, share * nyquist);
            assert!(gain.abs() < 0.01, "{from} Hz: {} Hz is {gain} dB", share * nyquist);
        }
        // Tones above half of the new rate, which would alias.
        for hertz in [8_001.0, 9_000.0, 12_000.0, 20_000.0] {
            if from > SPEECH_RATE && hertz < f64::from(from) / 2.0 {
                let gain = gain_db(from, hertz);
                assert!(gain < -90.0, "{from} Hz: {hertz} Hz is {gain} dB");
            }
        }
    }
}

#[test]
fn a_resampled_sound_is_where_it_was() {
    for from in [8_000_u32, 11_025, 44_100, 47_999, 48_000, 192_000] {
        let at = |n: u32, rate: u32| {
            // A burst around 0.4 s.
            let t = f64::from(n) / f64::from(rate) - 0.4;
            ((-(t / 0.002).powi(2)).exp() * (std::f64::consts::TAU * 1000.0 * t).cos()) as f32
        };
        let sound: Vec<f32> = (0..from).map(|n| at(n, from)).collect();
        let (mut resampler, mut out) = (Resampler::new(from, SPEECH_RATE), Vec::new());
        resampler.push(&sound, &mut out);
        resampler.finish(&mut out);
        let worst = out.iter().zip(0..).map(|(got, n)| (got - at(n, SPEECH_RATE)).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{from} Hz: {worst}");
    }
}
