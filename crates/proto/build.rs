//! Compiles the contract with protox, a protobuf compiler in Rust, so that `protoc` is not needed.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let files = ["engine", "speech"].map(|name| root.join(format!("hanzo/engine/v1/{name}.proto")));
    for file in &files {
        println!("cargo:rerun-if-changed={}", file.display());
    }
    let descriptors = protox::compile(&files, [&root])?;
    fs::write(
        PathBuf::from(env::var("OUT_DIR")?).join("engine_descriptor.bin"),
        descriptors.encode_to_vec(),
    )?;
    tonic_prost_build::configure()
        .bytes(".")
        // Most parts are texts, and a part is as large as its largest variant.
        .boxed(".hanzo.engine.v1.ContentPart.part.media")
        .codec_path("crate::bounded::BoundedCodec")
        .compile_fds(descriptors)?;
    Ok(())
}
