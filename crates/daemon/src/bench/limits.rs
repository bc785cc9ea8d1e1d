//! Roofline of this machine, and the share of it that a test reached.
//!
//! A generated token cannot come sooner than its weights, keys and values are read. A prompt token cannot come
//! sooner than its matrix products are computed. Operations of attention, norms and sampling are not counted, nor
//! is reading or writing activations, so a share is slightly below the real utilisation. Counts come from the model
//! as loaded: packed bytes and real shapes. For mixture-of-experts layers, products are those of the experts that a
//! token is routed to. Bytes are those of the distinct experts that a step's tokens reach if routing is uniform.

use std::time::{Duration, Instant};

use hanzo_engine_kernels::cpu::limits::Probe;
use hanzo_engine_ops::{AnyBackend, BLOCK_TOKENS, KvType, MatrixShape};
use hanzo_engine_runtime::{
    LoadError, ModelFiles,
    spec::{LayerPart, Part},
};
use serde::Serialize;

use super::case::{BenchPhase, Case};
use crate::{budget, cpu::Cpu};

/// Upper bound of the memory read to measure bandwidth; a third of free memory if that is less.
const READ_BYTES_MAX: u64 = 1 << 30;
/// Bytes read if the system does not report free memory.
const READ_BYTES_UNKNOWN: u64 = 256 << 20;
/// Passes over the memory, and runs of each compute loop; the best counts.
const PASSES: usize = 8;
/// Minimum duration of one run of a loop.
const RUN_TIME_MIN: Duration = Duration::from_millis(25);

/// Peak rates that all threads reach together in synthetic loops.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Memory read bandwidth in bytes per second.
    pub read_bytes_per_s: f64,
    /// 8-bit integer multiplications and additions per second, each counted.
    pub int8_ops_per_s: f64,
    /// f32 multiplications and additions per second, each counted.
    pub f32_ops_per_s: f64,
}

impl Limits {
    /// Measures the limits, in a second or two.
    ///
    /// # Errors
    /// If no memory can be allocated to read.
    pub(super) fn measure(device: &Cpu) -> Result<Limits, LoadError> {
        let third = budget::default_bytes().map_or(READ_BYTES_UNKNOWN, |bytes| bytes / 3);
        let mut probe: Probe = device.probe(third.min(READ_BYTES_MAX) as usize)?;
        Ok(Limits {
            read_bytes_per_s: best_rate(|| probe.read()),
            int8_ops_per_s: peak(|rounds| probe.multiply_int8(rounds)),
            f32_ops_per_s: peak(|rounds| probe.multiply_f32(rounds)),
        })
    }

    /// Takes the better of two measurements, since disturbances only slow a measurement down.
    pub(super) fn max(self, other: Limits) -> Limits {
        Limits {
            read_bytes_per_s: self.read_bytes_per_s.max(other.read_bytes_per_s),
            int8_ops_per_s: self.int8_ops_per_s.max(other.int8_ops_per_s),
            f32_ops_per_s: self.f32_ops_per_s.max(other.f32_ops_per_s),
        }
    }

    fn seconds(&self, products: Products) -> f64 {
        2.0 * (products.int8 / self.int8_ops_per_s + products.f32 / self.f32_ops_per_s)
    }
}

/// Best of several runs, in units per second. Each run returns its units.
fn best_rate(mut run: impl FnMut() -> u64) -> f64 {
    (0..PASSES)
        .map(|_| timed(&mut run))
        .map(|(units, time)| units as f64 / time.as_secs_f64())
        .fold(0.0, f64::max)
}

/// Best rate of a loop, with enough rounds to be timed.
fn peak(mut run: impl FnMut(usize) -> u64) -> f64 {
    let mut rounds = 1000;
    while timed(&mut || run(rounds)).1 < RUN_TIME_MIN && rounds < usize::MAX / 4 {
        rounds *= 2;
    }
    best_rate(|| run(rounds))
}

fn timed(run: &mut dyn FnMut() -> u64) -> (u64, Duration) {
    let began = Instant::now();
    let units = run();
    (units, began.elapsed())
}

/// Shares of the limits, where 1 is all of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shares {
    /// Share of the read bandwidth used for weights and KV cache; generations only.
    pub read: Option<f64>,
    /// Share of the arithmetic peak used by matrix products: the int8 peak for quantised weights, the f32 peak for
    /// others.
    pub arithmetic: f64,
}

/// Multiply-add pairs in the matrix products of one token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Products {
    int8: f64,
    f32: f64,
}

impl Products {
    fn add(&mut self, shape: MatrixShape) {
        let count = shape.rows as f64 * shape.cols as f64;
        if shape.dtype.block_weights() > 1 {
            self.int8 += count;
        } else {
            self.f32 += count;
        }
    }

    fn times(self, tokens: f64) -> Products {
        Products { int8: self.int8 * tokens, f32: self.f32 * tokens }
    }

    fn plus(self, other: Products) -> Products {
        Products { int8: self.int8 + other.int8, f32: self.f32 + other.f32 }
    }
}

/// Costs of a model's steps.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Costs {
    /// Packed bytes that every decode step reads: layers without experts, norms and head.
    weights_bytes: f64,
    /// Packed bytes of all experts.
    experts_bytes: f64,
    /// Share of a layer's experts that a token is routed to.
    experts_share: f64,
    /// KV cache bytes that one layer reads for each token in context.
    kv_bytes: f64,
    /// Products of the layers, per token; `head` has those per sampled token.
    layers: Products,
    head: Products,
    windows: Vec<Option<u32>>, // (layers)
}

impl Costs {
    /// Computes the costs of the model in `files` as packed by `backend`.
    pub(super) fn new(backend: &AnyBackend, files: &ModelFiles, kv_type: KvType) -> Costs {
        let spec = &files.spec;
        let head_part = if spec.head.tied() { Part::TokenEmbedding } else { Part::Head };
        let (mut layers, mut head) = (Products::default(), Products::default());
        let (mut weights_bytes, mut experts_bytes) = (0, 0);
        let experts = spec.layers.iter().find_map(|layer| layer.mlp.experts());
        let experts_share = experts.map_or(0.0, |experts| experts.used as f64 / experts.count as f64);
        let mut experts = Products::default();
        for (weight, shape) in spec.weights() {
            let &[rows, cols] = shape.as_slice() else {
                weights_bytes += backend.vector_bytes(shape.iter().product());
                continue;
            };
            let part = MatrixShape { rows, cols, dtype: files.tensors.get(weight).dtype };
            if is_experts(weight.part) {
                experts.add(part);
                experts_bytes += backend.matrix_bytes(&[part]);
                continue;
            } else if weight.part == head_part {
                head.add(part);
            } else if weight.part == Part::TokenEmbedding {
                // Only one row of the embedding is read per token, which is negligible.
                continue;
            } else {
                layers.add(part);
            }
            weights_bytes += backend.matrix_bytes(&[part]);
        }
        let kv_bytes = |blocks| backend.kv_bytes(&spec.kv_spec(blocks, kv_type, 0));
        let block_bytes = kv_bytes(2).saturating_sub(kv_bytes(1));
        Costs {
            weights_bytes: weights_bytes as f64,
            experts_bytes: experts_bytes as f64,
            experts_share,
            kv_bytes: block_bytes as f64 / (BLOCK_TOKENS * spec.kv_spec(1, kv_type, 0).planes().len()) as f64,
            layers: layers.plus(experts.times(experts_share)),
            head,
            windows: spec.layers.iter().map(|layer| layer.attention.window()).collect(),
        }
    }

    /// Shares that a test reached at this throughput.
    pub(super) fn shares(&self, case: &Case, tokens_per_s: f64, limits: &Limits) -> Shares {
        let seconds = case.tokens() as f64 / tokens_per_s;
        let drawn = match case.kind {
            BenchPhase::Prompt => 1.0,
            BenchPhase::Generation => case.tokens() as f64,
        };
        let products = self.layers.times(case.tokens() as f64).plus(self.head.times(drawn));
        let read = (case.kind == BenchPhase::Generation)
            .then(|| self.generation_bytes(case) / limits.read_bytes_per_s / seconds);
        Shares { read, arithmetic: limits.seconds(products) / seconds }
    }

    /// Bytes that all steps of a generation read: the weights once for all sequences, the experts that any sequence
    /// reaches, and the keys and values that each sequence attends to.
    fn generation_bytes(&self, case: &Case) -> f64 {
        let experts_met = 1.0 - (1.0 - self.experts_share).powf(case.batch as f64);
        let mut bytes = (self.weights_bytes + experts_met * self.experts_bytes) * case.len as f64;
        for step in 0..case.len {
            let context = case.depth + step + 1;
            let seen = |window: &Option<u32>| window.map_or(context, |window| context.min(window as usize));
            let keys: usize = self.windows.iter().map(seen).sum();
            bytes += case.batch as f64 * keys as f64 * self.kv_bytes;
        }
        bytes
    }
}

fn is_experts(part: Part) -> bool {
    use LayerPart::{ExpertDown, ExpertGate, ExpertUp};
    matches!(part, Part::Layer(_, ExpertGate(_) | ExpertUp(_) | ExpertDown(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { read_bytes_per_s: 1e6, int8_ops_per_s: 1e9, f32_ops_per_s: 1e8 };

    fn costs() -> Costs {
        Costs {
            weights_bytes: 10_000.0,
            experts_bytes: 0.0,
            experts_share: 0.0,
            kv_bytes: 10.0,
            layers: Products { int8: 5e5, f32: 0.0 },
            head: Products { int8: 0.0, f32: 5e4 },
            windows: vec![None, Some(4)],
        }
    }

    fn near(left: f64, right: f64) {
        assert!((left / right - 1.0).abs() < 1e-9, "{left} is not {right}");
    }

    #[test]
    fn a_generation_reads_its_weights_and_what_its_windows_let_it_see() {
        let case = Case { kind: BenchPhase::Generation, len: 2, depth: 16, batch: 3 };
        // Steps see 17 and 18 keys in one layer and 4 in the other.
        let bytes = 2.0 * 10_000.0 + 3.0 * 10.0 * (17.0 + 18.0 + 4.0 + 4.0);
        let shares = costs().shares(&case, 60.0, &LIMITS);
        near(shares.read.unwrap(), bytes / 1e6 / 0.1);
        // Six tokens with a million int8 and a hundred thousand f32 multiply-adds each, in a tenth of a second.
        near(shares.arithmetic, (6.0 * 1e6 / 1e9 + 6.0 * 1e5 / 1e8) / 0.1);
    }

    #[test]
    fn a_prompt_draws_one_token_and_its_share_is_of_the_arithmetic() {
        let case = Case { kind: BenchPhase::Prompt, len: 100, depth: 16, batch: 1 };
        let shares = costs().shares(&case, 500.0, &LIMITS);
        assert_eq!(shares.read, None);
        near(shares.arithmetic, (100.0 * 1e6 / 1e9 + 1e5 / 1e8) / 0.2);
    }

    #[test]
    fn a_step_reads_the_experts_that_its_sequences_go_to() {
        let costs = Costs { experts_bytes: 1000.0, experts_share: 0.25, kv_bytes: 0.0, ..costs() };
        let read = |batch| {
            costs.generation_bytes(&Case { kind: BenchPhase::Generation, len: 2, depth: 0, batch }) / 2.0
        };
        near(read(1), 10_000.0 + 250.0);
        near(read(2), 10_000.0 + 1000.0 * (1.0 - 0.75 * 0.75));
        near(read(1000), 11_000.0);
    }

    #[test]
    fn costs_of_a_mixture_of_experts_are_those_of_the_experts_used() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tiny/qwen3-moe");
        let files = ModelFiles::open(&path).unwrap();
        let device = Cpu::new(Some(1)).unwrap();
        let costs = Costs::new(&device.backend(), &files, KvType::F16);
        let spec = &files.spec;
        let attention = spec.hidden * (spec.heads().qkv_width() + spec.heads().q_width());
        // Eight experts of width 24, three of them per token.
        let layers = spec.layers.len() * (attention + spec.hidden * 8 + 3 * 3 * spec.hidden * 24);
        near(costs.layers.int8 + costs.layers.f32, layers as f64);
        near(costs.experts_share, 3.0 / 8.0);
        let experts = spec.layers.len() * 8 * 3 * spec.hidden * 24;
        assert!(costs.experts_bytes >= 2.0 * experts as f64, "{costs:?}");
    }

    #[test]
    fn costs_are_those_of_the_model() {
        let opened = crate::source::resolve(crate::DEMO_MODEL, None).unwrap().source.open().unwrap();
        let files = opened.decoder().unwrap();
        let device = Cpu::new(Some(1)).unwrap();
        let costs = Costs::new(&device.backend(), files, KvType::F16);
        let spec = &files.spec;
        let attention = spec.hidden * (spec.heads().qkv_width() + spec.heads().q_width());
        let layers =
            spec.layers.len() * (attention + 3 * spec.hidden * spec.layers[0].mlp.dense().unwrap().ffn);
        near(costs.layers.int8 + costs.layers.f32, layers as f64);
        near(costs.head.int8 + costs.head.f32, (spec.vocab * spec.hidden) as f64);
        near(costs.kv_bytes, (4 * spec.heads().kv_heads * spec.heads().head_dim) as f64);
        assert!(costs.weights_bytes > 0.5 * files.tensors.bytes() as f64, "{costs:?}");
    }
}
