//! Older binary format of llama-imatrix: `entries i32, [length i32, name, calls i32, values i32, f32 ...]`, the
//! number of chunks, and the text's name; little endian. Each value is the mean of a column's squares multiplied by
//! the calls.

use std::{
    fs,
    io::{self, Write},
};

use super::{ImatrixError, ImatrixOptions, Tensors};

/// Writes the file under a temporary name and renames it when it is complete.
pub(super) fn write(args: &ImatrixOptions, chunks: usize, met: &Tensors<'_>) -> Result<(), ImatrixError> {
    let failed = |source: io::Error| ImatrixError::Write { path: args.output.clone(), source };
    let mut part = args.output.clone().into_os_string();
    part.push(".part");
    let made = fs::File::create(&part).and_then(|mut file| {
        file.write_all(&bytes(args, chunks, met)?)?;
        file.sync_all()?;
        hanzo_engine_files::rename_over(part.as_ref(), &args.output)
    });
    made.map_err(|source| {
        let _ = fs::remove_file(&part);
        failed(source)
    })
}

fn bytes(args: &ImatrixOptions, chunks: usize, met: &Tensors<'_>) -> io::Result<Vec<u8>> {
    let number = |number: usize| i32::try_from(number).map(i32::to_le_bytes).map_err(io::Error::other);
    let known: Vec<_> =
        met.iter().filter(|(_, matrices)| matrices.values().any(|met| met.rows > 0)).collect();
    let mut bytes = number(known.len())?.to_vec();
    for (name, matrices) in known {
        let rows = matrices.values().map(|met| met.rows).max().unwrap_or_default();
        let calls = rows.div_ceil(args.chunk_tokens.max(1) as u64);
        let values: usize = matrices.values().map(|met| met.squares.len()).sum();
        bytes.extend(number(name.len())?);
        bytes.extend(name.as_bytes());
        bytes.extend(number(calls as usize)?);
        bytes.extend(number(values)?);
        for met in matrices.values() {
            // For a matrix without input, every column has the same weight.
            let mean = |sum: &f64| if met.rows == 0 { 1.0 } else { sum / met.rows as f64 };
            bytes
                .extend(met.squares.iter().flat_map(|sum| ((mean(sum) * calls as f64) as f32).to_le_bytes()));
        }
    }
    bytes.extend(number(chunks)?);
    bytes.extend(number(args.dataset.len())?);
    bytes.extend(args.dataset.as_bytes());
    Ok(bytes)
}
