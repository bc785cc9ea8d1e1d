//! Quantisation of a model folder to a folder in MLX's layout, with matrices as affine groups. The runtime chooses
//! its tensors ([`FolderPlan`]). The folder is named `….part` until it is complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use half::{bf16, f16};
use hanzo_engine_kernels::cpu::{PoolTurn, ThreadPool};
use hanzo_engine_ops::DType;
use hanzo_engine_runtime::quantise::{Affine, FolderPlan, FolderTensor};
use hanzo_engine_runtime::safetensors;

use super::{QuantizeError, QuantizeOptions, QuantizeReport, Row, convert, threads};
use crate::inspect::locate;
use crate::limits::{QUANTIZED_WEIGHTS_AT_ONCE, SAFETENSORS_FILE_BYTES_MAX};

/// Bytes of a block's scale and bias, which precede its codes.
const FACTORS_BYTES: usize = 8;

pub(super) fn run(
    args: &QuantizeOptions,
    wanted: &Affine,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64),
) -> Result<QuantizeReport, QuantizeError> {
    let directory = locate(&args.model, args.store_dir.as_ref())?.filter(|path| path.is_dir());
    let directory = directory.ok_or_else(|| QuantizeError::NoFolder(args.model.clone()))?;
    let plan = FolderPlan::new(&directory, wanted)?;
    let report = report(args, &plan);
    let Some(path) = &args.output else { return Ok(report) };
    // An existing folder is never replaced, whatever is in it.
    if path.exists() {
        return Err(QuantizeError::Exists(path.clone()));
    }
    let failed = |source: io::Error| QuantizeError::Write { path: path.clone(), source };
    let part = UnfinishedFolder::new(path).map_err(failed)?;
    let mut turn = Arc::new(ThreadPool::new(threads(args))).turn();
    let shards = plan.shards(SAFETENSORS_FILE_BYTES_MAX);
    let mut index = serde_json::Map::new();
    for (number, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        let entries: Vec<_> = shard.iter().flat_map(FolderTensor::entries).collect();
        let mut out = BufWriter::new(File::create(part.path.join(&name)).map_err(failed)?);
        out.write_all(&safetensors::begin("mlx", &entries)).map_err(failed)?;
        for placed in *shard {
            let mut write = |bytes: &[u8]| out.write_all(bytes).map_err(failed);
            tensor(&mut turn, placed, stop, progress, &mut write)?;
            placed.tensor.bytes.release();
        }
        out.flush().and_then(|()| out.get_ref().sync_all()).map_err(failed)?;
        index.extend(entries.into_iter().map(|entry| (entry.name, name.clone().into())));
    }
    if shards.len() > 1 {
        let index = serde_json::json!({"metadata": {"total_size": report.size_bytes}, "weight_map": index});
        part.put("model.safetensors.index.json", &format!("{index:#}\n")).map_err(failed)?;
    }
    part.put("config.json", &plan.config).map_err(failed)?;
    for file in &plan.files {
        let name = file.file_name().unwrap_or_default();
        fs::copy(file, part.path.join(name)).map_err(failed)?;
    }
    part.finish().map_err(failed)?;
    Ok(report)
}

/// Writes one tensor: unchanged, or its codes, then its scales, then its biases.
fn tensor(
    turn: &mut PoolTurn,
    placed: &FolderTensor,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64),
    write: &mut dyn FnMut(&[u8]) -> Result<(), QuantizeError>,
) -> Result<(), QuantizeError> {
    let tensor = &placed.tensor;
    let columns = tensor.shape.last().copied().unwrap_or(1);
    let row_bytes = tensor.bytes.len() / (tensor.elements() / columns);
    let rows_bytes = (QUANTIZED_WEIGHTS_AT_ONCE / columns).max(1) * row_bytes;
    let factors = placed.factors();
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    for first in (0..tensor.bytes.len()).step_by(rows_bytes) {
        if stop.load(Ordering::Relaxed) {
            return Err(QuantizeError::Stopped);
        }
        let Some(rows) = tensor.bytes.slice(first..tensor.bytes.len().min(first + rows_bytes)) else {
            continue;
        };
        let rows = &rows.read()[..];
        match placed.to {
            None => write(rows)?,
            Some(to) => {
                let made;
                let blocks = if to == tensor.dtype {
                    rows
                } else {
                    let count = rows.len() / row_bytes;
                    made = convert(turn, tensor, rows, count, columns, to, None)?;
                    &made
                };
                let mut codes = Vec::with_capacity(blocks.len());
                for block in blocks.chunks_exact(to.block_bytes()) {
                    put(factors, &block[..4], &mut scales);
                    put(factors, &block[4..FACTORS_BYTES], &mut biases);
                    codes.extend_from_slice(&block[FACTORS_BYTES..]);
                }
                write(&codes)?;
            }
        }
        progress(rows.len() as u64);
    }
    write(&scales)?;
    write(&biases)
}

/// Appends a block's scale or bias in a float type.
fn put(dtype: DType, bytes: &[u8], out: &mut Vec<u8>) {
    let number = bytes.first_chunk().map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
    match dtype {
        DType::F16 => out.extend(f16::from_f32(number).to_le_bytes()),
        DType::BF16 => out.extend(bf16::from_f32(number).to_le_bytes()),
        _ => out.extend(bytes),
    }
}

fn report(args: &QuantizeOptions, plan: &FolderPlan) -> QuantizeReport {
    let mut report = QuantizeReport { file: args.output.clone(), ..QuantizeReport::default() };
    for placed in &plan.tensors {
        let tensor = &placed.tensor;
        report.add(
            Row {
                name: tensor.name.clone(),
                shape: tensor.shape.clone(),
                from: tensor.dtype.label(),
                to: placed.to.unwrap_or(tensor.dtype).label(),
                bytes: placed.bytes(),
            },
            tensor,
        );
    }
    report
}

/// Unfinished folder, removed on drop unless it was renamed before.
struct UnfinishedFolder {
    path: PathBuf,
    target: PathBuf,
    placed: bool,
}

impl UnfinishedFolder {
    fn new(target: &Path) -> io::Result<UnfinishedFolder> {
        let mut path = target.as_os_str().to_owned();
        path.push(".part");
        let path = PathBuf::from(path);
        // Remains of a killed run.
        if path.is_dir() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        Ok(UnfinishedFolder { path, target: target.to_owned(), placed: false })
    }

    fn put(&self, name: &str, text: &str) -> io::Result<()> {
        fs::write(self.path.join(name), text)
    }

    /// Renames the complete folder to its target.
    fn finish(mut self) -> io::Result<()> {
        fs::rename(&self.path, &self.target)?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for UnfinishedFolder {
    fn drop(&mut self) {
        if !self.placed {
            // The error cannot be reported here; the next run removes the folder.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::quantize::{QuantizeTarget, tests::args};

    fn affine(dtype: DType) -> Affine {
        Affine { dtype, keep_output: false, named: Vec::new(), requantize: false }
    }

    fn data(case: &str) -> String {
        format!("{}/../../tests/data/{case}", env!("CARGO_MANIFEST_DIR"))
    }

    fn made(case: &str, wanted: Affine, room: &Path) -> Result<QuantizeReport, QuantizeError> {
        let args = args(&data(case), QuantizeTarget::Affine(wanted), &room.join("out"));
        super::super::run(&args, &AtomicBool::new(false), |_| ())
    }

    /// Compares with MLX's own quantisation, tensor by tensor (`golden/make_mlx.py`).
    #[test]
    fn matrices_are_quantised_as_mlx_does() {
        let mut compared = 0;
        for text in include_str!("golden/mlx.txt").split("folder ").skip(1) {
            let mut lines = text.lines();
            let (case, dtype) = lines.next().unwrap().split_once(' ').unwrap();
            let dtype = *DType::ALL.iter().find(|known| known.label() == dtype).unwrap();
            let room = tempfile::tempdir().unwrap();
            made(case, affine(dtype), room.path()).unwrap();
            let tensors = safetensors::open(&room.path().join("out/model.safetensors")).unwrap();
            for line in lines {
                let [name, dtype, shape, digest] = *line.split(' ').collect::<Vec<_>>() else {
                    panic!("{line}")
                };
                let tensor =
                    tensors.iter().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("{name}"));
                let sizes: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
                let own: String =
                    Sha256::digest(&tensor.bytes[..]).iter().map(|b| format!("{b:02x}")).collect();
                let found = (tensor.dtype.label(), sizes.join("x"), own);
                assert_eq!(found, (dtype, shape.to_owned(), digest.to_owned()), "{case}: {name}");
                compared += 1;
            }
            assert_eq!(tensors.len(), text.lines().count() - 1, "{case}: no more tensors than MLX has");
        }
        assert!(compared > 150, "{compared} tensors");
    }

    /// The result can be loaded and has the requested types.
    #[test]
    fn what_is_written_loads() {
        let mut wanted = affine(DType::AFQ4_G32);
        wanted.named = vec![("layers.0.*o_proj".to_owned(), DType::AFQ8_G64)];
        for case in ["tiny/qwen3", "tiny/qwen3-moe", "tiny/mistral", "dense/gemma3"] {
            let room = tempfile::tempdir().unwrap();
            let report =
                made(case, wanted.clone(), room.path()).unwrap_or_else(|error| panic!("{case}: {error}"));
            let files = hanzo_engine_runtime::ModelFiles::open(&room.path().join("out")).unwrap();
            let types: Vec<DType> = files.tensors.all().map(|tensor| tensor.dtype).collect();
            for dtype in [DType::AFQ4_G32, DType::AFQ8_G64] {
                assert!(types.contains(&dtype), "{case}: {types:?}");
            }
            let on_disk = fs::metadata(room.path().join("out/model.safetensors")).unwrap().len();
            assert!(on_disk > report.size_bytes && on_disk < report.size_bytes + 16_384, "{case}");
            assert_eq!(fs::read_dir(room.path()).unwrap().count(), 1);
            let again = made(case, wanted.clone(), room.path()).unwrap_err();
            assert!(matches!(again, QuantizeError::Exists(_)), "{again}");
        }
    }

    #[test]
    fn what_cannot_be_written_is_refused_by_name() {
        let room = tempfile::tempdir().unwrap();
        for (case, part) in
            [("dense/phi3", "phi3"), ("tiny/mixtral", "mixtral"), ("multimodal/gemma3", "reads more")]
        {
            let error = made(case, affine(DType::AFQ4_G32), room.path()).unwrap_err().to_string();
            assert!(error.contains(part), "{case}: {error}");
        }
        let mut wanted = affine(DType::AFQ4_G32);
        wanted.named = vec![("nothing".to_owned(), DType::AFQ8_G64)];
        let error = made("tiny/qwen3", wanted, room.path()).unwrap_err().to_string();
        assert!(error.contains("nothing") && error.contains("no tensor"), "{error}");
        let error = made("formats/mlx-4", affine(DType::AFQ8_G32), room.path()).unwrap_err().to_string();
        assert!(error.contains("requantize"), "{error}");
        let error =
            made("tiny/qwen3/model.gguf", affine(DType::AFQ4_G32), room.path()).unwrap_err().to_string();
        assert!(error.contains("folder"), "{error}");
        assert_eq!(fs::read_dir(room.path()).unwrap().count(), 0);
    }

    /// Files have a bounded size, and the index maps each tensor to its file.
    #[test]
    fn tensors_are_cut_into_files() {
        let plan = FolderPlan::new(Path::new(&data("tiny/qwen3")), &affine(DType::AFQ4_G32)).unwrap();
        let all: u64 = plan.tensors.iter().map(FolderTensor::bytes).sum();
        let shards = plan.shards(all / 3);
        assert!(shards.len() >= 3 && shards.iter().all(|shard| !shard.is_empty()));
        let count: usize = shards.iter().map(|shard| shard.len()).sum();
        assert_eq!(count, plan.tensors.len());
        for shard in &shards {
            let bytes: u64 = shard.iter().map(FolderTensor::bytes).sum();
            assert!(bytes <= all / 3 || shard.len() == 1);
        }
        assert_eq!(plan.shards(all).len(), 1);
    }
}
