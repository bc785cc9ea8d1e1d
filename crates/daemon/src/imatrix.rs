//! Creation of an importance matrix: the model runs over a text in chunks, and statistics of its matrices' inputs
//! are written in llama-imatrix's format, which [`crate::quantize`] and llama-quantize read.

mod dat;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use hanzo_engine_ops::{AnyBackend, BLOCK_TOKENS, Batch, DType, KernelError, KvType, RowSource};
use hanzo_engine_runtime::{
    LoadError, ModelFiles, RequestError,
    decoder::{ActivationSums, Decoder},
    gguf::{Array, TensorEntry, Value, Writer},
    tokenizer::Tokenizer,
};
use hanzo_engine_store::{Store, StoreError};
use serde::Serialize;

use crate::{budget, cpu::Cpu, source::resolve};

/// Arguments of a run: the model, the text and the output.
#[derive(Clone, Debug)]
pub struct ImatrixOptions {
    /// Name in the store, [`crate::DEMO_MODEL`], or a path; it must be a GGUF file.
    pub model: String,
    /// Directory of the store; `None` for the default one. Not opened if `model` is a path.
    pub store_dir: Option<PathBuf>,
    /// Text to run the model over.
    pub text: String,
    /// Name of the text, recorded in the file.
    pub dataset: String,
    /// Path of the new file.
    pub output: PathBuf,
    /// Format of the new file.
    pub form: Form,
    /// Tokens in a chunk. The context is empty at the start of each chunk.
    pub chunk_tokens: usize,
    /// Maximum number of chunks; `None` for the whole text.
    pub chunks_max: Option<usize>,
    /// Compute threads; `None` for one per core.
    pub threads: Option<usize>,
}

/// File formats of llama-imatrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// GGUF: sums and counts.
    #[default]
    Gguf,
    /// The older binary format: means multiplied by the number of chunks, without counts.
    Dat,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImatrixReport {
    /// Path of the new file.
    pub file: PathBuf,
    /// Number of chunks that were read.
    pub chunks: usize,
    /// Tokens in each chunk.
    pub chunk_tokens: usize,
    /// Number of tensors in the file.
    pub tensors: usize,
    /// Expert matrices without statistics, because no row was routed to them.
    pub unmet: usize,
}

/// Reason why no file was made.
#[derive(Debug, thiserror::Error)]
pub enum ImatrixError {
    /// The model argument resolves to no usable model.
    #[error("{0}")]
    Model(String),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The model cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The text cannot be tokenized.
    #[error("the text: {0}")]
    Text(#[from] RequestError),
    /// The arguments do not fit the model or the text.
    #[error("{0}")]
    Args(String),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] KernelError),
    /// The run was interrupted.
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

/// Creates the file. `progress` receives the number of chunks read and the total. Once `stop` is set, nothing is
/// written.
///
/// # Errors
/// [`ImatrixError`].
pub fn run(
    args: &ImatrixOptions,
    stop: &AtomicBool,
    mut progress: impl FnMut(usize, usize),
) -> Result<ImatrixReport, ImatrixError> {
    let store = store(args)?;
    let resolved = resolve(&args.model, store.as_ref());
    let opened = resolved.map_err(|error| ImatrixError::Model(error.to_string()))?.source.open()?;
    let files = opened.decoder().filter(|_| opened.generates()).ok_or_else(|| LoadError::Unsupported {
        file: opened.info().name.clone(),
        key: "architecture".into(),
        value: opened.info().architecture.clone(),
        reason: "an importance matrix is made of a model that generates text".into(),
    })?;
    let tokenizer = Tokenizer::load(&files.text)?;
    let chunks = chunks(args, files, &tokenizer)?;
    let device = Cpu::new(args.threads)?;
    let mut backend = device.backend();
    let mut decoder = loaded(args, files, &backend)?;
    let limits = decoder.spec().step_limits(args.chunk_tokens, 1, args.chunk_tokens);
    decoder.prepare(&mut backend, &limits)?;
    decoder.observe(&mut backend)?;
    let windows = decoder.spec().kv_groups().windows;
    let blocks = args.chunk_tokens.div_ceil(BLOCK_TOKENS);
    let mut kv = backend.kv(&decoder.spec().kv_spec(windows.len() * blocks, KvType::F16, 1))?;
    for (index, chunk) in chunks.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Err(ImatrixError::Stopped);
        }
        progress(index, chunks.len());
        let mut batch = Batch { windows: windows.clone(), ..Batch::default() };
        batch.sources.extend(chunk.iter().copied().map(RowSource::Token));
        batch.push_sequence(chunk.len(), chunk.len(), |group, index| (group * blocks + index) as u32);
        if decoder.spec().keeps_states() {
            batch.states.push(0);
        }
        decoder.forward(&mut backend, &batch, &mut kv, &mut [])?;
    }
    progress(chunks.len(), chunks.len());
    let mut met = Tensors::new();
    for (part, of_part) in decoder.observed()? {
        let (tensor, matrix) = place(&files.tensors.get(part.weight()).name);
        // Parts of one tensor have the same input.
        met.entry(tensor).or_default().insert(matrix, of_part);
    }
    match args.form {
        Form::Gguf => write(args, chunks.len(), &met),
        Form::Dat => dat::write(args, chunks.len(), &met),
    }?;
    let (file, chunk_tokens) = (args.output.clone(), args.chunk_tokens);
    let unmet = met.values().flat_map(BTreeMap::values).filter(|met| met.rows == 0).count();
    Ok(ImatrixReport { file, chunks: chunks.len(), chunk_tokens, tensors: met.len(), unmet })
}

/// Statistics of each tensor's matrices, by their index in the tensor.
type Tensors<'a> = BTreeMap<&'a str, BTreeMap<usize, ActivationSums<'a>>>;

/// Name of the tensor that holds a matrix, and the matrix's index in a stack.
fn place(name: &str) -> (&str, usize) {
    let stacked = name.strip_suffix(']').and_then(|name| name.rsplit_once('['));
    stacked.and_then(|(stack, at)| Some((stack, at.parse().ok()?))).unwrap_or((name, 0))
}

/// Splits the text's tokens into whole chunks. As in llama-imatrix, the first token of each is replaced by the
/// model's beginning-of-text token, if it has one.
fn chunks(
    args: &ImatrixOptions,
    files: &ModelFiles,
    tokenizer: &Tokenizer,
) -> Result<Vec<Vec<u32>>, ImatrixError> {
    let context = files.info.context_tokens_max as usize;
    if args.chunk_tokens > context {
        let what = format!("chunks of {} tokens: the model's context is {context}", args.chunk_tokens);
        return Err(ImatrixError::Args(what));
    }
    let bos =
        files.text.bos.filter(|bos| tokenizer.encode("", true).is_ok_and(|all| all.first() == Some(bos)));
    let tokens = tokenizer.encode_plain(&args.text, true)?;
    let mut chunks: Vec<Vec<u32>> = tokens.chunks_exact(args.chunk_tokens).map(<[u32]>::to_vec).collect();
    if chunks.is_empty() {
        return Err(ImatrixError::Args(format!(
            "the text has {} tokens, and a chunk needs {}: give more text, or shorter chunks",
            tokens.len(),
            args.chunk_tokens
        )));
    }
    chunks.truncate(args.chunks_max.unwrap_or(usize::MAX));
    if let Some(bos) = bos {
        chunks.iter_mut().for_each(|chunk| chunk[0] = bos);
    }
    Ok(chunks)
}

/// Loads the model's weights, if they fit in free memory and the tensors have a GGUF file's names.
fn loaded(args: &ImatrixOptions, files: &ModelFiles, backend: &AnyBackend) -> Result<Decoder, ImatrixError> {
    if files.tensors.all().any(|tensor| !tensor.file.ends_with(".gguf") && *tensor.file != *crate::DEMO_MODEL)
    {
        return Err(ImatrixError::Args(format!(
            "{} is no GGUF file, and an importance matrix is of a GGUF file's tensors",
            args.model
        )));
    }
    let plan = Decoder::plan(backend, files);
    if let Some(free_bytes) = budget::default_bytes().filter(|&free| plan.weights_bytes > free) {
        return Err(ImatrixError::Load(LoadError::DoesNotFit {
            model: files.info.name.clone(),
            needed_bytes: plan.weights_bytes,
            weights_bytes: plan.weights_bytes,
            kv_bytes: 0,
            scratch_bytes: 0,
            free_bytes,
            hint: String::new(),
        }));
    }
    Ok(Decoder::load(backend, files, &mut |_| ())?)
}

fn write(args: &ImatrixOptions, chunks: usize, met: &Tensors<'_>) -> Result<(), ImatrixError> {
    let failed = |source: io::Error| ImatrixError::Write { path: args.output.clone(), source };
    let number = |number: usize| Value::U32(u32::try_from(number).unwrap_or(u32::MAX));
    let entries = [
        ("general.type", Value::String("imatrix".to_owned())),
        ("imatrix.datasets", Value::Array(Array::String(vec![args.dataset.clone()]))),
        ("imatrix.chunk_count", number(chunks)),
        ("imatrix.chunk_size", number(args.chunk_tokens)),
    ];
    let (mut planned, mut numbers) = (Vec::new(), Vec::new());
    for (name, matrices) in met {
        let of = |what: &str, columns: usize| TensorEntry {
            name: format!("{name}.{what}"),
            dtype: DType::F32,
            shape: vec![matrices.len(), columns],
        };
        let columns = matrices.values().next().map_or(0, |met| met.squares.len());
        planned.extend([of("in_sum2", columns), of("counts", 1)]);
        let sums = matrices.values().flat_map(|met| met.squares).map(|&sum| sum as f32);
        numbers.push(sums.flat_map(f32::to_le_bytes).collect::<Vec<u8>>());
        numbers.push(matrices.values().flat_map(|met| (met.rows as f32).to_le_bytes()).collect());
    }
    let entries = entries.iter().map(|(key, value)| (*key, value));
    let mut writer = Writer::create(&args.output, entries, &planned).map_err(failed)?;
    for numbers in numbers {
        writer.write(&numbers).map_err(failed)?;
    }
    writer.finish().map_err(failed)
}

/// Opens the store, unless the model is a path or the built-in demo model.
fn store(args: &ImatrixOptions) -> Result<Option<Store>, ImatrixError> {
    let needs_none = args.model.eq_ignore_ascii_case(crate::DEMO_MODEL) || Path::new(&args.model).exists();
    match args.store_dir.clone().or_else(hanzo_engine_store::default_dir).filter(|_| !needs_none) {
        Some(dir) => Ok(Some(Store::open(&dir)?)),
        None => Ok(None),
    }
}
