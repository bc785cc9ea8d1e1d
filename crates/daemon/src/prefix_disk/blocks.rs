//! Engine's side of the disk cache: preallocated buffers, orders to the disk threads, and their results.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    task::Waker,
};

use hanzo_engine_runtime::{
    EngineConfig,
    kv::{BlockName, BlockStore, KeptBlock},
};

use super::{BlockOrder, DiskState, Identity, Key, PrefixDisk};
use crate::limits::{PREFIX_DISK_READ_BYTES, PREFIX_DISK_WRITE_BYTES};

/// Disk blocks of one engine.
pub(crate) struct DiskBlocks {
    shared: Arc<DiskState>,
    model: Identity,
    bytes: usize,
    waker: Waker,
    reads: BlockQueue,
    writes: BlockQueue,
}

/// Queue to a disk thread and back. Each buffer is here, in the queue, or with the engine.
struct BlockQueue {
    orders: SyncSender<BlockOrder>,
    back: SyncSender<KeptBlock>,
    answers: Receiver<KeptBlock>,
    buffers: Vec<Vec<u8>>,
}

impl BlockQueue {
    fn new(orders: &SyncSender<BlockOrder>, buffers: usize, bytes: usize) -> BlockQueue {
        let (back, answers) = sync_channel(buffers);
        let buffers = (0..buffers).map(|_| vec![0; bytes]).collect();
        BlockQueue { orders: orders.clone(), back, answers, buffers }
    }
}

/// Number of buffers of this size within a memory limit; at least one.
fn buffers_in(room: usize, bytes: usize) -> usize {
    (room / bytes.max(1)).clamp(1, 64)
}

impl DiskBlocks {
    pub(super) fn new(disk: &PrefixDisk, model: Identity, bytes: usize, waker: Waker) -> DiskBlocks {
        let way = |orders, room| BlockQueue::new(orders, buffers_in(room, bytes), bytes);
        DiskBlocks {
            shared: disk.shared.clone(),
            model,
            bytes,
            waker,
            reads: way(&disk.reads, PREFIX_DISK_READ_BYTES),
            writes: way(&disk.writes, PREFIX_DISK_WRITE_BYTES),
        }
    }

    /// Memory of the buffers for an engine whose cache takes `kv_bytes` on all of its devices.
    pub(crate) fn planned(kv_bytes: u64, config: &EngineConfig) -> u64 {
        let block = kv_bytes / config.kv_blocks.max(1) as u64;
        let bytes = usize::try_from(block).unwrap_or(usize::MAX);
        let ways =
            [PREFIX_DISK_READ_BYTES, PREFIX_DISK_WRITE_BYTES].map(|room| buffers_in(room, bytes) as u64);
        ways.iter().sum::<u64>().saturating_mul(block)
    }

    fn key(&self, name: BlockName) -> Key {
        Key { model: self.model, name }
    }

    fn order(&self, key: Key, bytes: Vec<u8>, way: &BlockQueue) -> BlockOrder {
        BlockOrder { key, bytes, back: way.back.clone(), waker: self.waker.clone() }
    }
}

impl BlockStore for DiskBlocks {
    fn has(&self, name: &BlockName) -> bool {
        self.shared.has(&self.key(*name))
    }

    fn put(&mut self, name: BlockName, fill: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        while let Ok(written) = self.writes.answers.try_recv() {
            self.writes.buffers.push(written.bytes);
        }
        let Some(mut bytes) = self.writes.buffers.pop() else {
            self.shared.counts.dropped_blocks.inc();
            return false;
        };
        if !fill(&mut bytes) {
            self.writes.buffers.push(bytes);
            return false;
        }
        let order = self.order(self.key(name), bytes, &self.writes);
        match self.shared.begin_write(&self.writes.orders, order) {
            Ok(()) => true,
            Err(order) => {
                self.writes.buffers.push(order.bytes);
                self.shared.counts.dropped_blocks.inc();
                false
            }
        }
    }

    fn ask(&mut self, name: BlockName) -> bool {
        let Some(bytes) = self.reads.buffers.pop() else { return false };
        let order = self.order(self.key(name), bytes, &self.reads);
        match self.reads.orders.try_send(order) {
            Ok(()) => true,
            Err(error) => {
                let (TrySendError::Full(order) | TrySendError::Disconnected(order)) = error;
                // Report the block as missing at once, so that nothing waits for it.
                order.end(false);
                true
            }
        }
    }

    fn answer(&mut self) -> Option<KeptBlock> {
        self.reads.answers.try_recv().ok()
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        debug_assert_eq!(bytes.len(), self.bytes, "a buffer of another size");
        self.reads.buffers.push(bytes);
    }
}
