//! A decoder: the one network with causal attention over a paged cache, and logits on top. Which sequences run, and where
//! their keys and values live, is the scheduler's.

use std::sync::Arc;

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{
    AnyBackend, Batch, KernelError, KvId, KvSpec, Op, RowSource, Stage, StepLimits, Ticket,
    sampling::soft_cap,
};

use crate::adapter::Adapter;
use crate::error::LoadError;
use crate::model_files::ModelFiles;
use crate::network::{self, Loader, Network, WeightType};
use crate::spec::{Distance, HeadSpec, Part, TransformerSpec};
use crate::step::Step;

pub use crate::network::{ActivationSums, MemoryPlan};

/// A model's weights on a backend, and what it takes to run them.
pub struct Decoder {
    network: Network,
    memories: Option<ops::Kv>, // keys and values of what sequences remember, where layers read some
    slopes: Option<ops::Vector>, // (heads): what scores lose with distance
    head_bias: Option<Arc<[f32]>>, // (vocab)
    attention: CacheAttention,
    remembering: Vec<Op>, // from rows to `memories`, once some were remembered
}

/// Ops of each layer's attention, between the two lists of its program.
#[derive(Default)]
struct CacheAttention {
    /// The caches that the ops name: of tokens, and of features.
    caches: [Option<KvId>; 2],
    layers: Vec<Vec<Op>>,
}

impl Decoder {
    /// What [`Decoder::load`] and [`Decoder::prepare`] would take. Reads no weights.
    pub fn plan(backend: &AnyBackend, files: &ModelFiles) -> MemoryPlan {
        network::plan(backend, &files.spec, &files.tensors, WeightType::Stored, 0)
    }

    /// Reads and packs all weights. `progress` hears the share that is done, up to 1. At no time is more held
    /// than the packed weights and one matrix as stored; a mapped file's pages are given back as they are packed.
    ///
    /// # Errors
    /// `Kernel` where the backend cannot pack a type (nothing is packed then) or give the memory; `Unsupported` where
    /// layers read memories of pictures and the backend knows none.
    pub fn load(
        backend: &AnyBackend,
        files: &ModelFiles,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, LoadError> {
        if files.spec.picture_rows > 0 && !backend.facts().knows_memories {
            let device = backend.facts().device.clone();
            return Err(LoadError::Unsupported {
                file: files.info.name.clone(),
                key: "cross_attention_layers".to_owned(),
                value: "pictures".to_owned(),
                reason: format!("{device} does not run layers that read what is remembered of pictures"),
            });
        }
        let mut loader = Loader::new(backend, &files.spec, &files.tensors, WeightType::Stored, progress)?;
        backend.enter(Stage::Everywhere);
        let slopes = match files.spec.distance {
            Distance::Alibi(alibi) => Some(backend.vector(&alibi.slopes(files.spec.heads().heads))?),
            _ => None,
        };
        let head_bias = match files.spec.head.logit_bias() {
            true => Some(loader.take(Part::Head.bias())?.into()),
            false => None,
        };
        let attention = CacheAttention::default();
        let (network, remembering) = (loader.network()?, Vec::new());
        Ok(Self { network, memories: None, slopes, head_bias, attention, remembering })
    }

    /// What this decoder is.
    pub fn spec(&self) -> &TransformerSpec {
        &self.network.spec
    }

    /// Makes all buffers and the backend's scratch for steps within `limits`. Called once, before the first step.
    ///
    /// # Errors
    /// The backend's, when it cannot give the memory.
    pub fn prepare(&mut self, backend: &mut AnyBackend, limits: &StepLimits) -> Result<(), KernelError> {
        self.network.prepare(backend, limits.rows)?;
        self.attention = CacheAttention::default();
        self.remembering.clear();
        backend.reserve(limits)
    }

    /// Makes room for what sequences remember, once.
    ///
    /// # Errors
    /// The backend's, when it cannot give the memory.
    pub fn make_memories(&mut self, backend: &AnyBackend, spec: &KvSpec) -> Result<(), KernelError> {
        self.memories = Some(backend.kv(spec)?);
        self.remembering.clear();
        Ok(())
    }

    /// Remembers rows, `(n, hidden)`, the last of so many, in a memory's blocks.
    ///
    /// # Errors
    /// The device's. What is remembered is then unknown.
    ///
    /// # Panics
    /// Without [`Decoder::make_memories`], and beyond the step's limits.
    pub fn remember(
        &mut self,
        backend: &mut AnyBackend,
        rows: &[f32],
        end: usize,
        blocks: &[u32],
    ) -> Result<(), KernelError> {
        let count = rows.len() / self.network.spec.hidden;
        let mut batch = Batch::default();
        batch.sources.resize(count, RowSource::Embedding);
        batch.push_sequence(count, end, |_, index| blocks[index]);
        if self.remembering.is_empty() {
            let memories = self.memories.as_ref().expect("there is room for what is remembered");
            self.remembering = self.network.memory_ops(memories.id());
        }
        backend.begin(&batch)?;
        let written = self.network.give_remembered(backend, rows);
        backend.run_all(&self.remembering);
        backend.end().and(written)
    }

    /// Bytes of an adapter's matrices on a backend, and of the buffers that the first of them makes, for steps of so many rows.
    pub fn adapter_bytes(
        backend: &AnyBackend,
        spec: &TransformerSpec,
        adapter: &Adapter,
        rows: usize,
    ) -> (u64, u64) {
        let buffers = network::adapter_buffer_bytes(backend, spec, rows);
        (network::adapter_bytes(backend, spec, adapter, rows), buffers)
    }

    /// Puts an adapter, opened for this model, in a slot: batches name it by that ([`Batch::adapters`]).
    ///
    /// # Errors
    /// `Kernel` where the backend cannot give the memory; nothing is kept then.
    pub fn adapt(&mut self, backend: &mut AnyBackend, slot: u32, adapter: &Adapter) -> Result<(), LoadError> {
        self.network.adapt(backend, slot as usize, adapter)
    }

    /// Empties a slot that no batch names any more.
    pub fn unadapt(&mut self, slot: u32) {
        self.network.unadapt(slot as usize);
    }

    /// Sums the squares of what each matrix meets in the steps that follow. After [`Decoder::prepare`].
    ///
    /// # Errors
    /// The backend's, when it cannot give the memory.
    pub fn observe(&mut self, backend: &mut AnyBackend) -> Result<(), KernelError> {
        self.network.observe(backend)
    }

    /// What the layers' matrices have met since [`Decoder::observe`], each expert's by itself; nothing without it. Left out is what makes
    /// keys and values of latents where files have both in one matrix.
    ///
    /// # Errors
    /// The backend's, if it could not be read on the way.
    pub fn observed(&self) -> Result<Vec<(Part, ActivationSums<'_>)>, KernelError> {
        self.network.observed().map_or(Ok(Vec::new()), |observed| observed.of_parts(&self.network.spec))
    }

    /// One step: reads the batch's tokens, adds their keys and values to the cache, and writes the logits of
    /// `batch.logit_rows` to `logits`, `(logit_rows, vocab)`.
    ///
    /// # Errors
    /// The device's. The cache's content is then unknown.
    ///
    /// # Panics
    /// Without [`Decoder::prepare`], and on batches outside of its limits.
    pub fn forward(
        &mut self,
        backend: &mut AnyBackend,
        batch: &Batch,
        kv: &mut ops::Kv,
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        assert_eq!(
            logits.len(),
            batch.logit_rows.len() * self.network.spec.vocab,
            "a row of logits for each asked for"
        );
        backend.begin(batch)?;
        let cleared = self.network.clear_deep(backend, batch.rows(), false);
        self.layers_forward(backend, batch, kv);
        let computed = match logits.is_empty() {
            true => Ok(()),
            false => self.network.with_head(|head, hidden| backend.logits(head, hidden, logits)),
        };
        if let Some(bias) = &self.head_bias {
            let rows = logits.chunks_exact_mut(bias.len());
            rows.for_each(|row| row.iter_mut().zip(&bias[..]).for_each(|(logit, bias)| *logit += bias));
        }
        if let Some(cap) = self.softcap() {
            logits.iter_mut().for_each(|logit| *logit = soft_cap(cap, *logit));
        }
        // The step is ended whatever came of it, so that the device is given back.
        backend.end().and(cleared).and(computed)
    }

    fn softcap(&self) -> Option<f32> {
        match self.network.spec.head {
            HeadSpec::Logits(head) => head.softcap,
            HeadSpec::None | HeadSpec::MaskedLm(_) => None,
        }
    }

    /// One step that draws its tokens itself: reads the step's rows, adds their keys and values to the cache, and draws a token
    /// for each logit row. The device may compute it while the host goes on, until [`Backend::wait`]. `room` is
    /// `(logit_rows, vocab)`.
    ///
    /// # Errors
    /// The device's. The cache's content is then unknown.
    ///
    /// # Panics
    /// Without [`Decoder::prepare`], and on steps outside of its limits.
    pub fn submit(
        &mut self,
        backend: &mut AnyBackend,
        step: &mut Step,
        kv: &mut ops::Kv,
        room: &mut [f32],
    ) -> Result<Ticket, KernelError> {
        backend.begin(&step.batch)?;
        let drawn = self.drawn(backend, step, kv, room);
        if let Err(error) = drawn {
            // The step is ended whatever came of it, so that the device is given back.
            return backend.end().and(Err(error));
        }
        backend.submit()
    }

    fn drawn(
        &mut self,
        backend: &mut AnyBackend,
        step: &mut Step,
        kv: &mut ops::Kv,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let hidden = self.network.spec.hidden;
        let deep = step.given.iter().any(|given| given.width > hidden);
        self.network.clear_deep(backend, step.batch.rows(), deep)?;
        if !step.batch.memories.is_empty() {
            self.network.set_seeing(backend, &step.seeing)?;
        }
        for given in &step.given {
            let rows = &given.values[given.elements.clone()];
            self.network.give(backend, given.row, given.width, rows)?;
            self.network.pad_inputs(backend, given.row, rows.len() / given.width)?;
        }
        self.layers_forward(backend, &step.batch, kv);
        if step.draws.rows.is_empty() {
            return Ok(());
        }
        step.find_masks(backend);
        step.draws.softcap = self.softcap();
        step.draws.bias.clone_from(&self.head_bias);
        self.network.with_head(|head, hidden| backend.sample(head, hidden, &step.draws, room))
    }

    /// From the rows of a batch to their hidden states.
    fn layers_forward(&mut self, backend: &mut AnyBackend, batch: &Batch, kv: &mut ops::Kv) {
        self.attend_to(kv.id());
        let (network, attention) = (&mut self.network, &self.attention);
        network.set_adapting(!batch.adapters.is_empty());
        network.embed(backend, batch.rows());
        network.begin(backend);
        for (index, ops) in attention.layers.iter().enumerate() {
            // Features that no sequence of the step has are passed by.
            if network.spec.layers[index].attention.memory && batch.memories.is_empty() {
                network.norm_behind(backend, index);
            } else {
                network.run_layer(backend, index, ops);
            }
        }
        network.end(backend);
        backend.enter(Stage::Head);
    }

    /// Builds the ops of attention over a cache, unless they are there.
    fn attend_to(&mut self, kv: KvId) {
        let caches = [Some(kv), self.memories.as_ref().map(ops::Kv::id)];
        if self.attention.caches == caches {
            return;
        }
        let (network, slopes) = (&self.network, self.slopes.as_ref().map(ops::Vector::id));
        let of = |index: usize| {
            let attention = network.attention(index);
            let memories = caches[1].filter(|_| attention.spec.memory);
            attention.over_cache(memories.unwrap_or(kv), slopes)
        };
        self.attention = CacheAttention { caches, layers: (0..network.layers.len()).map(of).collect() };
    }

    /// Rows of the last step as the head reads them, after the last norm, from row `first` on: `out` is `(n, hidden)`.
    ///
    /// # Errors
    /// The backend's.
    pub fn read_hidden(
        &self,
        backend: &AnyBackend,
        first: usize,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        backend.read_rows(self.network.hidden(), first, out)?;
        // The last norm has the head's factor in it.
        let factor = self.network.spec.head.logit_scale();
        if factor != 1.0 {
            out.iter_mut().for_each(|value| *value /= factor);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
