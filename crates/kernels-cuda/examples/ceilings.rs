//! Limits of a GPU, measured through the same driver as a model's steps: bytes copied in its memory, bytes copied from
//! the host, and the form of the kernels. Also the gap between two kernels of a recorded step, as in a step and
//! without programmatic dependent launch. One line of JSON.
//! usage: ceilings [CARD [MEGABYTES]]     of card 0, with 256 MiB

use std::time::Instant;

use hanzo_engine_kernels_cuda::{Card, CudaBackend, Driver, check};
use hanzo_engine_ops::{AnyBackend, Batch, BufferRole, HeadShape, KernelError, RowOp, RowSource, StepLimits};

const COLS: usize = 4096;
/// Kernels of the recorded step, each of one row.
const KERNELS: usize = 256;
const REPEATS: usize = 20;
/// Copies of the same bytes in one step.
const COPIES: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |otherwise: usize| arguments.next().map_or(Ok(otherwise), |text| text.parse());
    let (ordinal, megabytes): (usize, usize) = (number(0)?, number(256)?);
    let card = Driver::default().open(ordinal)?;
    check(&card)?;
    let rows = (megabytes << 20) / (4 * COLS);
    let (copied, uploaded) = copies(&card, rows.max(1))?;
    let (gap, gap_in_turn) = (gap(&card)?, gap(&Driver::default().in_turn().open(ordinal)?)?);
    println!(
        "{{\"card\": \"{}\", \"kernels\": \"{}\", \"copy_bytes_per_s\": {copied:.0}, \"upload_bytes_per_s\": {uploaded:.0}, \
         \"gap_s\": {gap:.3e}, \"gap_in_turn_s\": {gap_in_turn:.3e}}}",
        card.info(),
        card.kernels().replace(['\\', '"'], " ")
    );
    Ok(())
}

fn backend(card: &Card, rows: usize) -> Result<AnyBackend, KernelError> {
    let mut backend = AnyBackend::new(CudaBackend::new(card.clone()));
    backend.reserve(&StepLimits {
        rows,
        sequences: 1,
        logit_rows: 1,
        context: rows,
        width: 1,
        vocab: 1,
        heads: HeadShape { heads: 1, kv_heads: 1, head_dim: 32 },
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    })?;
    Ok(backend)
}

fn batch(rows: usize) -> Batch {
    let mut batch = Batch::default();
    batch.sources.extend((0..rows as u32).map(RowSource::Token));
    batch.push_sequence(rows, rows, |_, at| at as u32);
    batch
}

/// Shortest of some times.
fn best(mut thing: impl FnMut() -> Result<(), KernelError>) -> Result<f64, KernelError> {
    let mut least = f64::INFINITY;
    for _ in 0..REPEATS {
        let began = Instant::now();
        thing()?;
        least = least.min(began.elapsed().as_secs_f64());
    }
    Ok(least)
}

/// Bytes read and written in a second by a kernel that only copies, and bytes from the host.
fn copies(card: &Card, rows: usize) -> Result<(f64, f64), KernelError> {
    let (mut backend, batch) = (backend(card, rows)?, batch(rows));
    let x = backend.buffer(BufferRole::Residual, rows, COLS)?;
    let mut out = backend.buffer(BufferRole::Residual, rows, COLS)?;
    let bytes = (4 * rows * COLS) as f64;
    // Time of one more copy: a step of so many rows also has work on the host.
    let mut step = |copies: usize| {
        best(|| {
            backend.begin(&batch)?;
            (0..copies).for_each(|_| backend.row_op(&RowOp::Take { x: &x, first: 0 }, &mut out));
            backend.end()
        })
    };
    let copy = (step(1 + COPIES)? - step(1)?) / COPIES as f64;
    let numbers = vec![1.0; rows * COLS];
    let upload = best(|| {
        backend.write_rows(&mut out, 0, &numbers)?;
        backend.end()
    })?;
    Ok((2.0 * bytes / copy, bytes / upload))
}

/// Seconds from one kernel of a recorded step to the next, each with almost no work.
fn gap(card: &Card) -> Result<f64, KernelError> {
    let (mut backend, batch) = (backend(card, 1)?, batch(1));
    let mut out = backend.buffer(BufferRole::Residual, 1, 32)?;
    let step = best(|| {
        backend.begin(&batch)?;
        (0..KERNELS).for_each(|_| backend.row_op(&RowOp::Scale(1.0), &mut out));
        backend.end()
    })?;
    Ok(step / KERNELS as f64)
}
