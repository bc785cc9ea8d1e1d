//! Adapters of an engine. Each keeps its slot while a job or its loader holds the handle.

use std::any::Any;
use std::sync::Arc;

use hanzo_engine_ops::AnyBackend;

use super::Engine;
use crate::adapter::{Adapter, LoadedAdapter};
use crate::decoder::Decoder;
use crate::error::LoadError;
use crate::limits::ADAPTERS_MAX;
use crate::spec::TransformerSpec;

/// Adapter in its slot.
pub(super) struct ResidentAdapter {
    handle: Arc<LoadedAdapter>,
    // Dropped with the adapter: the caller's accounting of its memory.
    _kept: Box<dyn Any + Send>,
}

impl Engine {
    /// Bytes of an adapter in an engine with `step_tokens_max` rows per step, and of the buffers that the first
    /// adapter allocates.
    pub fn adapter_memory(
        backend: &AnyBackend,
        spec: &TransformerSpec,
        adapter: &Adapter,
        step_tokens_max: usize,
    ) -> (u64, u64) {
        Decoder::adapter_bytes(backend, spec, adapter, step_tokens_max)
    }

    /// Loads an adapter, opened for this model, between two steps. It stays until only the engine holds its handle
    /// and [`Engine::free_adapters`] is called; `kept` is dropped with it.
    ///
    /// # Errors
    /// `Unsupported` if all slots are taken, `Kernel` if the device cannot give the memory. Then nothing is kept.
    pub fn load_adapter(
        &mut self,
        adapter: &Adapter,
        kept: Box<dyn Any + Send>,
    ) -> Result<Arc<LoadedAdapter>, LoadError> {
        self.free_adapters();
        let free = self.adapters.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.adapters.len());
        if slot >= ADAPTERS_MAX {
            return Err(LoadError::Unsupported {
                file: adapter.file.clone(),
                key: "adapters of one model".into(),
                value: (slot + 1).to_string(),
                reason: format!("at most {ADAPTERS_MAX} are loaded at once; unload one first"),
            });
        }
        self.decoder.adapt(&mut self.backend, slot as u32, adapter)?;
        let handle = Arc::new(LoadedAdapter { slot: slot as u32, digest: adapter.digest });
        let held = ResidentAdapter { handle: handle.clone(), _kept: kept };
        if slot == self.adapters.len() {
            self.adapters.push(Some(held));
        } else {
            self.adapters[slot] = Some(held);
        }
        Ok(handle)
    }

    /// Frees the adapters whose handles are held only by the engine. Call it now and then; it looks at each
    /// adapter.
    pub fn free_adapters(&mut self) {
        // The step in flight may still read them.
        if self.flight.is_some() {
            return;
        }
        for (slot, held) in self.adapters.iter_mut().enumerate() {
            if held.as_ref().is_some_and(|held| Arc::strong_count(&held.handle) == 1) {
                self.decoder.unadapt(slot as u32);
                *held = None;
            }
        }
    }

    /// Number of loaded adapters.
    pub fn adapters(&self) -> usize {
        self.adapters.iter().flatten().count()
    }
}
