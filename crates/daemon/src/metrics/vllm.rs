//! Metrics under vLLM's names, for existing tools. Kubernetes' inference gateways choose an engine by its queue,
//! running requests and KV cache; many dashboards show the rest.

use hanzo_engine_ops::BLOCK_TOKENS;
use hanzo_engine_telemetry::family::{family, gauge};
use prometheus::proto::{Metric, MetricFamily, MetricType};

use crate::views::ModelView;

/// Our names and vLLM's, without their namespaces. Kind, unit and buckets are the same.
const NAMES: [(&str, &str); 17] = [
    ("queue_depth", "num_requests_waiting"),
    ("requests_running", "num_requests_running"),
    ("kv_cache_utilization", "kv_cache_usage_perc"),
    ("prompt_tokens_total", "prompt_tokens_total"),
    ("tokens_generated_total", "generation_tokens_total"),
    ("prefix_cache_query_tokens_total", "prefix_cache_queries_total"),
    ("prefix_cache_hit_tokens_total", "prefix_cache_hits_total"),
    ("preemptions_total", "num_preemptions_total"),
    ("requests_finished_total", "request_success_total"),
    ("time_to_first_token_seconds", "time_to_first_token_seconds"),
    ("inter_token_latency_seconds", "inter_token_latency_seconds"),
    ("request_duration_seconds", "e2e_request_latency_seconds"),
    ("request_queue_time_seconds", "request_queue_time_seconds"),
    ("request_prefill_time_seconds", "request_prefill_time_seconds"),
    ("request_decode_time_seconds", "request_decode_time_seconds"),
    ("request_prompt_tokens", "request_prompt_tokens"),
    ("request_generation_tokens", "request_generation_tokens"),
];

/// Converts our metrics to vLLM's names, and adds those that only vLLM has.
pub(super) fn families(own: &[MetricFamily], models: &[ModelView]) -> Vec<MetricFamily> {
    let named = NAMES.iter().filter_map(|(ours, theirs)| {
        let name = format!("{}_{ours}", super::NAMESPACE);
        let mut family = own.iter().find(|family| family.name() == name)?.clone();
        family.set_name(format!("vllm:{theirs}"));
        family.mut_metric().iter_mut().for_each(relabel);
        Some(family)
    });
    named.chain(caches(models)).chain(adapters(models)).collect()
}

/// Renames labels as in vLLM and keeps them sorted by name.
fn relabel(metric: &mut Metric) {
    let mut labels = metric.take_label();
    for label in &mut labels {
        match label.name() {
            "model" => label.set_name("model_name".to_owned()),
            "finish_reason" => label.set_name("finished_reason".to_owned()),
            _ => {}
        }
    }
    labels.sort();
    metric.set_label(labels);
}

/// Configuration of the KV cache.
fn caches(models: &[ModelView]) -> Option<MetricFamily> {
    let metrics = models.iter().filter_map(|model| {
        let blocks =
            model.worker.as_ref().map(|worker| worker.stats.blocks_total).filter(|blocks| *blocks > 0)?;
        let labels = [
            ("block_size", BLOCK_TOKENS.to_string()),
            ("model_name", model.name.clone()),
            ("num_gpu_blocks", blocks.to_string()),
        ];
        Some(gauge(labels, 1.0))
    });
    family(
        "vllm:cache_config_info",
        "Blocks of the KV cache and tokens of one; always 1.",
        MetricType::GAUGE,
        metrics.collect(),
    )
}

/// Loaded adapters of each model. The value is a timestamp; readers use the latest series.
fn adapters(models: &[ModelView]) -> Option<MetricFamily> {
    let metrics = models.iter().filter_map(|model| {
        let worker = model.worker.as_ref().filter(|worker| !worker.adapters.is_empty())?;
        let names: Vec<&str> = worker.adapters.iter().map(|adapter| adapter.name.as_str()).collect();
        let labels = [
            ("max_lora", names.len().to_string()),
            ("model_name", model.name.clone()),
            ("running_lora_adapters", names.join(",")),
            ("waiting_lora_adapters", String::new()),
        ];
        Some(gauge(labels, crate::unix_time::now_unix_ms() as f64 / 1e3))
    });
    family(
        "vllm:lora_requests_info",
        "Adapters that requests may name; the time of this.",
        MetricType::GAUGE,
        metrics.collect(),
    )
}
