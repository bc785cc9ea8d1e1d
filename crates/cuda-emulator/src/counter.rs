//! Counts of the bytes of device memory that launches read and write, each byte once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hanzo_engine_kernels_cuda::{DeviceError, Kernel};

use crate::library::Library;

/// A launch and the bytes that it touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedLaunch {
    /// Kernel.
    pub kernel: Kernel,
    /// Bytes read, each counted once.
    pub read: u64,
    /// Bytes written, each counted once.
    pub written: u64,
    /// Bytes touched before the kernel waited for earlier kernels, each counted once.
    pub early: u64,
    /// Bytes that some kernel has touched so early until now and some kernel has written: an early start would depend
    /// on them.
    pub too_early: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(Mutex<CounterState>);

#[derive(Debug, Default)]
struct CounterState {
    memory: BTreeMap<u64, usize>, // bytes that are allocated, by address
    changed: bool,                // since the library was last told
    launches: Vec<CountedLaunch>,
}

impl Counter {
    fn state(&self) -> MutexGuard<'_, CounterState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn allocated(&self, address: u64, bytes: usize) {
        let mut state = self.state();
        state.memory.insert(address, bytes);
        state.changed = true;
    }

    pub(crate) fn freed(&self, address: u64) {
        let mut state = self.state();
        state.memory.remove(&address);
        state.changed = true;
    }

    pub(crate) fn take(&self) -> Vec<CountedLaunch> {
        std::mem::take(&mut self.state().launches)
    }

    /// Runs a launch and records its counts.
    pub(crate) fn watch(
        &self,
        library: &Library,
        kernel: Kernel,
        run: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        // The library is told ranges only when they change: threads that launch on one device would count together.
        let mut state = self.state();
        if std::mem::take(&mut state.changed) {
            let range = |(&at, &bytes): (&u64, &usize)| [at, at + bytes as u64];
            library.count(&state.memory.iter().map(range).collect::<Vec<_>>());
        }
        run()?;
        let [read, written, early, too_early] = library.counted();
        state.launches.push(CountedLaunch { kernel, read, written, early, too_early });
        Ok(())
    }
}
