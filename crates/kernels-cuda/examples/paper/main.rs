//! Roofline of decoding a token on a GPU, as tables in Markdown. The kernels of a decoder's step are planned by the
//! same code as on a GPU, and the bytes and operations of each are counted (`tests/emulated/paper.rs` checks the
//! counts to the byte). A GPU's measured speeds then give the shortest possible time.
//! usage: paper [GIGABYTES_PER_S [GAP_MICROSECONDS [TERAFLOPS]]]     of an H200 as measured, 4300, 1.3 and 770

mod network;

use hanzo_engine_kernels_cuda::{Ledger, Traffic};
use hanzo_engine_ops::{HeadShape, KernelError, KvType};
use network::{Network, Size, Weights};

const fn size(layers: usize, (hidden, ffn): (usize, usize), heads: usize, tied: bool) -> Size {
    Size { layers, hidden, ffn, heads: HeadShape { heads, kv_heads: 8, head_dim: 128 }, vocab: 151_936, tied }
}

const SIZES: [(&str, Size); 3] = [
    ("Qwen3-0.6B", size(28, (1024, 3072), 16, true)),
    ("Qwen3-4B", size(36, (2560, 9728), 32, true)),
    ("Qwen3-8B", size(36, (4096, 12_288), 32, false)),
];
const WEIGHTS: [(&str, Weights); 3] =
    [("BF16", Weights::Bf16), ("FP8", Weights::Fp8), ("Q4_K_M", Weights::Q4KM)];
const SEQUENCES: [usize; 2] = [1, 256];
const CONTEXT: usize = 1024;
/// Configurations that have been timed on a GPU: one sequence of 128 tokens from the first on.
const TIMED: [(usize, &str, Weights); 3] =
    [(0, "F16", Weights::F16), (1, "F16", Weights::F16), (2, "Q4_K_M", Weights::Q4KM)];
const TIMED_CONTEXT: usize = 64;

/// Speeds of a GPU, and the gap between two kernels of a CUDA graph.
struct Card {
    bytes_per_s: f64,
    gap_s: f64,
    operations_per_s: f64,
}

/// Counts and times of a step.
struct Step {
    kernels: usize,
    traffic: Traffic,
    gaps_s: f64,
    bytes_s: f64,      // of memory-bound kernels
    operations_s: f64, // of kernels bound by the tensor cores
    floor_s: f64,
}

impl Card {
    fn step(&self, size: Size, weights: Weights, batch: (usize, usize)) -> Result<Step, KernelError> {
        let ledger = Ledger::default();
        let mut network = Network::new(ledger.clone(), size, weights, KvType::F16, batch)?;
        network.step()?;
        let entries = ledger.take();
        let mut step = Step {
            kernels: entries.len(),
            traffic: Traffic::default(),
            gaps_s: entries.len() as f64 * self.gap_s,
            bytes_s: 0.0,
            operations_s: 0.0,
            floor_s: 0.0,
        };
        for entry in &entries {
            step.traffic += entry.traffic;
            let bytes_s = entry.traffic.bytes() as f64 / self.bytes_per_s;
            let operations_s = entry.traffic.operations as f64 / self.operations_per_s;
            if bytes_s >= operations_s {
                step.bytes_s += bytes_s;
            } else {
                step.operations_s += operations_s;
            }
        }
        // Lower bound for any program: the file's weights and the cache once, and the formula's products.
        let bytes_s = (network.weight_bytes() + step.traffic.cache) as f64 / self.bytes_per_s;
        let operations = 2.0 * parameters(size) as f64 * batch.0 as f64;
        step.floor_s = bytes_s.max(operations / self.operations_per_s);
        Ok(step)
    }
}

/// Number of weights that a row is multiplied with.
fn parameters(size: Size) -> usize {
    let Size { layers, hidden, ffn, heads, vocab, .. } = size;
    layers * hidden * (heads.qkv_width() + heads.q_width() + 3 * ffn) + vocab * hidden
}

impl Step {
    fn seconds(&self) -> f64 {
        self.gaps_s + self.bytes_s + self.operations_s
    }

    fn row(&self, name: &str, weights: &str, sequences: usize) -> String {
        let Traffic { weights: of_weights, cache, others, written, .. } = self.traffic;
        let [of_weights, cache, others] =
            [of_weights, cache, others + written].map(|bytes| format!("{:.1}", bytes as f64 / 1e6));
        let parts =
            [("weights and cache", self.bytes_s), ("products", self.operations_s), ("gaps", self.gaps_s)];
        let [bytes, products, gaps] = parts.map(|(_, seconds)| 100.0 * seconds / self.seconds());
        format!(
            "| {name} | {weights} | {sequences} | {} | {of_weights} | {cache} | {others} | {:.2} | {bytes:.0} / {products:.0} / {gaps:.0} | {:.0} | {:.0} | {:.0} % |",
            self.kernels,
            1e3 * self.seconds(),
            sequences as f64 / self.seconds(),
            sequences as f64 / self.floor_s,
            100.0 * self.floor_s / self.seconds(),
        )
    }
}

fn head(context: usize) {
    println!(
        "| model | weights | sequences of {context} | kernels | MB of weights | of cache | of all else | ms | % of that: memory / tensor cores / gaps | tokens a second | floor | share |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |otherwise: f64| arguments.next().map_or(Ok(otherwise), |text| text.parse());
    let card = Card {
        bytes_per_s: 1e9 * number(4300.0)?,
        gap_s: 1e-6 * number(1.3)?,
        operations_per_s: 1e12 * number(770.0)?,
    };
    head(CONTEXT);
    for (name, size) in SIZES {
        for (label, weights) in WEIGHTS {
            for sequences in SEQUENCES {
                let step = card.step(size, weights, (sequences, CONTEXT))?;
                println!("{}", step.row(name, label, sequences));
            }
        }
    }
    println!();
    head(TIMED_CONTEXT);
    for (at, label, weights) in TIMED {
        let (name, size) = SIZES[at];
        println!("{}", card.step(size, weights, (1, TIMED_CONTEXT))?.row(name, label, 1));
    }
    Ok(())
}
