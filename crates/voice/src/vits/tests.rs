//! Comparison with transformers' `VitsModel` on random weights, with the same noise (`testdata/make_vits.py`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hanzo_engine_kernels::cpu::{ThreadPool, Tier};
use hanzo_engine_runtime::Network;
use hanzo_engine_runtime::OpenedModel;

use super::*;
use crate::kokoro::snr_db;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

fn files(path: &Path) -> VoiceFiles {
    match OpenedModel::open(path).unwrap().network {
        Network::Voice(files) => files,
        _ => panic!("{} is no model that speaks", path.display()),
    }
}

fn config(files: &VoiceFiles) -> VitsConfig {
    VitsConfig::read(files, &Weights::new("golden", &files.tensors)).unwrap()
}

/// Sound of the golden symbols, on a CPU tier.
fn said(
    files: &VoiceFiles,
    config: &VitsConfig,
    golden: &serde_json::Value,
    speaker: &[f32],
    tier: Tier,
) -> Vec<f32> {
    let weights = Weights::new("golden", &files.tensors);
    let mut device = Device::new(Arc::new(ThreadPool::new(2)), tier);
    let network = Vits::load(&device, files, &weights, config, &mut |_| ()).unwrap();
    device.reserve(1024, Vits::heads()).unwrap();
    let ids: Vec<u32> =
        golden["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let mut noise = Noise::new(golden["seed"].as_u64().unwrap());
    network.speak(&mut device, &ids, speaker, 1.0, &mut noise).unwrap()
}

fn right(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(testdata(name).join("golden.bin")).unwrap();
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn sound_is_that_of_transformers() {
    for (name, speaker) in [("vits", None), ("vits_many", Some(2))] {
        let files = files(&testdata(name));
        let golden = files.config["golden"].clone();
        let speaker: Vec<f32> = speaker.map_or_else(Vec::new, |row| {
            let table = files.tensors.iter().find(|tensor| tensor.name == "embed_speaker.weight").unwrap();
            let width = table.shape[1];
            table.to_f32().unwrap()[row * width..(row + 1) * width].to_vec()
        });
        let right = right(name);
        for tier in Tier::available() {
            let snr = snr_db(&right, &said(&files, &config(&files), &golden, &speaker, tier));
            assert!(snr > 60.0, "{name}, {tier}: {snr:.1} dB");
            println!("{name}, {tier}: {snr:.1} dB");
        }
    }
}

#[test]
fn pipers_file_is_the_same_network() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("voice.onnx");
    std::fs::copy(testdata("vits_piper.onnx"), &path).unwrap();
    let original = files(&testdata("vits"));
    let settings = serde_json::json!({
        "audio": {"sample_rate": 16_000},
        "inference": {"noise_scale": 0.6, "noise_w": 0.7, "length_scale": 1.0 / 0.9},
        "phoneme_id_map": {"_": [0], "^": [1], "$": [2], "a": [3]},
        "num_speakers": 1,
    });
    std::fs::write(dir.path().join("voice.onnx.json"), settings.to_string()).unwrap();
    let files = files(&path);
    // Dilations are not in the tensors. Piper's are fixed, but this model has others.
    let expected = config(&original);
    let config = VitsConfig { block_dilations: expected.block_dilations.clone(), ..config(&files) };
    assert_eq!(config, expected);
    let snr = snr_db(&right("vits"), &said(&files, &config, &original.config["golden"], &[], Tier::Portable));
    assert!(snr > 60.0, "{snr:.1} dB");
}
