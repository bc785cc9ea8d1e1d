//! An importance matrix made: a model runs over a text, chunk by chunk, and what its matrices met is written as llama-imatrix
//! writes it, so that [`crate::quantize`] and llama-quantize read it.

mod dat;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use hanzo_engine_kernels::{AnyBackend, BLOCK_TOKENS, Backend, Batch, DType, KernelError, KvType, RowSource};
use hanzo_engine_runtime::{
    LoadError, ModelFiles, RequestError,
    decoder::{Decoder, Met},
    gguf::{Array, Planned, Value, Writer},
    tokenizer::Tokenizer,
};
use hanzo_engine_store::{Store, StoreError};
use serde::Serialize;

use crate::{budget, device::Cpu, source::resolve};

/// What to run over what.
#[derive(Clone, Debug)]
pub struct Args {
    /// A name in the store, [`crate::DEMO_MODEL`], or a path; of a GGUF file.
    pub model: String,
    /// The store's directory, for a name; unset: the default one. Not opened for a path.
    pub store_dir: Option<PathBuf>,
    /// The text.
    pub text: String,
    /// What the file says that the text was.
    pub dataset: String,
    /// The new file.
    pub output: PathBuf,
    /// How it is written.
    pub form: Form,
    /// Tokens of a chunk, each read from its own start.
    pub chunk_tokens: usize,
    /// At most so many chunks; unset: as many as the text has.
    pub chunks_max: Option<usize>,
    /// Threads to compute with; unset: one for each core.
    pub threads: Option<usize>,
}

/// What llama-imatrix writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// GGUF: sums and counts.
    #[default]
    Gguf,
    /// The format of before: means, as many times as there were chunks, and no counts.
    Dat,
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The new file.
    pub file: PathBuf,
    /// Chunks that were read.
    pub chunks: usize,
    /// Tokens of each.
    pub chunk_tokens: usize,
    /// Tensors that it knows of.
    pub tensors: usize,
    /// Matrices of experts in them that no row went to: nothing is known of those.
    pub unmet: usize,
}

/// Why nothing was made.
#[derive(Debug, thiserror::Error)]
pub enum ImatrixError {
    /// The model argument stands for nothing that can be used.
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
    /// The arguments fit neither model nor text.
    #[error("{0}")]
    Args(String),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] KernelError),
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

/// Makes it. `progress` is told chunks that were read, of how many; once `stop` is set, nothing is written.
///
/// # Errors
/// [`ImatrixError`].
pub fn run(
    args: &Args,
    stop: &AtomicBool,
    mut progress: impl FnMut(usize, usize),
) -> Result<Report, ImatrixError> {
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
        // Parts of one tensor met the same.
        met.entry(tensor).or_default().insert(matrix, of_part);
    }
    match args.form {
        Form::Gguf => write(args, chunks.len(), &met),
        Form::Dat => dat::write(args, chunks.len(), &met),
    }?;
    let (file, chunk_tokens) = (args.output.clone(), args.chunk_tokens);
    let unmet = met.values().flat_map(BTreeMap::values).filter(|met| met.rows == 0).count();
    Ok(Report { file, chunks: chunks.len(), chunk_tokens, tensors: met.len(), unmet })
}

/// What the matrices of each tensor met, by their places in it.
type Tensors<'a> = BTreeMap<&'a str, BTreeMap<usize, Met<'a>>>;

/// The tensor that a matrix is in, and which it is of a stack.
fn place(name: &str) -> (&str, usize) {
    let stacked = name.strip_suffix(']').and_then(|name| name.rsplit_once('['));
    stacked.and_then(|(stack, at)| Some((stack, at.parse().ok()?))).unwrap_or((name, 0))
}

/// Whole chunks of the text's tokens, each with the token that texts begin with in place of its first, where the model has
/// one; as llama-imatrix cuts them.
fn chunks(args: &Args, files: &ModelFiles, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>, ImatrixError> {
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

/// The model's weights, where they fit the memory that is free, and where their names are those that a GGUF file has.
fn loaded(args: &Args, files: &ModelFiles, backend: &AnyBackend) -> Result<Decoder, ImatrixError> {
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

fn write(args: &Args, chunks: usize, met: &Tensors<'_>) -> Result<(), ImatrixError> {
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
        let of = |what: &str, columns: usize| Planned {
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

/// The store, where the model is no path and no part of this program.
fn store(args: &Args) -> Result<Option<Store>, ImatrixError> {
    let needs_none = args.model.eq_ignore_ascii_case(crate::DEMO_MODEL) || Path::new(&args.model).exists();
    match args.store_dir.clone().or_else(hanzo_engine_store::default_dir).filter(|_| !needs_none) {
        Some(dir) => Ok(Some(Store::open(&dir)?)),
        None => Ok(None),
    }
}
