//! Encoding of a window in pieces of some rows, so that other sequences' steps run in between: the convolutions,
//! the layers, and the keys and values that the decoder reads. Between pieces, the residual rows wait on the host.
//! In each layer, queries, keys and values of all rows are computed piece by piece first, then the rest. Results do
//! not depend on the cuts, bit for bit.

use std::ops::Range;

use hanzo_engine_ops::{AnyBackend, KernelError, QUERIES_PART, RowSource};

use super::network::{AlignmentKeys, Whisper};
use super::spec::WhisperSpec;
use crate::mel::unfold;

/// Maximum rows of a piece.
const PIECE_ROWS: usize = if cfg!(test) { QUERIES_PART } else { 10 * QUERIES_PART };
/// Cost of a product in attention, relative to one with weights.
const ATTENTION_COST: usize = 2;
/// Unit for products.
const MILLION: f64 = 1e6;

/// Maximum rows of a step over a window.
pub(super) fn rows_at_once(backend: &AnyBackend, spec: &WhisperSpec) -> usize {
    if backend.facts().attends_in_parts { spec.rows.min(PIECE_ROWS) } else { spec.rows }
}

/// Window that the encoder computes.
pub(super) struct EncoderWindow {
    slot: usize,
    at: At,
    heads: Vec<(usize, usize)>, // layers and heads whose keys are kept
    frames: Vec<f32>,           // (frames, mels)
    heard: Vec<f32>,            // (frames, hidden): output of the first convolution
    sums: Vec<f32>,             // (rows, hidden): residual
    followed: AlignmentKeys,
}

/// Position in the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Frames below this have passed the first convolution.
    First(usize),
    /// Rows below this have passed the second.
    Second(usize),
    /// Rows below this have the layer's queries, keys and values.
    Before(usize, usize),
    /// Rows below this have passed the layer.
    Behind(usize, usize),
    /// Rows below this are in the slot's cross-attention cache.
    Memory(usize),
}

impl Whisper {
    /// Starts a window: frames as [`crate::mel::normalize`] returns them, `(frames, mels)`, into a slot. Keeps the
    /// keys of `heads` (layer and head) for word timestamps. Discards a window in progress.
    pub(crate) fn hear(&mut self, slot: usize, frames: Vec<f32>, heads: &[(usize, usize)]) {
        assert!(slot < self.windows, "slot {slot} of {}", self.windows);
        let WhisperSpec { mels, hidden, rows, .. } = self.spec;
        assert_eq!(frames.len(), 2 * rows * mels, "the frames of a window");
        let head_dim = self.spec.heads(self.spec.decoder).head_dim;
        self.under_way = Some(EncoderWindow {
            slot,
            at: At::First(0),
            heads: heads.to_vec(),
            frames,
            heard: vec![0.0; 2 * rows * hidden],
            sums: vec![0.0; rows * hidden],
            followed: AlignmentKeys { keys: vec![0.0; heads.len() * rows * head_dim] },
        });
    }

    /// Advances the current window by about `millions` million products. At its end, returns the kept keys; the
    /// slot's cross-attention cache is then filled.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// If there is no current window.
    pub(crate) fn listen(&mut self, millions: usize) -> Result<Option<AlignmentKeys>, KernelError> {
        let mut window = self.under_way.take().expect("a window was begun");
        let mut left = millions as f64;
        while left > 0.0 {
            let (at, cost) = match window.at {
                At::First(frame) => self.first_piece(&mut window, frame, left)?,
                At::Second(row) => self.second_piece(&mut window, row, left)?,
                At::Before(layer, row) => self.before_piece(&mut window, layer, row, left)?,
                At::Behind(layer, row) => self.behind_piece(&mut window, layer, row, left)?,
                At::Memory(row) => self.memory_piece(&mut window, row, left)?,
            };
            let Some(at) = at else {
                #[cfg(test)]
                {
                    self.encoded = window.sums;
                }
                return Ok(Some(window.followed));
            };
            window.at = at;
            left -= cost;
        }
        self.under_way = Some(window);
        Ok(None)
    }

    /// Next rows from `row` on, for products of `cost` a row, and their cost in millions. Begins a step over them.
    fn rows_from(
        &mut self,
        slot: usize,
        row: usize,
        cost: usize,
        left: f64,
    ) -> Result<(Range<usize>, f64), KernelError> {
        let (all, cost) = (self.spec.rows, cost as f64 / MILLION);
        let fitting = (left / cost.max(f64::MIN_POSITIVE)) as usize / QUERIES_PART * QUERIES_PART;
        let most = match self.backend.facts().attends_in_parts {
            true => fitting.clamp(QUERIES_PART, PIECE_ROWS),
            false => all,
        };
        let rows = row..all.min(row + most);
        self.batch.clear();
        self.batch.sources.resize(rows.len(), RowSource::Embedding);
        self.batch.push_sequence(rows.len(), rows.end, |_, index| Self::block(slot, all, index));
        self.backend.begin(&self.batch)?;
        let spent = cost * rows.len() as f64;
        Ok((rows, spent))
    }

    /// First convolution for as many frames as a step has rows.
    fn first_piece(
        &mut self,
        window: &mut EncoderWindow,
        frame: usize,
        left: f64,
    ) -> Result<(Option<At>, f64), KernelError> {
        let WhisperSpec { mels, hidden, rows: all, .. } = self.spec;
        let width = 3 * mels;
        // A window has two frames for each row.
        let (half, row) = (frame / all, frame % all);
        let (rows, spent) = self.rows_from(window.slot, row, width * hidden, left)?;
        let Self { backend, buffers, program, room, .. } = self;
        let unfolded = &mut room[..rows.len() * width];
        for (row, out) in unfolded.chunks_exact_mut(width).enumerate() {
            unfold(&window.frames, mels, (frame + row) as isize - 1, out);
        }
        let written = backend.write_rows(&mut buffers.narrow, 0, unfolded);
        backend.run_all(&program.first);
        backend.end().and(written)?;
        let frames = half * all + rows.start..half * all + rows.end;
        let heard = &mut window.heard[frames.start * hidden..frames.end * hidden];
        backend.read_rows(&buffers.normed, 0, heard)?;
        let at = if frames.end < 2 * all { At::First(frames.end) } else { At::Second(0) };
        Ok((Some(at), spent))
    }

    fn second_piece(
        &mut self,
        window: &mut EncoderWindow,
        row: usize,
        left: f64,
    ) -> Result<(Option<At>, f64), KernelError> {
        let WhisperSpec { hidden, rows: all, .. } = self.spec;
        let width = 3 * hidden;
        let (rows, spent) = self.rows_from(window.slot, row, width * hidden, left)?;
        let Self { backend, buffers, program, room, .. } = self;
        let unfolded = &mut room[..rows.len() * width];
        for (row, out) in rows.clone().zip(unfolded.chunks_exact_mut(width)) {
            unfold(&window.heard, hidden, 2 * row as isize - 1, out);
        }
        let written = backend.write_rows(&mut buffers.wide, 0, unfolded);
        backend.run_all(&program.second);
        backend.end().and(written)?;
        backend.read_rows(&buffers.residual, 0, &mut window.sums[rows.start * hidden..rows.end * hidden])?;
        let at = if rows.end < all { At::Second(rows.end) } else { At::Before(0, 0) };
        Ok((Some(at), spent))
    }

    /// Queries, keys and values of some rows.
    fn before_piece(
        &mut self,
        window: &mut EncoderWindow,
        index: usize,
        row: usize,
        left: f64,
    ) -> Result<(Option<At>, f64), KernelError> {
        let WhisperSpec { hidden, rows: all, .. } = self.spec;
        let (rows, spent) = self.rows_from(window.slot, row, 3 * hidden * hidden, left)?;
        let Self { backend, buffers, program, room, .. } = self;
        let sums = &window.sums[rows.start * hidden..rows.end * hidden];
        let written = backend.write_rows(&mut buffers.residual, 0, sums);
        backend.run_all(&program.encoder[index].rows);
        backend.end().and(written)?;
        let made = &mut room[..rows.len() * 3 * hidden];
        backend.read_rows(&buffers.wide, 0, made)?;
        backend.write_rows(&mut buffers.kept, rows.start, made)?;
        let at = if rows.end < all { At::Before(index, rows.end) } else { At::Behind(index, 0) };
        Ok((Some(at), spent))
    }

    /// The rest of a layer for some rows.
    fn behind_piece(
        &mut self,
        window: &mut EncoderWindow,
        index: usize,
        row: usize,
        left: f64,
    ) -> Result<(Option<At>, f64), KernelError> {
        let WhisperSpec { hidden, rows: all, encoder, .. } = self.spec;
        let attention = 2 * all * hidden * ATTENTION_COST;
        let cost = attention + hidden * hidden + 2 * hidden * encoder.ffn;
        let (rows, spent) = self.rows_from(window.slot, row, cost, left)?;
        let Self { backend, buffers, program, .. } = self;
        let sums = &mut window.sums[rows.start * hidden..rows.end * hidden];
        let written = backend.write_rows(&mut buffers.residual, 0, sums);
        backend.run(&match rows.len() == all {
            true => program.attention.whole(),
            false => program.attention.part(0..all, rows.clone()),
        });
        backend.run_all(&program.encoder[index].behind);
        backend.end().and(written)?;
        backend.read_rows(&buffers.residual, 0, sums)?;
        let at = match index + 1 {
            _ if rows.end < all => At::Behind(index, rows.end),
            next if next < encoder.layers => At::Before(next, 0),
            _ => At::Memory(0),
        };
        Ok((Some(at), spent))
    }

    /// Writes some encoded rows to the slot's cross-attention cache.
    fn memory_piece(
        &mut self,
        window: &mut EncoderWindow,
        row: usize,
        left: f64,
    ) -> Result<(Option<At>, f64), KernelError> {
        let WhisperSpec { hidden, rows: all, decoder, .. } = self.spec;
        let cost = decoder.layers * 2 * hidden * hidden;
        let (rows, spent) = self.rows_from(window.slot, row, cost, left)?;
        let head_dim = self.spec.heads(decoder).head_dim;
        let Self { backend, buffers, program, .. } = self;
        let sums = &mut window.sums[rows.start * hidden..rows.end * hidden];
        let mut done = backend.write_rows(&mut buffers.residual, 0, sums);
        backend.run_all(&program.encoded);
        let mut pairs = Vec::new();
        for (index, layer) in program.memories.iter().enumerate() {
            backend.run_all(layer);
            let wanted = window.heads.iter().enumerate().filter(|(_, (layer, _))| *layer == index);
            for (place, &(_, head)) in wanted {
                pairs.resize(rows.len() * 2 * hidden, 0.0);
                done = done.and(backend.read_rows(&buffers.pair, 0, &mut pairs));
                let keys = &mut window.followed.keys[(place * all + rows.start) * head_dim..];
                for (key, row) in keys.chunks_exact_mut(head_dim).zip(pairs.chunks_exact(2 * hidden)) {
                    key.copy_from_slice(&row[head * head_dim..][..head_dim]);
                }
            }
        }
        backend.end().and(done)?;
        #[cfg(test)]
        backend.read_rows(&buffers.normed, 0, sums)?;
        Ok(((rows.end < all).then_some(At::Memory(rows.end)), spent))
    }
}
