//! Quantisation of a GGUF file or a model folder, to a GGUF file or to a folder in MLX's layout. The runtime
//! chooses each tensor's type ([`hanzo_engine_runtime::quantise`]); the kernels do the arithmetic.

mod folder;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::available_parallelism,
};

use hanzo_engine_kernels::cpu::{PoolTurn, ThreadPool, requantize};
pub use hanzo_engine_ops::DType;
pub use hanzo_engine_runtime::quantise::{Affine, MIXES, Mix, QuantiseOptions};
use hanzo_engine_runtime::{
    LoadError, convert,
    gguf::{self, Gguf, TensorEntry, Writer},
    mapped::ModelBytes,
    quantise::{Importance, Plan},
    tensor::Tensor,
};
use serde::Serialize;

use crate::{
    DEMO_GGUF, DEMO_MODEL,
    inspect::{InspectError, locate},
    limits::QUANTIZED_WEIGHTS_AT_ONCE,
};

/// Arguments of a quantisation.
#[derive(Clone, Debug)]
pub struct QuantizeOptions {
    /// Name in the store, [`crate::DEMO_MODEL`], or a path.
    pub model: String,
    /// Directory of the store; `None` for the default one. Not opened if `model` is a path.
    pub store_dir: Option<PathBuf>,
    /// Path of the new file; `None` only reports what would be made.
    pub output: Option<PathBuf>,
    /// Format and types of the result.
    pub target: QuantizeTarget,
    /// Path of an importance matrix of the model, in llama-imatrix's format.
    pub importance: Option<PathBuf>,
    /// Compute threads; `None` for one per core.
    pub threads: Option<usize>,
}

/// Format and types of the result.
#[derive(Clone, Debug)]
pub enum QuantizeTarget {
    /// A GGUF file.
    Mix(QuantiseOptions),
    /// Folder in MLX's layout.
    Affine(Affine),
}

/// Result of a quantisation, or its preview.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct QuantizeReport {
    /// Path of the new file.
    pub file: Option<PathBuf>,
    /// Size of all tensors before, in bytes.
    pub source_bytes: u64,
    /// Size of all tensors now, in bytes.
    pub size_bytes: u64,
    /// Number of weights in all tensors.
    pub parameters: u64,
    /// Average bits per weight now.
    pub bits_per_weight: f64,
    /// Tensors in the order of the new file.
    pub tensors: Vec<Row>,
}

/// Tensor in a [`QuantizeReport`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the tensor.
    pub name: String,
    /// Shape, with the outermost dimension first.
    pub shape: Vec<usize>,
    /// Type before.
    pub from: &'static str,
    /// Type now.
    pub to: &'static str,
    /// Size now, in bytes.
    pub bytes: u64,
}

/// Reason why a file cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The model argument resolves to nothing.
    #[error(transparent)]
    Model(#[from] InspectError),
    /// The source cannot be read, or cannot be converted as requested.
    #[error(transparent)]
    Source(#[from] LoadError),
    /// The directory holds no model, or several.
    #[error("{} holds neither one GGUF file nor a config.json: give the path of a GGUF file, or of a model's folder", .0.display())]
    Directory(PathBuf),
    /// The new file would overwrite its source.
    #[error("{} is what it would be made of: give another file to make", .0.display())]
    Itself(PathBuf),
    /// The output folder exists already.
    #[error("{} is there already: give a folder to make", .0.display())]
    Exists(PathBuf),
    /// The source is not a folder, which the folder format requires.
    #[error("{0} is no folder with a config.json, of which alone a folder of AFQ can be made")]
    NoFolder(String),
    /// The work was interrupted.
    #[error("interrupted")]
    Stopped,
    /// The new file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Path of the new file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Runs the quantisation. `progress` receives the number of source bytes processed since its last call. Once `stop`
/// is set, the new file is removed.
///
/// # Errors
/// [`QuantizeError`].
pub fn run(
    args: &QuantizeOptions,
    stop: &AtomicBool,
    mut progress: impl FnMut(u64),
) -> Result<QuantizeReport, QuantizeError> {
    match &args.target {
        QuantizeTarget::Mix(wanted) => file(args, wanted, stop, &mut progress),
        QuantizeTarget::Affine(wanted) => folder::run(args, wanted, stop, &mut progress),
    }
}

fn threads(args: &QuantizeOptions) -> usize {
    args.threads.or_else(|| available_parallelism().ok().map(usize::from)).unwrap_or(1)
}

fn file(
    args: &QuantizeOptions,
    wanted: &QuantiseOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64),
) -> Result<QuantizeReport, QuantizeError> {
    let (gguf, sources) = open(args)?;
    if let Some(output) = args.output.as_ref().filter(|output| is_one_of(output, &sources)) {
        return Err(QuantizeError::Itself(output.clone()));
    }
    let importance = args.importance.as_deref().map(Importance::open).transpose()?;
    let plan = Plan::new(&gguf, wanted, importance.as_ref())?;
    let report = report(args, &plan)?;
    let Some(path) = &args.output else { return Ok(report) };
    let failed = |source: io::Error| QuantizeError::Write { path: path.clone(), source };
    let planned: Vec<TensorEntry> = plan.tensors.iter().map(|(_, to)| to.clone()).collect();
    let entries = plan.metadata.iter().map(|(key, value)| (key.as_str(), value));
    let mut turn = Arc::new(ThreadPool::new(threads(args))).turn();
    let mut writer = Writer::create(path, entries, &planned).map_err(failed)?;
    for (tensor, to) in &plan.tensors {
        let columns = tensor.shape.last().copied().unwrap_or(1);
        let known = importance.as_ref().map(|of| of.of(tensor)).transpose()?.flatten();
        // In a stack of matrices, each has its own columns.
        let matrices = known.map_or(1, |known| known.len() / columns);
        let rows_at_once = (QUANTIZED_WEIGHTS_AT_ONCE / columns).max(1);
        // Exact, because a tensor consists of whole rows.
        let row_bytes = tensor.bytes.len() / (tensor.elements() / columns);
        let matrix_bytes = tensor.bytes.len() / matrices;
        // Data in another encoding is converted while reading, and not kept.
        let parts = (0..matrices).flat_map(|matrix| {
            let importance = known.map(|known| &known[matrix * columns..][..columns]);
            let (first, end) = (matrix * matrix_bytes, (matrix + 1) * matrix_bytes);
            let firsts = (first..end).step_by(rows_at_once * row_bytes);
            firsts.map(move |at| (at..end.min(at + rows_at_once * row_bytes), importance))
        });
        for (range, importance) in parts {
            let Some(rows) = tensor.bytes.slice(range) else { continue };
            let rows = &rows.read()[..];
            if stop.load(Ordering::Relaxed) {
                return Err(QuantizeError::Stopped);
            }
            if tensor.dtype == to.dtype {
                writer.write(rows).map_err(failed)?;
            } else {
                let count = rows.len() / row_bytes;
                let made = convert(&mut turn, tensor, rows, count, columns, to.dtype, importance)?;
                writer.write(&made).map_err(failed)?;
            }
            progress(rows.len() as u64);
        }
        tensor.bytes.release();
    }
    writer.finish().map_err(failed)?;
    Ok(report)
}

fn convert(
    turn: &mut PoolTurn,
    tensor: &Tensor,
    bytes: &[u8],
    rows: usize,
    columns: usize,
    to: DType,
    importance: Option<&[f32]>,
) -> Result<Vec<u8>, QuantizeError> {
    let row_bytes = to.bytes_of(columns).expect("whole blocks, because the plan is refused otherwise");
    let mut made = vec![0; rows * row_bytes];
    if requantize(turn, columns, tensor.dtype, bytes, to, &mut made, importance) {
        return Ok(made);
    }
    Err(QuantizeError::Source(LoadError::Corrupt {
        file: tensor.file.to_string(),
        what: format!("tensor {}", tensor.name),
        reason: "it has numbers that are not finite, of which nothing can be made".to_owned(),
    }))
}

/// Opens the GGUF file, or a folder converted to one, and lists the files that it is read from.
fn open(args: &QuantizeOptions) -> Result<(Gguf, Vec<PathBuf>), QuantizeError> {
    let Some(path) = locate(&args.model, args.store_dir.as_ref())? else {
        return Ok((Gguf::parse(DEMO_MODEL, &ModelBytes::from_static(DEMO_GGUF))?, Vec::new()));
    };
    if !path.is_dir() {
        return Ok(gguf::open(&path)?);
    }
    // As in a load: weights beside a configuration are the model, whatever else is in the folder.
    if convert::is_folder(&path) {
        return Ok((convert::gguf_of(&path)?, Vec::new()));
    }
    Ok(gguf::open(&only_gguf(&path)?)?)
}

/// Whether a file, which may not exist yet, is the same as one of these, by any path.
fn is_one_of(file: &Path, others: &[PathBuf]) -> bool {
    let Ok(own) = file.canonicalize() else { return false };
    others.iter().any(|other| other.canonicalize().is_ok_and(|other| other == own))
}

/// GGUF file in a directory, or the first part of the only split one.
fn only_gguf(directory: &Path) -> Result<PathBuf, QuantizeError> {
    let entries =
        fs::read_dir(directory).map_err(|source| LoadError::Io { path: directory.to_owned(), source })?;
    let is_first = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.ends_with(".gguf") && (!name.contains("-of-") || name.contains("-00001-of-"))
    };
    let mut found = entries.flatten().map(|entry| entry.path()).filter(is_first);
    match (found.next(), found.next()) {
        (Some(path), None) => Ok(path),
        _ => Err(QuantizeError::Directory(directory.to_owned())),
    }
}

impl QuantizeReport {
    /// Adds a tensor that was made from this one.
    fn add(&mut self, row: Row, from: &Tensor) {
        self.source_bytes += from.bytes.len() as u64;
        self.size_bytes += row.bytes;
        self.parameters += from.elements() as u64;
        self.bits_per_weight = 8.0 * self.size_bytes as f64 / self.parameters.max(1) as f64;
        self.tensors.push(row);
    }
}

fn report(args: &QuantizeOptions, plan: &Plan) -> Result<QuantizeReport, QuantizeError> {
    let mut report = QuantizeReport { file: args.output.clone(), ..QuantizeReport::default() };
    for (tensor, to) in &plan.tensors {
        let path = || args.output.clone().unwrap_or_default();
        let bytes = to.bytes().map_err(|source| QuantizeError::Write { path: path(), source })?;
        let row = Row {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            from: tensor.dtype.label(),
            to: to.dtype.label(),
            bytes,
        };
        report.add(row, tensor);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");

    pub(super) fn args(model: &str, target: QuantizeTarget, output: &Path) -> QuantizeOptions {
        let output = Some(output.to_owned());
        QuantizeOptions {
            model: model.to_owned(),
            store_dir: None,
            output,
            target,
            importance: None,
            threads: Some(2),
        }
    }

    fn mix(name: &str) -> QuantizeTarget {
        QuantizeTarget::Mix(QuantiseOptions {
            mix: Mix::named(name).unwrap(),
            pure: false,
            keep_output: false,
            output: None,
            token_embedding: None,
            named: Vec::new(),
            requantize: true,
        })
    }

    /// A split file gives the same result as the whole one.
    #[test]
    fn a_split_file_becomes_what_the_whole_one_does() {
        let room = tempfile::tempdir().unwrap();
        let path = |name: &str| room.path().join(name);
        let (whole, _) = gguf::open(Path::new(DEMO)).unwrap();
        let (first, second) = whole.tensors.split_at(20);
        for (number, tensors) in [first, second].into_iter().enumerate() {
            let kept = whole.metadata.iter().filter(|_| number == 0);
            let mut entries: BTreeMap<&str, gguf::Value> =
                kept.map(|(key, value)| (key, value.clone())).collect();
            entries.insert("split.no", gguf::Value::U16(number as u16));
            entries.insert("split.count", gguf::Value::U16(2));
            entries.insert("split.tensors.count", gguf::Value::I32(whole.tensors.len() as i32));
            let of = |tensor: &Tensor| TensorEntry {
                name: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
            };
            let planned: Vec<TensorEntry> = tensors.iter().map(of).collect();
            let name = format!("m-{:05}-of-00002.gguf", number + 1);
            let mut writer =
                Writer::create(&path(&name), entries.iter().map(|(k, v)| (*k, v)), &planned).unwrap();
            tensors.iter().for_each(|tensor| writer.write(&tensor.bytes).unwrap());
            writer.finish().unwrap();
        }
        let stop = AtomicBool::new(false);
        run(&args(DEMO, mix("Q5_K_M"), &path("of-whole.gguf")), &stop, |_| ()).unwrap();
        // Through its first part, and through its folder.
        for model in [path("m-00001-of-00002.gguf"), room.path().join(".")] {
            if model.is_dir() {
                fs::remove_file(path("of-parts.gguf")).unwrap();
                fs::rename(path("of-whole.gguf"), path("whole")).unwrap();
            }
            let model = model.to_str().unwrap().to_owned();
            run(&args(&model, mix("Q5_K_M"), &path("of-parts.gguf")), &stop, |_| ()).unwrap();
            let expected = fs::read(path("of-whole.gguf")).or_else(|_| fs::read(path("whole"))).unwrap();
            assert!(fs::read(path("of-parts.gguf")).unwrap() == expected, "{model}");
        }
        // A part of the source is not overwritten.
        let own = path("m-00002-of-00002.gguf");
        let model = path("m-00001-of-00002.gguf");
        let error = run(&args(model.to_str().unwrap(), mix("F16"), &own), &stop, |_| ()).unwrap_err();
        assert!(matches!(error, QuantizeError::Itself(_)), "{error}");
    }

    #[test]
    fn one_that_is_stopped_leaves_nothing() {
        let room = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let out = room.path().join("out.gguf");
        let made = run(&args(DEMO, mix("F16"), &out), &stop, |_| stop.store(true, Ordering::Relaxed));
        assert!(matches!(made, Err(QuantizeError::Stopped)));
        assert_eq!(fs::read_dir(room.path()).unwrap().count(), 0);
    }

    /// Codes of a safetensors format become the floats that they stand for.
    #[test]
    fn quantised_folders_become_floats() {
        let room = tempfile::tempdir().unwrap();
        for case in ["mlx-4", "gptq-4", "awq-gemm", "compressed-int8", "hqq-4"] {
            let folder =
                PathBuf::from(format!("{}/../../tests/data/formats/{case}", env!("CARGO_MANIFEST_DIR")));
            let out = room.path().join(format!("{case}.gguf"));
            let stop = AtomicBool::new(false);
            let report = run(&args(folder.to_str().unwrap(), mix("F32"), &out), &stop, |_| ()).unwrap();
            assert!(report.tensors.iter().any(|row| row.from.starts_with("AFQ")), "{case}: {report:?}");
            let own = hanzo_engine_runtime::ModelFiles::open(&folder).unwrap();
            let (read, _) = gguf::open(&out).unwrap();
            let value = |tensors: Vec<&Tensor>, name: &str| -> Vec<f32> {
                let tensor = tensors.into_iter().find(|tensor| tensor.name.contains(name)).unwrap();
                let mut numbers = vec![0.0; tensor.elements()];
                hanzo_engine_ops::quant::dequantize_row(tensor.dtype, &tensor.bytes.read(), &mut numbers);
                numbers
            };
            let expected = value(own.tensors.all().collect(), "mlp.down_proj");
            assert_eq!(value(read.tensors.iter().collect(), "ffn_down.weight"), expected, "{case}");
        }
    }
}
