//! Packs `ptx/kernels.ptx`, which is text of some MB, for `src/driver.rs`.

use std::path::PathBuf;
use std::{env, error::Error, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let ptx = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("ptx/kernels.ptx");
    println!("cargo:rerun-if-changed={}", ptx.display());
    let packed = miniz_oxide::deflate::compress_to_vec(&fs::read(ptx)?, 9);
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("kernels.ptx.deflated"), packed)?;
    Ok(())
}
