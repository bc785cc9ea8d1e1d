//! Comparison with PyPI's kokoro 0.9.4 on random weights (`testdata/make_kokoro.py`).

use std::path::Path;
use std::sync::Arc;

use hanzo_engine_kernels::cpu::{ThreadPool, Tier};
use hanzo_engine_runtime::pytorch;

use super::*;

/// Signal-to-noise ratio in dB.
pub(crate) fn snr_db(right: &[f32], is: &[f32]) -> f64 {
    assert_eq!(right.len(), is.len(), "samples");
    let power =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x) * f64::from(x)).sum::<f64>();
    let off = power(&mut right.iter().zip(is).map(|(right, is)| right - is));
    10.0 * (power(&mut right.iter().copied()) / off).log10()
}

fn testdata(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

#[test]
fn sound_is_that_of_its_makers_package() {
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(testdata("kokoro.json")).unwrap()).unwrap();
    let settings = KokoroConfig::read("kokoro.json", &config).unwrap();
    let mut tensors = pytorch::open(&testdata("kokoro.pth")).unwrap();
    for tensor in &mut tensors {
        tensor.name = tensor.name.replacen(".module.", ".", 1);
    }
    let weights = Weights::new("kokoro.pth", &tensors);
    let golden = &config["golden"];
    let tokens: Vec<u32> = golden["phonemes"].as_str().unwrap().chars().map(|c| settings.vocab[&c]).collect();
    let voices = pytorch::open(&testdata("kokoro_voice.pt")).unwrap()[0].to_f32().unwrap();
    let width = 2 * settings.style;
    let style = &voices[(tokens.len() - 1) * width..][..width];
    let right: Vec<f32> = std::fs::read(testdata("kokoro.bin"))
        .unwrap()
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    let padded = [&[0], &tokens[..], &[0]].concat();
    let right_frames: Vec<usize> =
        golden["frames"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect();
    let (right_pitch, rest) = right.split_at(2 * right_frames.iter().sum::<usize>());
    let (right_loudness, right) = rest.split_at(right_pitch.len());
    let (sound, manner) = style.split_at(settings.style);
    for tier in Tier::available() {
        let mut device = Device::new(Arc::new(ThreadPool::new(2)), tier);
        let network = Kokoro::load(&device, &weights, &settings, &mut |_| ()).unwrap();
        device.reserve(1024, Kokoro::heads(&settings)).unwrap();
        let speed = golden["speed"].as_f64().unwrap() as f32;
        let mut plan = network.plan(&mut device, &padded, manner, speed).unwrap();
        assert_eq!(plan.frames, right_frames, "{tier}");
        for (right, is) in [(right_pitch, &mut plan.pitch), (right_loudness, &mut plan.loudness)] {
            let snr = snr_db(right, is);
            assert!(snr > 100.0, "{tier}: a curve of {snr:.1} dB");
            // A pitch error of 1e-6 is a phase error of a hundredth of a turn after a second, so the sounds are
            // compared for one pitch.
            is.copy_from_slice(right);
        }
        let mut noise = Noise::new(golden["seed"].as_u64().unwrap());
        let samples = network.sound(&mut device, &padded, &plan, sound, &mut noise).unwrap();
        let snr = snr_db(right, &samples);
        assert!(snr > 60.0, "{tier}: {snr:.1} dB");
        println!("{tier}: {snr:.1} dB");
    }
}
