//! A GGUF file made of another one, of fewer bits: which type each tensor gets is the runtime's
//! ([`hanzo_engine_runtime::quantise`]), the arithmetic the kernels'.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::available_parallelism,
};

pub use hanzo_engine_kernels::DType;
use hanzo_engine_kernels::cpu::{ThreadPool, Turn, requantize};
pub use hanzo_engine_runtime::quantise::{MIXES, Mix, Wanted};
use hanzo_engine_runtime::{
    LoadError,
    gguf::{self, Gguf, Planned, Writer},
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

/// What to make.
#[derive(Clone, Debug)]
pub struct Args {
    /// A name in the store, [`crate::DEMO_MODEL`], or a path.
    pub model: String,
    /// The store's directory, for a name; unset: the default one. Not opened for a path.
    pub store_dir: Option<PathBuf>,
    /// The new file; unset: nothing is made, and only said what would be.
    pub output: Option<PathBuf>,
    /// Which types.
    pub wanted: Wanted,
    /// An importance matrix of the model, as llama-imatrix writes them.
    pub importance: Option<PathBuf>,
    /// Threads to compute with; unset: one for each core.
    pub threads: Option<usize>,
}

/// What was made, or would be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The new file.
    pub file: Option<PathBuf>,
    /// Bytes of all tensors before.
    pub source_bytes: u64,
    /// Bytes of all tensors now.
    pub size_bytes: u64,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// Bits of a number now, on average.
    pub bits_per_weight: f64,
    /// Tensors in the new file's order.
    pub tensors: Vec<Row>,
}

/// A tensor of a [`Report`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Its type before.
    pub from: &'static str,
    /// Its type now.
    pub to: &'static str,
    /// Bytes now.
    pub bytes: u64,
}

/// A file that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The model argument stands for nothing.
    #[error(transparent)]
    Model(#[from] InspectError),
    /// The file cannot be read, or not be made what was asked for.
    #[error(transparent)]
    Source(#[from] LoadError),
    /// It is no GGUF file.
    #[error("{} is a directory without one GGUF file: give the path of a GGUF file", .0.display())]
    Directory(PathBuf),
    /// Somebody wanted it to stop.
    #[error("interrupted")]
    Stopped,
    /// The new file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The new file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
}

/// Makes it. `progress` is told how many bytes of the source were done since it was told before; once `stop` is set, nothing
/// is left of the new file.
///
/// # Errors
/// [`QuantizeError`].
pub fn run(args: &Args, stop: &AtomicBool, mut progress: impl FnMut(u64)) -> Result<Report, QuantizeError> {
    let gguf = open(args)?;
    let importance = args.importance.as_deref().map(Importance::open).transpose()?;
    let plan = Plan::new(&gguf, &args.wanted, importance.as_ref())?;
    let report = report(args, &plan)?;
    let Some(path) = &args.output else { return Ok(report) };
    let failed = |source: io::Error| QuantizeError::Write { path: path.clone(), source };
    let planned: Vec<Planned> = plan.tensors.iter().map(|(_, to)| to.clone()).collect();
    let entries = plan.metadata.iter().map(|(key, value)| (key.as_str(), value));
    let threads = args.threads.or_else(|| available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let mut turn = Arc::new(ThreadPool::new(threads)).turn();
    let mut writer = Writer::create(path, entries, &planned).map_err(failed)?;
    for (tensor, to) in &plan.tensors {
        let columns = tensor.shape.last().copied().unwrap_or(1);
        let known = importance.as_ref().map(|of| of.of(tensor)).transpose()?.flatten();
        // Of a stack of matrices each has columns of its own.
        let matrices = known.map_or(1, |known| known.len() / columns);
        let rows_at_once = (QUANTIZED_WEIGHTS_AT_ONCE / columns).max(1);
        // Whole, because a tensor is whole rows.
        let row_bytes = tensor.bytes.len() / (tensor.elements() / columns);
        let matrix_bytes = tensor.bytes.len() / matrices;
        let parts = tensor.bytes.chunks(matrix_bytes).enumerate().flat_map(|(matrix, bytes)| {
            let importance = known.map(|known| &known[matrix * columns..][..columns]);
            bytes.chunks(rows_at_once * row_bytes).map(move |rows| (rows, importance))
        });
        for (rows, importance) in parts {
            if stop.load(Ordering::Relaxed) {
                return Err(QuantizeError::Stopped);
            }
            if tensor.dtype == to.dtype {
                writer.write(rows).map_err(failed)?;
            } else {
                let shape = (rows.len() / row_bytes, columns);
                let made = convert(&mut turn, (tensor, rows), shape, to.dtype, importance)?;
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
    turn: &mut Turn,
    (tensor, bytes): (&Tensor, &[u8]),
    (rows, columns): (usize, usize),
    to: DType,
    importance: Option<&[f32]>,
) -> Result<Vec<u8>, QuantizeError> {
    let row_bytes = to.bytes_of(columns).expect("whole blocks, because the plan is refused otherwise");
    let mut made = vec![0; rows * row_bytes];
    if requantize(turn, columns, (tensor.dtype, bytes), (to, &mut made), importance) {
        return Ok(made);
    }
    Err(QuantizeError::Source(LoadError::Corrupt {
        file: tensor.file.to_string(),
        what: format!("tensor {}", tensor.name),
        reason: "it has numbers that are not finite, of which nothing can be made".to_owned(),
    }))
}

fn open(args: &Args) -> Result<Gguf, QuantizeError> {
    let Some(path) = locate(&args.model, args.store_dir.as_ref())? else {
        return Ok(Gguf::parse(DEMO_MODEL, &ModelBytes::from_static(DEMO_GGUF))?);
    };
    let path = if path.is_dir() { only_gguf(&path)? } else { path };
    Ok(gguf::open(&path)?.0)
}

/// The GGUF file in a directory, or the first part of the only split one.
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

fn report(args: &Args, plan: &Plan) -> Result<Report, QuantizeError> {
    let mut report = Report {
        file: args.output.clone(),
        source_bytes: 0,
        size_bytes: 0,
        parameters: 0,
        bits_per_weight: 0.0,
        tensors: Vec::with_capacity(plan.tensors.len()),
    };
    for (tensor, to) in &plan.tensors {
        let path = || args.output.clone().unwrap_or_default();
        let bytes = to.bytes().map_err(|source| QuantizeError::Write { path: path(), source })?;
        report.source_bytes += tensor.bytes.len() as u64;
        report.size_bytes += bytes;
        report.parameters += tensor.elements() as u64;
        report.tensors.push(Row {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            from: tensor.dtype.label(),
            to: to.dtype.label(),
            bytes,
        });
    }
    report.bits_per_weight = 8.0 * report.size_bytes as f64 / report.parameters.max(1) as f64;
    Ok(report)
}
