//! Metrics of `/metrics`: the names and labels of the product's standard, and the engine's own. Counters and
//! histograms are updated at the event. Gauges are read from the models at each scrape, so that an idle model costs
//! nothing.

mod bounds;
mod counters;
mod histograms;
mod maker;
mod media;
mod rate;
mod series;
mod vllm;
mod waits;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Instant,
};

use hanzo_engine_access::Refusal;
use hanzo_engine_runtime::{EngineStats, FinishReason};
use hanzo_engine_telemetry::{Exemplars, TraceContext};
use prometheus::{
    Encoder as _, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Registry, TextEncoder, proto::MetricFamily,
};

use bounds::SECONDS;
use counters::{CallCounters, WorkCounters};
use histograms::Histograms;
use maker::Maker;
use media::{MediaMetrics, ModelMedia};
pub(crate) use rate::Rate;
use series::{remove, signed};
use waits::LoadWaits;

use crate::{config::MetricsCompat, views::ModelView};

const NAMESPACE: &str = "hanzo_engine";
/// Model label of requests that name no loaded model. Names made up by clients are not kept.
const NO_MODEL: &str = "";
/// All metrics of one daemon.
pub(crate) struct Metrics {
    registry: Registry,
    // Gauges are reset and set by one scrape at a time.
    scrape: Mutex<()>,
    // Names that have series, with the metrics of each.
    live: Mutex<HashMap<String, Weak<ModelMetrics>>>,
    histograms: Histograms,
    work: WorkCounters,
    calls: CallCounters,
    tokens_per_second: GaugeVec,
    kv_utilization: GaugeVec,
    batch_size: IntGaugeVec,
    queue_depth: IntGaugeVec,
    running: IntGaugeVec,
    kv_blocks: IntGaugeVec,
    memory: IntGaugeVec,
    memory_budget: IntGauge,
    models_loaded: IntGauge,
    ready: IntGauge,
    /// 1 while the key file cannot be read.
    pub(crate) keys_unreadable: IntGauge,
    model_info: IntGaugeVec,
    worker_resident: IntGaugeVec,
    worker_up: IntGaugeVec,
    adapters: IntGaugeVec,
    load_wait: LoadWaits,
    media: MediaMetrics,
    traced: [Exemplars; 2], // of request_duration_seconds and of time_to_first_token_seconds
}

/// Counters and histograms of one model, looked up once. They survive a restart of the worker. They are removed
/// when the model is unloaded and its last request has ended.
pub(crate) struct ModelMetrics {
    model: String,
    of: Weak<Metrics>,
    pub(crate) generated_tokens: IntCounter,
    pub(crate) prompt_tokens: IntCounter,
    pub(crate) first_token: Histogram,
    pub(crate) prefix_query_tokens: IntCounter,
    pub(crate) prefix_hit_tokens: IntCounter,
    pub(crate) preemptions: IntCounter,
    pub(crate) context_shifts: IntCounter,
    pub(crate) draft_tokens: IntCounter,
    pub(crate) accepted_draft_tokens: IntCounter,
    pub(crate) finished_stop: IntCounter,
    pub(crate) finished_length: IntCounter,
    pub(crate) cancelled: IntCounter,
    pub(crate) failed: IntCounter,
    pub(crate) worker_restarts: IntCounter,
    pub(crate) inter_token: Histogram,
    pub(crate) per_output_token: Histogram,
    pub(crate) queue_time: Histogram,
    pub(crate) prefill_time: Histogram,
    pub(crate) decode_time: Histogram,
    pub(crate) prompt_length: Histogram,
    pub(crate) embed_batch_size: Histogram,
    pub(crate) embedded: IntCounter,
    pub(crate) generation_length: Histogram,
    schedule: Histogram,
    media: ModelMedia,
    /// Tokens sampled over the last seconds.
    pub(crate) rate: Rate,
}

impl Metrics {
    /// Creates all metrics at zero.
    pub(crate) fn new(memory_budget_bytes: u64) -> Arc<Self> {
        let make = Maker(Registry::new());
        let model = &["model"];
        let info = make.gauge("build_info", "The running build; always 1.", &["version"]);
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let metrics = Self {
            histograms: Histograms::new(&make),
            work: WorkCounters::new(&make),
            calls: CallCounters::new(&make),
            scrape: Mutex::new(()),
            live: Mutex::default(),
            tokens_per_second: make
                .float("tokens_per_second", "Tokens generated per second, over the last 10 seconds."),
            kv_utilization: make
                .float("kv_cache_utilization", "Share of the KV cache that running requests hold, 0 to 1."),
            batch_size: make.gauge("batch_size", "Sequences in the last step; 0 when idle.", model),
            queue_depth: make.gauge("queue_depth", "Requests that wait to be run.", model),
            running: make.gauge("requests_running", "Requests that have begun and not ended.", model),
            kv_blocks: make.gauge("kv_blocks", "Blocks of the KV cache, by state.", &["model", "state"]),
            memory: make.gauge("memory_bytes", "Bytes a model takes, by kind.", &["model", "kind"]),
            memory_budget: make.single("memory_budget_bytes", "Bytes all models together may take."),
            keys_unreadable: make.single(
                "keys_unreadable",
                "Whether the file of keys cannot be read or used, 1 or 0; its keys are refused after 5 seconds.",
            ),
            ready: make.single(
                "ready",
                "Whether requests are answered, by a model that is ready or by one that is loaded for them: 1 or 0.",
            ),
            models_loaded: make.single("models_loaded", "Models that are ready or draining."),
            model_info: make.gauge(
                "model_info",
                "What a model is; always 1.",
                &["model", "architecture", "quantization", "device", "context_tokens_max"],
            ),
            adapters: make.gauge("adapters_loaded", "Adapters that requests to a model may name.", model),
            worker_resident: make.gauge(
                "worker_resident_bytes",
                "Bytes that a model's own process has in memory, pages of files that it shares included.",
                model,
            ),
            worker_up: make.gauge("worker_up", "Whether a model's worker runs: 1 or 0.", model),
            load_wait: LoadWaits::new(make.histogram(
                "model_load_wait_seconds",
                "Seconds a request waited until its model was loaded, or in vain.",
                SECONDS,
            )),
            media: MediaMetrics::new(&make),
            registry: make.0,
            traced: [
                Exemplars::new("hanzo_engine_request_duration_seconds", SECONDS),
                Exemplars::new("hanzo_engine_time_to_first_token_seconds", SECONDS),
            ],
        };
        metrics.memory_budget.set(signed(memory_budget_bytes));
        Arc::new(metrics)
    }

    /// Counts a call that was refused because of its key.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        self.calls.refusals.with_label_values(&[refusal.code()]).inc();
    }

    /// Metrics of one model.
    pub(crate) fn model(self: &Arc<Self>, model: &str) -> Arc<ModelMetrics> {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(metrics) = live.get(model).and_then(Weak::upgrade) {
            return metrics;
        }
        let metrics = self.series(model);
        live.insert(model.to_owned(), Arc::downgrade(&metrics));
        metrics
    }

    fn series(self: &Arc<Self>, model: &str) -> Arc<ModelMetrics> {
        let of = |vec: &IntCounterVec| vec.with_label_values(&[model]);
        let observed = |vec: &HistogramVec| vec.with_label_values(&[model]);
        Arc::new(ModelMetrics {
            model: model.to_owned(),
            of: Arc::downgrade(self),
            generated_tokens: of(&self.work.generated_tokens),
            prompt_tokens: of(&self.work.prompt_tokens),
            first_token: observed(&self.histograms.first_token),
            prefix_query_tokens: of(&self.work.prefix_query_tokens),
            prefix_hit_tokens: of(&self.work.prefix_hit_tokens),
            preemptions: of(&self.work.preemptions),
            context_shifts: of(&self.work.context_shifts),
            draft_tokens: of(&self.work.draft_tokens),
            accepted_draft_tokens: of(&self.work.accepted_draft_tokens),
            finished_stop: self.calls.finished.with_label_values(&[model, "stop"]),
            finished_length: self.calls.finished.with_label_values(&[model, "length"]),
            cancelled: of(&self.calls.cancelled),
            failed: self.calls.finished.with_label_values(&[model, "error"]),
            worker_restarts: of(&self.calls.worker_restarts),
            inter_token: observed(&self.histograms.inter_token),
            per_output_token: observed(&self.histograms.per_output_token),
            queue_time: observed(&self.histograms.queue_time),
            prefill_time: observed(&self.histograms.prefill_time),
            decode_time: observed(&self.histograms.decode_time),
            prompt_length: observed(&self.histograms.prompt_length),
            embed_batch_size: observed(&self.histograms.embed_batch_size),
            embedded: self.work.embedded.with_label_values(&[model]),
            generation_length: observed(&self.histograms.generation_length),
            schedule: observed(&self.histograms.schedule),
            media: self.media.model(model),
            rate: Rate::default(),
        })
    }

    /// Removes a model's series when nothing counts under its name any more; scrapers then treat them as stale.
    /// Adding the counts to another series would show their whole history as a sudden increase.
    fn forget(&self, model: &str, gone: &ModelMetrics) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        // If the model was loaded again meanwhile, its series stay.
        if live.get(model).is_none_or(|now| !std::ptr::eq(now.as_ptr(), gone)) {
            return;
        }
        live.remove(model);
        self.traced.iter().for_each(|traced| traced.forget(model));
        self.media.forget(model);
        self.work.all().into_iter().chain(self.calls.of_models()).for_each(|counter| remove(counter, model));
        for histogram in self.histograms.all() {
            // The series may not exist.
            let _ = histogram.remove_label_values(&[model]);
        }
    }

    /// Counts a finished request, `seconds` after it arrived. `model` is that of a loaded model, or `None`.
    pub(crate) fn request(
        &self,
        model: Option<&str>,
        outcome: &str,
        seconds: f64,
        trace: Option<&TraceContext>,
    ) {
        let model = model.unwrap_or(NO_MODEL);
        self.calls.requests.with_label_values(&[model, outcome]).inc();
        self.histograms.duration.with_label_values(&[model]).observe(seconds);
        self.traced[0].note(model, seconds, trace);
    }

    /// Records the trace of a request as exemplar, with its time to first token.
    pub(crate) fn first_token_traced(&self, model: &str, seconds: f64, trace: Option<&TraceContext>) {
        self.traced[1].note(model, seconds, trace);
    }

    /// Counts a valid request that was rejected.
    pub(crate) fn rejected(&self, model: Option<&str>, reason: &str) {
        self.calls.rejected.with_label_values(&[model.unwrap_or(NO_MODEL), reason]).inc();
    }

    /// Counts a failure of a worker or a load.
    pub(crate) fn error(&self, model: &str, kind: &str) {
        self.calls.errors.with_label_values(&[model, kind]).inc();
    }

    /// Counts a finished load.
    pub(crate) fn load(&self, model: &str, seconds: Option<f64>) {
        let result = if seconds.is_some() { "ok" } else { "failed" };
        self.calls.model_loads.with_label_values(&[model, result]).inc();
        if let Some(seconds) = seconds {
            self.histograms.load_duration.with_label_values(&[model]).observe(seconds);
        }
    }

    /// Counts a model that was unloaded automatically.
    pub(crate) fn evicted(&self, reason: &str) {
        self.calls.evictions.with_label_values(&[reason]).inc();
    }

    /// Records the time that a request waited for its model to load.
    pub(crate) fn load_waited(&self, model: &str, seconds: f64) {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        self.load_wait.note(model, seconds, |name| live.contains_key(name));
    }

    /// Collects all metrics, with gauges from `models`; also under another engine's names if `also` is given.
    pub(crate) fn gather(
        &self,
        models: &[ModelView],
        ready: bool,
        also: Option<MetricsCompat>,
    ) -> Vec<MetricFamily> {
        let _one = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        for gauge in [&self.tokens_per_second, &self.kv_utilization] {
            gauge.reset();
        }
        let gauges = [
            &self.batch_size,
            &self.queue_depth,
            &self.running,
            &self.kv_blocks,
            &self.memory,
            &self.model_info,
            &self.worker_up,
            &self.worker_resident,
            &self.adapters,
        ];
        for gauge in gauges {
            gauge.reset();
        }
        self.ready.set(i64::from(ready));
        self.models_loaded.set(models.iter().filter(|view| view.worker.is_some()).count() as i64);
        for view in models {
            self.set_gauges(view);
        }
        let mut families = self.registry.gather();
        if let Some(MetricsCompat::Vllm) = also {
            families.extend(vllm::families(&families, models));
        }
        families
    }

    /// Formats families in Prometheus' text format, or in OpenMetrics', which has exemplars of traces.
    pub(crate) fn text(&self, families: &[MetricFamily], open: bool) -> String {
        if open {
            return hanzo_engine_telemetry::text(families, &self.traced.each_ref());
        }
        let mut text = Vec::new();
        let encoded = TextEncoder::new().encode(families, &mut text);
        encoded.expect("writing to memory does not fail, and every family has a metric");
        String::from_utf8(text).expect("names, labels and help are UTF-8")
    }

    /// Registers metrics that other modules count.
    pub(crate) fn add(&self, register: impl FnOnce(&Registry) -> Result<(), prometheus::Error>) {
        register(&self.registry).expect("names are of one place each");
    }

    fn set_gauges(&self, view: &ModelView) {
        let model = view.name.as_str();
        self.worker_up.with_label_values(&[model]).set(i64::from(view.worker.is_some()));
        let Some(worker) = &view.worker else { return };
        if let Some(process) = worker.process {
            self.worker_resident.with_label_values(&[model]).set(signed(process.resident_bytes));
        }
        let EngineStats { blocks_total, blocks_used, blocks_cached, .. } = worker.stats;
        self.tokens_per_second.with_label_values(&[model]).set(worker.tokens_per_s);
        let share = if blocks_total == 0 { 0.0 } else { blocks_used as f64 / blocks_total as f64 };
        self.kv_utilization.with_label_values(&[model]).set(share);
        self.batch_size.with_label_values(&[model]).set(worker.batch_size as i64);
        self.queue_depth.with_label_values(&[model]).set(worker.requests_waiting as i64);
        self.running.with_label_values(&[model]).set(worker.requests_running as i64);
        let free = blocks_total.saturating_sub(blocks_used + blocks_cached);
        for (state, blocks) in [("used", blocks_used), ("cached", blocks_cached), ("free", free)] {
            self.kv_blocks.with_label_values(&[model, state]).set(blocks as i64);
        }
        let memory = &worker.memory;
        let kinds = [
            ("weights", memory.weights_bytes),
            ("kv", memory.kv_bytes),
            ("scratch", memory.scratch_bytes),
            // In host memory, allocated by the first constraint, on top of the load's reservation.
            ("vocabulary", worker.vocabulary_bytes),
            ("constraints", worker.constraints_bytes),
        ];
        let adapters = ("adapters", worker.adapters.iter().map(|adapter| adapter.bytes).sum());
        self.adapters.with_label_values(&[model]).set(worker.adapters.len() as i64);
        for (kind, bytes) in kinds.into_iter().chain([adapters]) {
            self.memory.with_label_values(&[model, kind]).set(signed(bytes));
        }
        let (architecture, quantization) = match &view.info {
            Some(info) => (info.architecture.as_str(), info.quantization.as_str()),
            None => ("", ""),
        };
        let context = worker.context_tokens_max.to_string();
        self.model_info
            .with_label_values(&[model, architecture, quantization, worker.device.as_str(), context.as_str()])
            .set(1);
    }
}

impl Drop for ModelMetrics {
    fn drop(&mut self) {
        if let Some(metrics) = self.of.upgrade() {
            metrics.forget(&self.model, self);
        }
    }
}

impl ModelMetrics {
    /// Counts a request that ran to its end.
    pub(crate) fn finished(&self, reason: FinishReason) {
        match reason {
            FinishReason::Stop | FinishReason::ToolCalls => self.finished_stop.inc(),
            FinishReason::Length => self.finished_length.inc(),
        }
    }

    /// Records the duration of a scheduling decision in nanoseconds; 0 if there was none.
    pub(crate) fn scheduled(&self, nanoseconds: u64) {
        if nanoseconds > 0 {
            self.schedule.observe(nanoseconds as f64 / 1e9);
        }
    }

    /// Counts the engine's progress since `before`.
    pub(crate) fn advance(&self, before: &EngineStats, now: &EngineStats, at: Instant) {
        let generated = now.generated_tokens - before.generated_tokens;
        self.generated_tokens.inc_by(generated);
        self.rate.add(generated, at);
        self.prefix_query_tokens.inc_by(now.prompt_tokens - before.prompt_tokens);
        self.prefix_hit_tokens.inc_by(now.prefix_hit_tokens - before.prefix_hit_tokens);
        self.preemptions.inc_by(now.preemptions - before.preemptions);
        self.context_shifts.inc_by(now.context_shifts - before.context_shifts);
        self.media.advance(before, now);
        self.draft_tokens.inc_by(now.draft_tokens - before.draft_tokens);
        self.accepted_draft_tokens.inc_by(now.accepted_draft_tokens - before.accepted_draft_tokens);
    }
}
