//! Checks of rotary embedding with two tables of frequencies, chosen by the type of a row.

use super::bounds::{CaseErrors, hold, same_bits};
use super::random::Random;
use super::rig::{Rig, ok, rows_batch};
use super::rope::LIMITS;
use crate::reference::ReferenceBackend;
use crate::{
    AnyBackend, AttentionParams, Batch, HeadShape, KvLayout, KvSpec, KvType, LatentHeads, LatentParams,
    QkvParams, Rope, RopeKind, StepLimits,
};

const SHAPE: HeadShape = HeadShape { heads: 2, kv_heads: 1, head_dim: 40 };
const LATENTS: LatentHeads = LatentHeads { heads: 2, rank: 32, rope_dim: 16 };
const ROWS: usize = 9;
const TYPES: [u32; ROWS] = [0, 1, 1, 0, 1, 0, 0, 1, 1];
const MAGNITUDES: [f32; 2] = [1.25, 0.75];

/// Frequencies of each table.
fn tables(pairs: usize) -> [Vec<f32>; 2] {
    [0.9f32, 0.6].map(|ratio| (0..pairs as i32).map(|pair| ratio.powi(pair)).collect())
}

/// Checks rows of different types: each has the bits that its table alone gives, in `rope_to_cache` and
/// `latent_to_cache`, and attention reads keys rotated so.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_rope_tables(make: &dyn Fn() -> AnyBackend) {
    for kind in [RopeKind::Neox, RopeKind::Interleaved] {
        let what = format!("rope of two tables, {kind:?}");
        let mut x = Random::new(93).normals(ROWS * SHAPE.qkv_width());
        let rounding = make().facts().rounding;
        hold(rounding, &mut x);
        let (mixed, attended) = turned(make(), kind, &x, None);
        let alone = [0, 1].map(|table| turned(make(), kind, &x, Some(table)).0);
        same_bits(&what, &mixed, &by_type(&alone, SHAPE.qkv_width()), SHAPE.qkv_width());
        let (_, expected) = turned(AnyBackend::new(ReferenceBackend::new()), kind, &x, None);
        let mut errors = CaseErrors::of_operands(format!("attention over keys of {what}"), rounding);
        let width = SHAPE.q_width();
        for (at, (&found, &expected)) in attended.iter().zip(&expected).enumerate() {
            // The bound of stored keys in the plain case of `rope_to_cache`.
            errors.check(at / width, at % width, found, expected, 0.0, 0.03);
        }
        errors.finish();
        let what = format!("latents of two tables, {kind:?}");
        let mixed = turned_latents(make(), kind, None);
        let alone = [0, 1].map(|table| turned_latents(make(), kind, Some(table)));
        let width = LATENTS.heads * LATENTS.width();
        same_bits(&what, &mixed, &by_type(&alone, width), width);
    }
}

/// Each row as rotated with the table of its type.
fn by_type(alone: &[Vec<f32>; 2], width: usize) -> Vec<f32> {
    let row = |(row, &table): (usize, &u32)| alone[table as usize][row * width..][..width].to_vec();
    TYPES.iter().enumerate().flat_map(row).collect()
}

/// Frequencies of one table, or of both, and the batch that selects them.
fn frequencies(table: Option<usize>, pairs: usize) -> (Vec<f32>, Batch) {
    let batch = rows_batch(&[0; ROWS]);
    match table {
        Some(table) => (tables(pairs)[table].clone(), batch),
        None => (tables(pairs).concat(), Batch { types: TYPES.to_vec(), ..batch }),
    }
}

fn rope<V>(kind: RopeKind, inv_freq: &V, table: Option<usize>) -> Rope<&V> {
    let magnitude = MAGNITUDES[table.unwrap_or(0)];
    let long = if table.is_none() { Some(MAGNITUDES[1]) } else { None };
    Rope { kind, inv_freq, magnitude, axes: None, long }
}

/// `[q | k | v]` after `rope_to_cache` with keys left out, and attention over what it stored.
fn turned(backend: AnyBackend, kind: RopeKind, x: &[f32], table: Option<usize>) -> (Vec<f32>, Vec<f32>) {
    let HeadShape { kv_heads, head_dim, .. } = SHAPE;
    let (width, q_width) = (SHAPE.qkv_width(), SHAPE.q_width());
    let mut rig = Rig::new(backend, &StepLimits { rows: ROWS, width, heads: SHAPE, ..LIMITS });
    let layers = vec![KvLayout::Heads { kv_heads, head_dim, window: None }];
    let spec = KvSpec { layers, blocks: 1, kv_type: KvType::F16, ..KvSpec::default() };
    let mut kv = ok("kv", rig.backend.kv(&spec));
    // A quarter of a head is not rotated.
    let (inv_freq, batch) = frequencies(table, 15);
    let inv_freq = rig.vector(&inv_freq);
    let (mut qkv, mut out) = (rig.upload(x, width), rig.blank(ROWS, q_width));
    let params = QkvParams { rope: Some(rope(kind, &inv_freq, table)), ..QkvParams::plain(SHAPE) };
    let attention = AttentionParams::of(SHAPE, 1.0 / (head_dim as f32).sqrt());
    rig.step(&batch, |rig| {
        rig.backend.rope_to_cache(&mut qkv, &params, &mut kv, 0);
        rig.backend.attention(&qkv, &attention, &kv, 0, &mut out);
    });
    let what = "rope_to_cache of two tables";
    let mut rows = rig.download(what, &qkv, ROWS, width);
    // Only the queries are specified in the rows afterwards.
    rows.chunks_exact_mut(width).for_each(|row| row[q_width..].fill(0.0));
    (rows, rig.download(what, &out, ROWS, q_width))
}

/// Queries of latents after `latent_to_cache`.
fn turned_latents(backend: AnyBackend, kind: RopeKind, table: Option<usize>) -> Vec<f32> {
    let LatentHeads { heads, rank, rope_dim } = LATENTS;
    let width = LATENTS.width();
    let shape = HeadShape { heads, kv_heads: 1, head_dim: width };
    let mut rig = Rig::new(backend, &StepLimits { rows: ROWS, width: heads * width, heads: shape, ..LIMITS });
    let layers = vec![KvLayout::Latent { rank, rope_dim }];
    let spec = KvSpec { layers, blocks: 1, kv_type: KvType::F16, ..KvSpec::default() };
    let mut kv = ok("kv", rig.backend.kv(&spec));
    let (inv_freq, batch) = frequencies(table, rope_dim / 2);
    let (norm, inv_freq) = (rig.vector(&vec![1.0; rank]), rig.vector(&inv_freq));
    let mut random = Random::new(94);
    let mut latent = rig.upload(&random.normals(ROWS * width), width);
    let mut queries = rig.upload(&random.normals(ROWS * heads * width), heads * width);
    rig.step(&batch, |rig| {
        let rope = rope(kind, &inv_freq, table);
        let params = LatentParams { shape: LATENTS, norm: &norm, norm_eps: 1e-5, rope };
        rig.backend.latent_to_cache(&mut latent, &mut queries, &params, &mut kv, 0);
    });
    rig.download("latent_to_cache of two tables", &queries, ROWS, heads * width)
}
