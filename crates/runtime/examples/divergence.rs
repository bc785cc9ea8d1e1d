//! How far the logits of models are from those of another, as llama.cpp judges it. The other is a base file of
//! llama.cpp, usually made from the same weights in F32:
//!
//! ```sh
//! llama-perplexity -m F32.gguf -f TEXT -c 512 --kl-divergence-base BASE
//! cargo run --release -p hanzo-engine-runtime --example divergence -- BASE MODEL.gguf...
//! ```
//!
//! It holds the text's tokens in chunks and the log-probabilities of each chunk's second half. Here every model reads
//! the same chunks on the CPU backend, each as a sequence of its own in one step, and a line tells its perplexity, the
//! Kullback-Leibler divergence of its distributions from the base's, and how often both have the same likeliest
//! token. `llama-perplexity -m MODEL.gguf --kl-divergence-base BASE --kl-divergence` prints the same of llama.cpp.
//! `HANZO_ENGINE_CPU_TIER` chooses the tier.

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::{AnyBackend, BLOCK_TOKENS, Batch, KvType, RowSource, StepLimits};
use hanzo_engine_runtime::ModelFiles;
use hanzo_engine_runtime::decoder::Decoder;
use hanzo_engine_runtime::tokenizer::Tokenizer;

type Failure = Box<dyn Error>;

/// No base file says more than these; more is a file of something else.
const CONTEXT_MAX: usize = 1 << 20;
const VOCAB_MAX: usize = 1 << 24;
const TOKENS_MAX: usize = 1 << 28;

/// Base log-probabilities below this do not count, as in llama.cpp: that low, the file only knows that they are low.
const LOG_PROB_MIN: f32 = -16.0;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [base, models @ ..] = &args[..] else { return usage() };
    if models.is_empty() {
        return usage();
    }
    match compare(base, models) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: divergence BASE MODEL.gguf...");
    ExitCode::from(2)
}

fn compare(base: &str, models: &[String]) -> Result<(), Failure> {
    let tier = Tier::detect()?;
    println!("tier {tier}; the KL divergences are in nats");
    println!("{:>10} {:>10} {:>10} {:>10} {:>9}  model", "PPL", "mean KL", "99.9 % KL", "max KL", "same top");
    for model in models {
        // Opened again for each, since a base is too large to hold.
        let base = Base::open(base)?;
        let judged = judge(base, model, tier)?;
        let (perplexity, mean, same_top) = judged.means();
        let (most, nearly_most) = (judged.quantile(1.0), judged.quantile(0.999));
        println!(
            "{perplexity:10.4} {mean:10.6} {nearly_most:10.6} {most:10.6} {:7.3} %  {model}",
            100.0 * same_top
        );
    }
    Ok(())
}

/// What llama-perplexity saved: little-endian; after the header and the tokens, for each chunk `(scored, 4 + vocab)`
/// u16 in rows of even length. A row opens with two f32: what a unit of the u16 that follow is, and what 0 is.
struct Base {
    name: String,
    rows: BufReader<File>,
    context: usize, // tokens of a chunk
    vocab: usize,
    tokens: Vec<u32>, // (chunks, context)
}

impl Base {
    fn open(name: &str) -> Result<Self, Failure> {
        let failed = |what: &str| format!("{name}: {what}");
        let file = File::open(name).map_err(|error| failed(&error.to_string()))?;
        let bytes = file.metadata().map_err(|error| failed(&error.to_string()))?.len();
        let mut rows = BufReader::new(file);
        let mut header = [0; 20];
        rows.read_exact(&mut header).map_err(|error| failed(&format!("its header: {error}")))?;
        if !header.starts_with(b"_logits_") {
            return Err(failed("is no base of llama-perplexity: it does not begin with _logits_").into());
        }
        let numbers = header[8..].as_chunks::<4>().0;
        let [context, vocab, chunks] = [0, 1, 2].map(|index| u32::from_le_bytes(numbers[index]) as usize);
        if !(3..=CONTEXT_MAX).contains(&context)
            || !(1..=VOCAB_MAX).contains(&vocab)
            || !(1..=TOKENS_MAX / context).contains(&chunks)
        {
            let what = format!("{chunks} chunks of {context} tokens, vocabulary {vocab}: out of bounds");
            return Err(failed(&what).into());
        }
        let mut base = Self { name: name.to_owned(), rows, context, vocab, tokens: Vec::new() };
        let expected = header.len() + chunks * (4 * context + base.scored() * base.row_bytes());
        if bytes != expected as u64 {
            let what = format!(
                "{bytes} bytes, where {chunks} chunks of {context} tokens and vocabulary {vocab} make {expected}"
            );
            return Err(failed(&what).into());
        }
        let mut tokens = vec![0; 4 * chunks * context];
        base.rows.read_exact(&mut tokens).map_err(|error| failed(&format!("its tokens: {error}")))?;
        base.tokens = tokens.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect();
        match base.tokens.iter().find(|&&token| token as usize >= vocab) {
            Some(token) => {
                Err(failed(&format!("token {token} is outside of its vocabulary, {vocab}")).into())
            }
            None => Ok(base),
        }
    }

    /// The first position of a chunk whose next token is judged; those before it are context alone.
    fn scored_first(&self) -> usize {
        self.context / 2
    }

    /// Positions judged in each chunk. The last token's successor is in no chunk.
    fn scored(&self) -> usize {
        self.context - 1 - self.scored_first()
    }

    fn row_bytes(&self) -> usize {
        2 * (4 + self.vocab.next_multiple_of(2))
    }

    /// The next position's log-probabilities, `(vocab)`.
    fn read_row(&mut self, log_probs: &mut [f32]) -> Result<(), Failure> {
        let mut row = vec![0; self.row_bytes()];
        self.rows
            .read_exact(&mut row)
            .map_err(|error| format!("{}: its log-probabilities: {error}", self.name))?;
        let [scale, min] =
            [0, 4].map(|at| f32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]));
        if !(scale.is_finite() && scale >= 0.0 && min.is_finite()) {
            return Err(format!("{}: log-probabilities of scale {scale} from {min}", self.name).into());
        }
        for (log_prob, &level) in log_probs.iter_mut().zip(row[8..].as_chunks::<2>().0) {
            *log_prob = scale * f32::from(u16::from_le_bytes(level)) + min;
        }
        Ok(())
    }
}

/// One model over all chunks.
#[derive(Default)]
struct Judged {
    surprise: f64,         // nats, over all positions
    divergences: Vec<f32>, // nats, of each position
    same_top: usize,
}

impl Judged {
    /// Adds a position: the logits and the base's log-probabilities, both `(vocab)`, and the token that came.
    fn add(&mut self, logits: &[f32], base: &[f32], token: u32) {
        let (top, base_top) = (likeliest(logits), likeliest(base));
        let max = logits[top];
        let log_sum = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum::<f64>().ln();
        let log_prob = |logit: f32| f64::from(logit - max) - log_sum;
        let divergence: f64 = base
            .iter()
            .zip(logits)
            .filter(|(base, _)| **base > LOG_PROB_MIN)
            .map(|(&base, &logit)| f64::from(base).exp() * (f64::from(base) - log_prob(logit)))
            .sum();
        self.surprise -= log_prob(logits[token as usize]);
        self.divergences.push(divergence as f32);
        self.same_top += usize::from(top == base_top);
    }

    /// Perplexity, mean divergence and the share of positions with the same likeliest token.
    fn means(&self) -> (f64, f64, f64) {
        let count = self.divergences.len() as f64;
        let divergence = self.divergences.iter().map(|&one| f64::from(one)).sum::<f64>();
        ((self.surprise / count).exp(), divergence / count, self.same_top as f64 / count)
    }

    /// The divergence that this share of positions does not exceed, between neighbours by their distance.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.divergences.clone();
        sorted.sort_by(f32::total_cmp);
        let at = share * (sorted.len() - 1) as f64;
        let (below, above) = (f64::from(sorted[at.floor() as usize]), f64::from(sorted[at.ceil() as usize]));
        below + at.fract() * (above - below)
    }
}

/// The first of the highest.
fn likeliest(values: &[f32]) -> usize {
    (1..values.len()).fold(0, |best, index| if values[index] > values[best] { index } else { best })
}

fn judge(mut base: Base, model: &str, tier: Tier) -> Result<Judged, Failure> {
    let files = ModelFiles::open(Path::new(model))?;
    let vocab = files.spec.vocab;
    if vocab != base.vocab {
        return Err(
            format!("{model}: its vocabulary is {vocab}, that of {} {}", base.name, base.vocab).into()
        );
    }
    // In place of each chunk's first token, where the model wants texts to begin so.
    let opening = Tokenizer::load(&files.text)?.encode("", true)?;
    let bos = files.text.bos.filter(|bos| opening.first() == Some(bos));
    let threads = std::thread::available_parallelism()?.get();
    let mut backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(threads)), tier));
    let mut decoder = Decoder::load(&backend, &files, &mut |_| ())?;
    let (context, scored) = (base.context, base.scored());
    let limits = StepLimits { logit_rows: scored, ..decoder.spec().step_limits(context, 1, context) };
    decoder.prepare(&mut backend, &limits)?;
    let windows = decoder.spec().kv_groups().windows;
    let blocks = windows.len() * context.div_ceil(BLOCK_TOKENS);
    let mut kv = backend.kv(&decoder.spec().kv_spec(blocks, KvType::F16, 1))?;

    let mut judged = Judged::default();
    let mut logits = vec![0.0; scored * vocab];
    let mut log_probs = vec![0.0; vocab];
    for chunk in std::mem::take(&mut base.tokens).chunks_exact(context) {
        let mut batch = one_sequence(&windows, chunk, base.scored_first()..base.scored_first() + scored);
        if let Some(bos) = bos {
            batch.sources[0] = RowSource::Token(bos);
        }
        decoder.forward(&mut backend, &batch, &mut kv, &mut logits)?;
        for (row, &token) in logits.chunks_exact(vocab).zip(&chunk[base.scored_first() + 1..]) {
            base.read_row(&mut log_probs)?;
            judged.add(row, &log_probs, token);
        }
    }
    Ok(judged)
}

/// A batch that reads a sequence from its start, in the first blocks of the cache, and wants the logits of `scored`.
fn one_sequence(windows: &[Option<u32>], tokens: &[u32], scored: std::ops::Range<usize>) -> Batch {
    let mut batch = Batch { windows: windows.to_vec(), ..Batch::default() };
    batch.sources.extend(tokens.iter().copied().map(RowSource::Token));
    let blocks = tokens.len().div_ceil(BLOCK_TOKENS);
    batch.push_sequence(tokens.len(), tokens.len(), |group, index| (group * blocks + index) as u32);
    batch.logit_rows.extend(scored.start as u32..scored.end as u32);
    batch
}
