//! Offloading of KV blocks: blocks evicted from the cache go to a [`BlockStore`], and come back for prompts with
//! the same prefix. A job whose prompt is stored beyond its cached prefix waits, without holding up others, until
//! the missing blocks are read or turn out to be gone. Then it enters as usual, and finds the blocks in the cache.

use std::collections::{HashSet, VecDeque};

use hanzo_engine_ops::{BlockCopy, KernelError};

use super::Engine;
use crate::{
    job::{Job, JobId},
    kv::{BlockName, BlockStore},
};

/// Block store, and the jobs that wait for blocks.
pub(super) struct BlockStoreClient {
    store: Box<dyn BlockStore>,
    fetches: Vec<Fetch>,
    asked: HashSet<BlockName>,
    fetched: u64, // blocks
}

/// Job that waits for blocks.
struct Fetch {
    job: JobId,
    wanted: VecDeque<BlockName>, // not requested yet
    waits: Vec<BlockName>,       // requested
}

impl BlockStoreClient {
    /// Number of blocks that came back.
    pub(super) fn fetched(&self) -> u64 {
        self.fetched
    }

    /// Requests as many wanted blocks as the store accepts now.
    fn ask(&mut self, is_here: impl Fn(&BlockName) -> bool) {
        for fetch in &mut self.fetches {
            while let Some(&name) = fetch.wanted.front() {
                if !is_here(&name) {
                    if !self.asked.contains(&name) {
                        if !self.store.ask(name) {
                            return;
                        }
                        self.asked.insert(name);
                    }
                    fetch.waits.push(name);
                }
                fetch.wanted.pop_front();
            }
        }
    }

    /// Handles a block that has arrived or is gone. If it `ends` the fetch, the jobs that wait for it go on without
    /// the rest.
    fn came(&mut self, name: &BlockName, ends: bool) {
        self.asked.remove(name);
        for fetch in &mut self.fetches {
            let before = fetch.waits.len();
            fetch.waits.retain(|waits| waits != name);
            if ends && fetch.waits.len() < before {
                fetch.wanted.clear();
            }
        }
    }

    /// Removes and returns the jobs that wait for nothing any more.
    fn done(&mut self) -> Vec<JobId> {
        let is_done = |fetch: &mut Fetch| fetch.wanted.is_empty() && fetch.waits.is_empty();
        self.fetches.extract_if(.., is_done).map(|fetch| fetch.job).collect()
    }
}

impl Engine {
    /// Bytes of a block, and the name of its format; `None` if blocks cannot be stored elsewhere.
    pub fn block_form(&self) -> Option<(usize, String)> {
        self.backend.kv_block_form(self.kv.id()).filter(|_| self.pool.shares())
    }

    /// Sets the store for blocks. It must only hold blocks of this model, in the format of [`Engine::block_form`].
    pub fn keep_blocks(&mut self, store: Box<dyn BlockStore>) {
        self.pool.watch_leaving();
        self.kept = Some(BlockStoreClient { store, fetches: Vec::new(), asked: HashSet::new(), fetched: 0 });
    }

    /// Whether a job waits for stored blocks; [`Engine::take_fetched`] puts arrived blocks into the cache.
    pub fn awaits_fetched(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| !kept.fetches.is_empty())
    }

    /// Starts to fetch the stored blocks of a job's prompt that are not cached.
    pub(super) fn fetch_prefix(&mut self, job: &Job) {
        let Some(kept) = &mut self.kept else { return };
        let Some((hashes, behind)) = self.scheduler.shareable(job.id) else { return };
        let has = |group: usize, hash: &_| kept.store.has(&BlockName::new(group, *hash));
        let missing = self.pool.missing(hashes, &has, behind);
        if missing.is_empty() {
            return;
        }
        let wanted = missing.into_iter().map(|(group, hash)| BlockName::new(group, hash)).collect();
        kept.fetches.push(Fetch { job: job.id, wanted, waits: Vec::new() });
        self.scheduler.set_fetching(job.id, true);
        kept.ask(|name| self.pool.has(name.group.into(), &name.hash()));
    }

    /// Removes a job's fetch.
    pub(super) fn forget_fetch(&mut self, job: JobId) {
        self.kept.iter_mut().for_each(|kept| kept.fetches.retain(|fetch| fetch.job != job));
    }

    /// Puts arrived blocks into the cache, requests more, and lets the jobs enter whose blocks are all there.
    ///
    /// # Errors
    /// The device's.
    pub fn take_fetched(&mut self) -> Result<(), KernelError> {
        while let Some(block) = self.kept.as_mut().and_then(|kept| kept.store.answer()) {
            let (group, hash) = (usize::from(block.name.group), block.name.hash());
            let wanted = block.found && group < self.pool.groups() && !self.pool.has(group, &hash);
            // Blocks behind a missing one may be of use, if there is room.
            let mut ends = !block.found && !self.pool.goes_on_behind();
            if wanted {
                match self.pool.take(group) {
                    Some(id) => {
                        self.save_evicted();
                        self.backend.copy_kv_block(self.kv.id(), id, BlockCopy::In(&block.bytes))?;
                        self.pool.publish(group, id, hash);
                        self.pool.set_kept(id);
                        self.pool.release(id);
                    }
                    None => ends = true,
                }
            }
            let Some(kept) = &mut self.kept else { break };
            kept.fetched += u64::from(wanted && !ends);
            kept.came(&block.name, ends);
            kept.store.recycle(block.bytes);
        }
        let Some(kept) = &mut self.kept else { return Ok(()) };
        kept.ask(|name| self.pool.has(name.group.into(), &name.hash()));
        for job in kept.done() {
            self.scheduler.set_fetching(job, false);
        }
        Ok(())
    }

    /// Stores blocks that are about to be overwritten, as far as the store has room.
    pub(super) fn save_evicted(&mut self) {
        while let Some((id, group, hash)) = self.pool.next_evicted() {
            self.save(id, BlockName::new(group, hash));
        }
    }

    /// Stores up to `most` blocks that may be evicted later. Returns whether there may be more to store now.
    pub fn save_blocks(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some((id, group, hash)) = self.pool.next_unsaved() else { return false };
            if !self.save(id, BlockName::new(group, hash)) {
                self.pool.save_later(id);
                return false;
            }
            self.pool.set_kept(id);
        }
        true
    }

    /// Stores a block. Returns false if there is no room.
    fn save(&mut self, id: u32, name: BlockName) -> bool {
        let Some(kept) = &mut self.kept else { return true };
        let (backend, kv) = (&mut self.backend, self.kv.id());
        kept.store.has(&name)
            || kept.store.put(name, &mut |bytes| backend.copy_kv_block(kv, id, BlockCopy::Out(bytes)).is_ok())
    }
}
