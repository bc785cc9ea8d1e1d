//! Storage of operands by number.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::op::Release;
use crate::{Handle, OperandId};

/// Operands of one kind, each in a slot of its own.
pub(crate) struct Slots<T> {
    cells: Mutex<Cells<T>>,
}

/// The slots themselves.
pub(crate) struct Cells<T> {
    operands: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T: Send + 'static> Slots<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { cells: Mutex::new(Cells { operands: Vec::new(), free: Vec::new() }) })
    }

    /// Waits for the cells. No op leaves them half changed but one that panics, after which no step runs.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Cells<T>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert<K>(self: &Arc<Self>, operand: T) -> Handle<K> {
        let mut cells = self.lock();
        let slot = match cells.free.pop() {
            Some(slot) => {
                cells.operands[slot] = Some(operand);
                slot
            }
            None => {
                cells.operands.push(Some(operand));
                cells.operands.len() - 1
            }
        };
        Handle::new(slot, self.clone())
    }
}

impl<T: Send + 'static> Release for Slots<T> {
    fn release(&self, slot: usize) {
        let mut cells = self.lock();
        let operand = cells.operands[slot].take();
        cells.free.push(slot);
        drop(cells);
        drop(operand); // without the lock: a device may take long to free memory
    }
}

const ABSENT: &str = "an op names each operand once, and only operands whose handles live";

impl<T> Cells<T> {
    pub(crate) fn get<K>(&self, id: OperandId<K>) -> &T {
        self.operands[id.slot()].as_ref().expect(ABSENT)
    }

    pub(crate) fn get_mut<K>(&mut self, id: OperandId<K>) -> &mut T {
        self.operands[id.slot()].as_mut().expect(ABSENT)
    }

    pub(crate) fn take<K>(&mut self, id: OperandId<K>) -> T {
        self.operands[id.slot()].take().expect(ABSENT)
    }

    /// Puts an operand back that was taken.
    pub(crate) fn put<K>(&mut self, id: OperandId<K>, operand: T) {
        self.operands[id.slot()] = Some(operand);
    }

    /// Changes one operand by an op that reads others of its kind.
    pub(crate) fn change<K>(&mut self, id: OperandId<K>, change: impl FnOnce(&mut Self, &mut T)) {
        let mut operand = self.take(id);
        change(self, &mut operand);
        self.put(id, operand);
    }
}
