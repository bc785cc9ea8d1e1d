//! KV cache for cross-attention to image features (Llama 3.2 Vision), keyed by the pictures' digests. A job whose
//! pictures have gone through the tower waits for room here. Then its rows are projected, some per step, and the
//! job enters. Its blocks stay reserved while one of its sequences exists, running or not. Afterwards they stay
//! cached until the room is needed.

use std::sync::Arc;

use hanzo_engine_ops::{BLOCK_TOKENS, KernelError, KvSpec};

use super::{
    Engine, EngineConfig,
    pictures::{Ready, Work},
};
use crate::{
    job::JobId,
    kv::Memory,
    limits::PICTURES_REMEMBERED,
    media::{self, MediaSpan},
    spec::TransformerSpec,
};

/// The cross-attention cache, and the job that waits for it.
pub(super) struct Memories {
    blocks: usize,
    free: Vec<u32>,
    /// Cached entries by the pictures' digests, least recently used first.
    kept: Vec<(Vec<[u8; 32]>, Memory)>,
    under_way: Option<UnderWay>,
}

struct UnderWay {
    ready: Ready,
    /// Destination of its pictures, once there is room.
    to: Option<To>,
}

struct To {
    memory: Memory,
    /// All rows, (rows, hidden).
    rows: Vec<f32>,
    /// Number of rows already written.
    done: usize,
}

fn is_unheld(memory: &Memory) -> bool {
    Arc::strong_count(memory) == 1
}

/// Digests of a prompt's pictures that use the cross-attention cache.
fn names(spans: &[MediaSpan]) -> Vec<[u8; 32]> {
    spans.iter().filter(|span| span.is_remembered()).map(|span| span.digest).collect()
}

/// Shape of the cross-attention cache; `None` if the model has none.
pub(super) fn kv_spec(spec: &TransformerSpec, config: &EngineConfig) -> Option<KvSpec> {
    let rows = spec.picture_rows;
    (rows > 0).then(|| KvSpec {
        layers: spec.memory_layouts().collect(),
        blocks: PICTURES_REMEMBERED * rows.div_ceil(BLOCK_TOKENS),
        kv_type: config.kv_type,
        resident: config.kv_resident,
        ..KvSpec::default()
    })
}

impl Memories {
    pub(super) fn new(spec: &KvSpec) -> Memories {
        let free = (0..spec.blocks as u32).rev().collect();
        Memories { blocks: spec.blocks, free, kept: Vec::new(), under_way: None }
    }

    /// Looks up the entry of these pictures.
    fn find(&mut self, names: &[[u8; 32]]) -> Option<Memory> {
        let place = self.kept.iter().position(|(own, _)| own == names)?;
        let found = self.kept.remove(place);
        let memory = found.1.clone();
        self.kept.push(found);
        Some(memory)
    }

    /// Whether so many rows fit into free blocks and blocks that no job holds.
    fn has_room(&self, rows: usize) -> bool {
        let unheld = self.kept.iter().filter(|(_, memory)| is_unheld(memory));
        let there: usize = unheld.map(|(_, memory)| memory.len()).sum();
        rows.div_ceil(BLOCK_TOKENS) <= self.free.len() + there
    }

    /// Whether a job waits until others release their blocks.
    pub(super) fn waits_for_room(&self) -> bool {
        let waits = self.under_way.as_ref().filter(|waits| waits.to.is_none());
        waits.is_some_and(|waits| match &waits.ready.work {
            Work::Answer(job) => !self.has_room(media::remembered(&job.media)),
            Work::Embed(_) => false,
        })
    }

    /// Takes blocks for so many rows, evicting entries that no job holds; `None` if there is no room.
    fn take(&mut self, rows: usize) -> Option<Memory> {
        let blocks = rows.div_ceil(BLOCK_TOKENS);
        if !self.has_room(rows) {
            return None;
        }
        while self.free.len() < blocks {
            let oldest = self.kept.iter().position(|(_, memory)| is_unheld(memory))?;
            self.free.extend(self.kept.remove(oldest).1.iter());
        }
        Some(self.free.split_off(self.free.len() - blocks).into())
    }

    /// Number of jobs that wait.
    pub(super) fn count(&self) -> usize {
        usize::from(self.under_way.is_some())
    }

    pub(super) fn cancel(&mut self, job: JobId) {
        if let Some(UnderWay { to: Some(To { memory, .. }), .. }) =
            self.under_way.take_if(|waits| waits.ready.work.id() == job)
        {
            self.free.extend(memory.iter());
        }
    }

    pub(super) fn set_paused(&mut self, job: JobId, paused: bool) {
        if let Some(waits) = self.under_way.as_mut().filter(|waits| waits.ready.work.id() == job) {
            waits.ready.paused = paused;
        }
    }

    /// Asserts that each block is either free or held exactly once.
    pub(super) fn check(&self) {
        let under_way = self.under_way.iter().filter_map(|waits| waits.to.as_ref());
        let held = self.kept.iter().map(|(_, memory)| memory).chain(under_way.map(|to| &to.memory));
        let mut all: Vec<u32> = held.flat_map(|memory| memory.iter()).chain(&self.free).copied().collect();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..self.blocks as u32), "blocks of what is remembered");
    }
}

impl Engine {
    /// Writes a piece of the waiting job's rows: as many as a step has, or all of them if no other job runs.
    /// Returns whether a job waits here; then no other media are computed in this call.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn remember(&mut self, alone: bool) -> Result<bool, KernelError> {
        let Some(memories) = &mut self.memories else { return Ok(false) };
        let Some(UnderWay { ready, to }) = &mut memories.under_way else { return Ok(false) };
        let Work::Answer(job) = &ready.work else { unreachable!("only answers remember pictures") };
        let (media, hidden) = (job.media.clone(), self.decoder.spec().hidden);
        let Some(To { memory, rows, done }) = to else {
            let taken = memories.take(media::remembered(&media));
            if let Some(waits) = &mut memories.under_way {
                waits.to = taken.map(|memory| To { memory, rows: media::memory_of(&media, hidden), done: 0 });
            }
            return Ok(true);
        };
        let all = rows.len() / hidden;
        while *done < all {
            let end = all.min(*done + self.step_rows);
            self.decoder.remember(&mut self.backend, &rows[*done * hidden..end * hidden], end, memory)?;
            *done = end;
            if !alone {
                break;
            }
        }
        if *done == all {
            let memory = memory.clone();
            memories.kept.push((names(&media), memory.clone()));
            if let Some(UnderWay { ready, .. }) = memories.under_way.take() {
                self.enter_seen(&ready, Some(&memory));
            }
        }
        Ok(true)
    }

    /// Handles a job whose media rows are complete: it enters, or waits for the cross-attention cache first.
    pub(super) fn admit_seen(&mut self, ready: Ready) {
        let media = match &ready.work {
            Work::Answer(job) => job.media.clone(),
            Work::Embed(_) => Arc::default(),
        };
        let names = names(&media);
        match &mut self.memories {
            Some(memories) if !names.is_empty() => match memories.find(&names) {
                Some(memory) => self.enter_seen(&ready, Some(&memory)),
                None => memories.under_way = Some(UnderWay { ready, to: None }),
            },
            _ => self.enter_seen(&ready, None),
        }
    }

    fn enter_seen(&mut self, Ready { work, paused }: &Ready, memory: Option<&Memory>) {
        match work {
            Work::Answer(job) => self.enter(job, memory),
            Work::Embed(job) => self.enter_inputs(job),
        }
        self.scheduler.hold(work.id(), *paused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_holds_goes_when_room_is_needed() {
        let mut memories = Memories::new(&KvSpec { blocks: 4, ..KvSpec::default() });
        let name = |of: u8| vec![[of; 32]];
        let put = |memories: &mut Memories, of: u8, rows: usize| {
            let memory = memories.take(rows)?;
            memories.kept.push((name(of), memory.clone()));
            memories.check();
            Some(memory)
        };
        let one = put(&mut memories, 1, 17).unwrap();
        let two = put(&mut memories, 2, 32).unwrap();
        assert_eq!((one.len(), two.len()), (2, 2));
        assert!(put(&mut memories, 3, 1).is_none(), "both are held");
        drop(one);
        assert!(memories.find(&name(1)).is_some(), "still there");
        assert!(memories.find(&name(9)).is_none());
        drop(two);
        // The second was used least recently.
        assert!(put(&mut memories, 3, 16).is_some());
        assert!(memories.find(&name(2)).is_none() && memories.find(&name(1)).is_some());
        assert!(put(&mut memories, 4, 65).is_none(), "more than there is");
        memories.check();
    }
}
