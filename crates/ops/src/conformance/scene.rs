//! Sequences with known queries, keys and values in a paged cache with shuffled blocks, and steps over any part of
//! them. The checks of attention and of whole steps use them.

use std::ops::Range;

use half::f16;

use super::random::Random;
use super::rig::Rig;
use crate::quant::{e4m3, to_e4m3};
use crate::{
    AttentionParams, BLOCK_TOKENS, Batch, HeadShape, KvGroups, KvLayout, KvPlace, KvSpec, KvType, MemorySpan,
    Operands, QkvParams, Rounding, RowSource, StepLimits,
};

/// A sequence of a scene.
pub(super) struct Sequence {
    /// Number of tokens.
    pub(super) length: u32,
    /// Block ids of the whole sequence, in each layer group.
    pub(super) blocks: [Vec<u32>; 2],
    /// Projection of each token.
    pub(super) qkv: Vec<f32>, // (position, qkv_width)
}

/// Positions `start..start + rows` of a sequence: its part in one step.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    pub(super) sequence: usize,
    pub(super) start: u32,
    pub(super) rows: u32,
}

/// Settings of attention as plain numbers.
#[derive(Clone, Debug)]
pub(super) struct AttentionCase {
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) window: Option<u32>,
    pub(super) chunked: bool,
    /// Whether rows see their sequence, as it is in the cache, by cross-attention; their own blocks are different.
    pub(super) memory: bool,
    pub(super) sinks: Option<Vec<f32>>,
    pub(super) slopes: Option<Vec<f32>>,
    /// Number of tokens that see each other, from each multiple of it on. Fewer at the end of a step see only what is
    /// before them.
    pub(super) mutual: Option<u32>,
    /// Whether the layer is in a separate group, which keeps no more than its window and shares memory with another
    /// layer.
    pub(super) grouped: bool,
}

impl AttentionCase {
    /// Number of keys that the token at a position sees, if its step has the sequence up to `context`.
    pub(super) fn sees(&self, position: u32, context: u32) -> u32 {
        let end = self.mutual.map(|mutual| (position / mutual + 1) * mutual);
        end.filter(|&end| end <= context).unwrap_or(position + 1)
    }
}

pub(super) struct Scene {
    pub(super) shape: HeadShape,
    pub(super) kv_type: KvType,
    pub(super) sequences: Vec<Sequence>,
    blocks: usize,
}

/// Layer groups of a play, and the number of blocks after which a sequence reuses one in the second group.
struct Groups {
    groups: KvGroups,
    period: usize,
}

/// The layer of these checks. The layers before and after it hold other data, with other heads.
const LAYER: usize = 1;
const OTHER: HeadShape = HeadShape { heads: 1, kv_heads: 1, head_dim: 32 };
/// Rows of the largest step of these checks.
pub(super) const STEP_ROWS_MAX: usize = 512;

/// Cross-attention spans of so many rows over so many keys: of several rows the first see none, and each further third
/// sees another part.
pub(super) fn memory_parts(rows: u32, keys: u32) -> impl Iterator<Item = (Range<u32>, Range<u32>)> {
    let third = rows / 3;
    let parts = match third {
        0 => vec![(0..rows, 0..keys)],
        _ => vec![(third..2 * third, keys / 4..keys / 2 + 1), (2 * third..rows, keys / 3..keys)],
    };
    parts.into_iter()
}

impl Scene {
    /// Sequences of these lengths. Keys and values are normal, and exactly representable in the cache type, so that
    /// storing them rounds nothing. The queries of half the heads are normal. The others point at one key each, so
    /// that its weight in the softmax is near 1 if the row may see it: the row's own, its neighbours, the first, those
    /// at the edges of the window, or any. A mask that is off by one then changes everything.
    pub(super) fn new(
        shape: HeadShape,
        kv_type: KvType,
        rounding: Rounding,
        lengths: &[u32],
        window: Option<u32>,
        random: &mut Random,
    ) -> Self {
        let needed: Vec<usize> =
            lengths.iter().map(|&length| (length as usize).div_ceil(BLOCK_TOKENS)).collect();
        let blocks = 2 * needed.iter().sum::<usize>() + 3;
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        random.shuffle(&mut free);
        let sequences = lengths
            .iter()
            .zip(needed)
            .map(|(&length, needed)| Sequence {
                length,
                blocks: [(); 2].map(|()| free.split_off(free.len() - needed)),
                qkv: projections(shape, kv_type, rounding, length, window, random),
            })
            .collect();
        Self { shape, kv_type, sequences, blocks }
    }

    pub(super) fn limits(&self) -> StepLimits {
        let context = self.sequences.iter().map(|s| s.length).max().unwrap_or(1) as usize;
        StepLimits {
            rows: STEP_ROWS_MAX,
            sequences: self.sequences.len(),
            logit_rows: 1,
            context,
            width: self.shape.qkv_width(),
            vocab: 1,
            heads: self.shape,
            experts: 0,
            experts_used: 0,
            experts_width: 0,
            kv_groups: 2,
            heads_matmul_width: 0,
        }
    }

    /// Moves the tokens to other blocks.
    pub(super) fn move_blocks(&mut self, random: &mut Random) {
        let mut ids: Vec<u32> = (0..self.blocks as u32).collect();
        random.shuffle(&mut ids);
        for block in self.sequences.iter_mut().flat_map(|sequence| sequence.blocks.iter_mut().flatten()) {
            *block = ids[*block as usize];
        }
    }

    /// The batch of one step, of one layer group.
    pub(super) fn batch(&self, step: &[Chunk]) -> Batch {
        self.grouped_batch(step, &Groups { groups: KvGroups::default(), period: usize::MAX })
    }

    fn grouped_batch(&self, step: &[Chunk], Groups { groups, period }: &Groups) -> Batch {
        let mut batch = Batch { windows: groups.windows.clone(), ..Batch::default() };
        for chunk in step {
            let [whole, windowed] = &self.sequences[chunk.sequence].blocks;
            let context = chunk.start + chunk.rows;
            batch.sources.extend((chunk.start..context).map(RowSource::Token));
            batch.push_sequence(chunk.rows as usize, context as usize, |group, index| match group {
                0 => whole[index],
                _ => windowed[index % period],
            });
        }
        batch
    }

    /// Batch of a step whose rows see their sequences by cross-attention.
    fn memory_batch(&self, step: &[Chunk]) -> Batch {
        let mut batch = Batch::default();
        for chunk in step {
            let [memory, own] = &self.sequences[chunk.sequence].blocks;
            let context = (chunk.start + chunk.rows) as usize;
            batch.sources.extend((chunk.start..context as u32).map(RowSource::Token));
            batch.push_sequence(chunk.rows as usize, chunk.rows as usize, |_, index| own[index]);
            let first = batch.positions.len() as u32 - chunk.rows;
            batch.push_memory(context, memory.iter().copied());
            let whole = batch.memories.pop().expect("it was added");
            batch.memories.extend(memory_parts(chunk.rows, context as u32).map(|(rows, keys)| MemorySpan {
                row_first: first + rows.start,
                rows: rows.end - rows.start,
                first: keys.start,
                context: keys.end,
                ..whole
            }));
        }
        batch
    }

    /// Layer groups of a play. If the layer is in a separate group, each sequence reuses a block as soon as its
    /// content has left the window, so that keys that a row must not see are overwritten.
    fn groups(&self, setting: &AttentionCase, steps: &[Vec<Chunk>]) -> Groups {
        let (Some(window), true) = (setting.window, setting.grouped) else {
            return Groups { groups: KvGroups::default(), period: usize::MAX };
        };
        let rows = steps.iter().flatten().map(|chunk| chunk.rows as usize).max().unwrap_or(1);
        let place = |group, plane| KvPlace { group, plane };
        let places = vec![place(0, 0), place(1, 1), place(0, 1)];
        let seen = (window as usize - 1).div_ceil(BLOCK_TOKENS);
        Groups {
            groups: KvGroups { windows: vec![None, Some(window)], places },
            period: seen + (rows + BLOCK_TOKENS - 1).div_ceil(BLOCK_TOKENS),
        }
    }

    /// Plays the steps on a new cache: every step writes its keys and values, and those from `attend_from` on also
    /// attend. Returns each sequence's output, NaN where none was computed.
    pub(super) fn play(
        &self,
        rig: &mut Rig,
        setting: &AttentionCase,
        steps: &[Vec<Chunk>],
        attend_from: usize,
    ) -> Vec<Vec<f32>> {
        let shape = self.shape;
        let (width, q_width) = (shape.qkv_width(), shape.q_width());
        let shapes = [OTHER, shape, OTHER];
        let groups = self.groups(setting, steps);
        let mut kv = super::rig::ok("kv", rig.backend.kv(&self.cache_spec(shapes, &groups)));
        let sinks = setting.sinks.as_ref().map(|sinks| rig.vector(sinks));
        let slopes = setting.slopes.as_ref().map(|slopes| rig.vector(slopes));
        let keep = QkvParams::plain;
        let params = AttentionParams {
            shape,
            scale: setting.scale,
            softcap: setting.softcap,
            window: setting.window,
            chunked: setting.chunked,
            sinks: sinks.as_ref(),
            queries_alone: false,
            memory: setting.memory,
            slopes: slopes.as_ref(),
        };
        let mut outputs: Vec<Vec<f32>> =
            self.sequences.iter().map(|s| vec![f32::NAN; s.length as usize * q_width]).collect();
        for (i, step) in steps.iter().enumerate() {
            let rows: Vec<f32> = step.iter().flat_map(|chunk| self.rows(chunk).iter().copied()).collect();
            let count = rows.len() / width;
            let mut qkv = rig.upload(&rows, width);
            let other: Vec<f32> = (0..count * OTHER.qkv_width()).map(|i| 1.5 - (i % 7) as f32).collect();
            let mut other = rig.upload(&other, OTHER.qkv_width());
            let mut out = rig.blank(count, q_width);
            let mut batch = self.grouped_batch(step, &groups);
            if setting.mutual.is_some() {
                let sees = |chunk: &Chunk| {
                    let (start, context) = (chunk.start, chunk.start + chunk.rows);
                    (start..context).map(move |position| setting.sees(position, context))
                };
                batch.sees = step.iter().flat_map(sees).collect();
            }
            rig.step(&batch, |rig| {
                for (layer, shape) in shapes.into_iter().enumerate() {
                    let qkv = if layer == LAYER { &mut qkv } else { &mut other };
                    rig.backend.rope_to_cache(qkv, &keep(shape), &mut kv, layer);
                }
                if i >= attend_from && !setting.memory {
                    rig.backend.attention(&qkv, &params, &kv, LAYER, &mut out);
                }
            });
            if i >= attend_from && setting.memory {
                rig.step(&self.memory_batch(step), |rig| {
                    rig.backend.attention(&qkv, &params, &kv, LAYER, &mut out);
                });
            }
            if i < attend_from {
                continue;
            }
            let out = rig.download("attention", &out, count, q_width);
            let mut rest = &out[..];
            for chunk in step {
                let (rows, after) = rest.split_at(chunk.rows as usize * q_width);
                outputs[chunk.sequence][chunk.start as usize * q_width..][..rows.len()].copy_from_slice(rows);
                rest = after;
            }
        }
        outputs
    }

    /// KV cache of layers with these heads.
    fn cache_spec(&self, shapes: [HeadShape; 3], groups: &Groups) -> KvSpec {
        let layout =
            |HeadShape { kv_heads, head_dim, .. }| KvLayout::Heads { kv_heads, head_dim, window: None };
        KvSpec {
            layers: shapes.map(layout).to_vec(),
            groups: groups.groups.clone(),
            blocks: self.blocks,
            kv_type: self.kv_type,
            ..KvSpec::default()
        }
    }

    fn rows(&self, chunk: &Chunk) -> &[f32] {
        let width = self.shape.qkv_width();
        &self.sequences[chunk.sequence].qkv[chunk.start as usize * width..][..chunk.rows as usize * width]
    }
}

/// Steps that bring sequences to `starts[i]` tokens, in chunks no larger than a step.
pub(super) fn history(starts: &[u32]) -> Vec<Vec<Chunk>> {
    let mut steps = Vec::new();
    for (sequence, &end) in starts.iter().enumerate() {
        let mut start = 0;
        while start < end {
            let rows = (end - start).min(STEP_ROWS_MAX as u32);
            steps.push(vec![Chunk { sequence, start, rows }]);
            start += rows;
        }
    }
    steps
}

fn projections(
    shape: HeadShape,
    kv_type: KvType,
    rounding: Rounding,
    length: u32,
    window: Option<u32>,
    random: &mut Random,
) -> Vec<f32> {
    let HeadShape { heads, kv_heads, head_dim } = shape;
    let width = shape.qkv_width();
    let mut qkv = random.normals(length as usize * width);
    for position in 0..length {
        for head in 0..heads {
            if random.below(2) == 0 {
                continue;
            }
            let back = window.unwrap_or(1 + random.below(40) as u32);
            let target = match random.below(7) {
                0 => position,
                1 => position + 1,
                2 => position.saturating_sub(back),
                3 => (position + 1).saturating_sub(back),
                4 => position.saturating_sub(1),
                5 => 0,
                _ => random.below(length as usize) as u32,
            };
            let target = target.min(length - 1) as usize;
            let key = target * width + (heads + head * kv_heads / heads) * head_dim;
            let query = position as usize * width + head * head_dim;
            // A key's dot product with itself is about head_dim; with the usual scale this makes a score of 12.
            let factor = 12.0 / (head_dim as f32).sqrt();
            for i in 0..head_dim {
                qkv[query + i] = factor * qkv[key + i];
            }
        }
    }
    super::bounds::hold(rounding, &mut qkv);
    for row in qkv.chunks_exact_mut(width) {
        row[shape.q_width()..].chunks_exact_mut(head_dim).for_each(|head| hold(kv_type, rounding, head));
    }
    qkv
}

/// Rounds a key or value to what the cache type and a device's operands hold exactly, however a device computes the
/// scale.
fn hold(kv_type: KvType, rounding: Rounding, head: &mut [f32]) {
    match kv_type {
        KvType::F16 => head.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32()),
        KvType::Fp8 => head.iter_mut().for_each(|v| *v = e4m3(to_e4m3(*v))),
        KvType::Q8_0 => {
            for group in head.chunks_exact_mut(kv_type.group()) {
                let largest = group.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
                let scale = match rounding.operands {
                    Operands::F32 => f16::from_f32(largest / 127.0).to_f32(),
                    // A code of 7 bits times a power of two.
                    Operands::Bf16 => (largest / 127.0).log2().round().exp2(),
                };
                for v in group {
                    // The largest is 127 steps, so that the group's scale is the same again.
                    *v = if v.abs() == largest { 127.0f32.copysign(*v) } else { (*v / scale).round() };
                    *v = v.clamp(-127.0, 127.0) * scale;
                }
            }
        }
    }
}
