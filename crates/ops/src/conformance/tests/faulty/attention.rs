//! Faults of attention over the cache.

use half::f16;

use super::{Fault, Faulty, inputs::laid_out, renumber_slots};
use crate::reference::{ReferenceBuffer, ReferenceKv};
use crate::{AttentionParams, Batch, BufferRole, DeviceMemory, HeadShape, SequenceSpan};

impl Faulty {
    /// `attention`.
    pub(super) fn attend(
        &mut self,
        qkv: &ReferenceBuffer,
        params: &AttentionParams<&Vec<f32>>,
        kv: &ReferenceKv,
        layer: usize,
        out: &mut ReferenceBuffer,
    ) {
        let shape = params.shape;
        let HeadShape { heads, kv_heads, head_dim } = shape;
        let layer = if self.fault == Fault::LayerIgnored { 0 } else { layer };
        let slopes = vec![params.slopes.map_or(0.0, |slopes| slopes[0]); heads];
        let mut changed = AttentionParams { ..*params };
        match self.fault {
            Fault::ScaleIgnored => changed.scale = 1.0 / (head_dim as f32).sqrt(),
            Fault::WindowIgnored => changed.window = None,
            Fault::WindowOneMore => changed.window = params.window.map(|window| window + 1),
            Fault::WindowOneLess => changed.window = params.window.map(|window| (window - 1).max(1)),
            Fault::ChunksSlide => changed.chunked = false,
            Fault::MemorySeenCausally => changed.memory = false,
            Fault::SoftcapIgnored => changed.softcap = None,
            Fault::SinksIgnored => changed.sinks = None,
            Fault::SlopesIgnored => changed.slopes = None,
            Fault::SlopeOfFirstHead => changed.slopes = params.slopes.map(|_| &slopes),
            _ => {}
        }
        match self.fault {
            Fault::PicturesSeenCausally => {
                let batch = Batch { sees: Vec::new(), ..self.batch.clone() };
                self.with_batch(&batch, |inner| inner.attention(qkv, &changed, kv, layer, out));
            }
            Fault::MemorySeenFromItsBeginning => {
                let mut batch = self.batch.clone();
                batch.memories.iter_mut().for_each(|memory| memory.first = 0);
                self.with_batch(&batch, |inner| inner.attention(qkv, &changed, kv, layer, out));
            }
            Fault::PicturesSeenToTheEnd => {
                let mut batch = self.batch.clone();
                let spans = if batch.sees.is_empty() { &[][..] } else { &batch.sequences[..] };
                for span in spans {
                    let rows = span.row_first as usize..(span.row_first + span.rows) as usize;
                    batch.sees[rows].fill(span.context);
                }
                self.with_batch(&batch, |inner| inner.attention(qkv, &changed, kv, layer, out));
            }
            Fault::TablesIgnored => {
                let mut batch = self.batch.clone();
                batch.block_tables.iter_mut().enumerate().for_each(|(i, block)| *block = i as u32);
                renumber_slots(&mut batch);
                self.with_batch(&batch, |inner| inner.attention(qkv, &changed, kv, layer, out));
            }
            Fault::FutureSeen => {
                // Each row as if it were the last of its chunk.
                let (width, q_width) = (params.width(), shape.q_width());
                let rows = self.rows_of(qkv, width);
                let mut attended = Vec::new();
                for span in self.batch.sequences.clone() {
                    let mut batch = Batch { windows: self.batch.windows.clone(), ..Batch::default() };
                    batch.sources.push(crate::RowSource::Token(0));
                    batch.push_sequence(1, span.context as usize, |group, index| {
                        let (first, blocks) = self.batch.blocks(&span, group);
                        blocks[index - first]
                    });
                    for row in span.row_first..span.row_first + span.rows {
                        let mut query = self.inner.buffer(BufferRole::Operand, 1, width).unwrap();
                        let from = &rows[row as usize * width..][..width];
                        self.inner.write_rows(&mut query, 0, from).unwrap();
                        let mut seen = self.inner.buffer(BufferRole::Operand, 1, q_width).unwrap();
                        self.with_batch(&batch, |inner| {
                            inner.attention(&query, &changed, kv, layer, &mut seen);
                        });
                        attended.extend_from_slice(&{
                            let mut values = vec![0.0; q_width];
                            self.inner.read_rows(&seen, 0, &mut values).unwrap();
                            values
                        });
                    }
                }
                self.store(out, attended);
            }
            Fault::LastKeyMissed => {
                let shorter = |&span: &SequenceSpan| {
                    let misses = span.rows == 1 && span.context % 16 == 1 && span.context > 1;
                    SequenceSpan { context: span.context - u32::from(misses), ..span }
                };
                let spans: Vec<SequenceSpan> = self.batch.sequences.iter().map(shorter).collect();
                let windows = self.batch.windows.clone();
                let batch = laid_out(&self.batch, &spans, windows, |span, group, index| {
                    let (first, blocks) = self.batch.blocks(span, group);
                    blocks[index.saturating_sub(first)]
                });
                self.with_batch(&batch, |inner| inner.attention(qkv, &changed, kv, layer, out));
            }
            Fault::TablesFromFirstBlock => {
                let windows = vec![None; self.batch.groups()];
                let spans = self.batch.sequences.clone();
                let batch = laid_out(&self.batch, &spans, windows, |span, group, index| {
                    let (_, blocks) = self.batch.blocks(span, group);
                    blocks[index % blocks.len()]
                });
                self.with_batch(&batch, |inner| inner.attention(qkv, &changed, kv, layer, out));
            }
            Fault::GroupsIgnored => {
                let last = self.batch.groups() - 1;
                let windows = vec![None; last + 1];
                let spans = self.batch.sequences.clone();
                let batch = laid_out(&self.batch, &spans, windows, |span, group, index| {
                    let (first, blocks) = self.batch.blocks(span, last - group);
                    blocks[index.saturating_sub(first) % blocks.len()]
                });
                self.with_batch(&batch, |inner| inner.attention(qkv, &changed, kv, layer, out));
            }
            Fault::HeadsInterleaved => {
                // Query head h moves to where key-value head h % kv_heads is read, and comes back afterwards.
                let home = |head: usize| (head % kv_heads) * (heads / kv_heads) + head / kv_heads;
                let width = params.width();
                let rows = self.rows_of(qkv, width);
                let mut moved = rows.clone();
                for (from, to) in rows.chunks_exact(width).zip(moved.chunks_exact_mut(width)) {
                    for head in 0..heads {
                        to[home(head) * head_dim..][..head_dim]
                            .copy_from_slice(&from[head * head_dim..][..head_dim]);
                    }
                }
                let mut buffer = qkv.clone();
                self.store(&mut buffer, moved);
                self.inner.attention(&buffer, &changed, kv, layer, out);
                let mixed = self.rows_of(out, shape.q_width());
                let mut sorted = mixed.clone();
                for (from, to) in
                    mixed.chunks_exact(shape.q_width()).zip(sorted.chunks_exact_mut(shape.q_width()))
                {
                    for head in 0..heads {
                        to[head * head_dim..][..head_dim]
                            .copy_from_slice(&from[home(head) * head_dim..][..head_dim]);
                    }
                }
                self.store(out, sorted);
            }
            Fault::RowsOfChunkMatter => {
                self.inner.attention(qkv, &changed, kv, layer, out);
                let mut rows = self.rows_of(out, shape.q_width());
                for span in self.batch.sequences.iter().filter(|span| span.rows > 1) {
                    let at = span.row_first as usize * shape.q_width();
                    rows[at] *= 1.0 + f32::EPSILON;
                }
                self.store(out, rows);
            }
            _ => {
                let mut rows = self.rows_of(qkv, params.width());
                for row in rows.chunks_exact_mut(params.width()) {
                    row[..shape.q_width()].iter_mut().for_each(|q| *q = f16::from_f32(*q).to_f32());
                }
                let mut buffer = qkv.clone();
                self.inner.write_rows(&mut buffer, 0, &rows).unwrap();
                self.inner.attention(&buffer, &changed, kv, layer, out);
            }
        }
    }
}
