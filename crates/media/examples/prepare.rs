//! How long a picture takes from its file's bytes to what a tower sees, by the settings of a processor:
//! `cargo run --release -p hanzo-engine-media --example prepare -- PICTURE PREPROCESSOR_CONFIG [ROUNDS]`.

use std::time::Instant;

use hanzo_engine_media::{Limits, PictureOptions, Processor, decode};

/// The median of some times, in milliseconds.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(picture), Some(settings)) = (args.next(), args.next()) else {
        return Err("usage: prepare PICTURE PREPROCESSOR_CONFIG [ROUNDS]".into());
    };
    let rounds: usize = args.next().map_or(Ok(9), |rounds| rounds.parse())?;
    let bytes = std::fs::read(&picture)?;
    let processor = Processor::from_config(&serde_json::from_slice(&std::fs::read(settings)?)?)?;
    let (mut decoding, mut preparing, mut shape) = (Vec::new(), Vec::new(), String::new());
    for _ in 0..rounds.max(1) {
        let began = Instant::now();
        let decoded = decode(&bytes, &Limits::default())?;
        decoding.push(began.elapsed().as_secs_f64() * 1e3);
        let from = format!("{} x {}", decoded.width, decoded.height);
        let began = Instant::now();
        let prepared = processor.prepare(decoded, PictureOptions::default())?;
        preparing.push(began.elapsed().as_secs_f64() * 1e3);
        let frames = prepared.frames.iter().map(|frame| format!("{} x {}", frame.width, frame.height));
        shape = format!("{from} as {}", frames.collect::<Vec<_>>().join(", "));
    }
    let [decoding, preparing] = [decoding, preparing].map(median);
    println!("{picture}: {shape}: decoded in {decoding:.1} ms, prepared in {preparing:.1}, {rounds} rounds");
    Ok(())
}
