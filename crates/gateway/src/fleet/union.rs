//! What several daemons know, as one: a model that several have is one model, whose numbers are the sums.

use std::collections::{BTreeMap, btree_map::Entry};

use hanzo_engine_proto::v1::{self, ModelState};

/// The statistics of all.
pub(super) fn stats(of_each: Vec<v1::StatsResponse>) -> v1::StatsResponse {
    let draining = !of_each.is_empty() && of_each.iter().all(|one| one.draining);
    let mut all = v1::StatsResponse { draining, ..v1::StatsResponse::default() };
    let mut models = BTreeMap::new();
    for one in of_each {
        if all.version.is_empty() {
            all.version = one.version;
        }
        all.uptime_ms = all.uptime_ms.max(one.uptime_ms);
        all.memory_budget_bytes = all.memory_budget_bytes.saturating_add(one.memory_budget_bytes);
        all.memory_used_bytes = all.memory_used_bytes.saturating_add(one.memory_used_bytes);
        all.ready |= one.ready;
        for model in one.models {
            let name = model.status.as_ref().map(|status| status.name.clone()).unwrap_or_default();
            match models.entry(name) {
                Entry::Vacant(first) => {
                    first.insert(model);
                }
                Entry::Occupied(mut known) => add(known.get_mut(), model),
            }
        }
    }
    all.models = models.into_values().collect();
    all
}

/// One model on another daemon too.
fn add(known: &mut v1::ModelStats, other: v1::ModelStats) {
    let sum = |a: u32, b: u32| a.saturating_add(b);
    let status = match (known.status.take(), other.status) {
        (Some(known), Some(other)) => Some(better(known, other)),
        (known, other) => known.or(other),
    };
    known.status = status;
    known.kv_blocks_total = sum(known.kv_blocks_total, other.kv_blocks_total);
    known.kv_blocks_used = sum(known.kv_blocks_used, other.kv_blocks_used);
    known.kv_blocks_cached = sum(known.kv_blocks_cached, other.kv_blocks_cached);
    known.kv_block_tokens = known.kv_block_tokens.max(other.kv_block_tokens);
    known.queue_capacity = sum(known.queue_capacity, other.queue_capacity);
    known.requests_finished += other.requests_finished;
    known.requests_cancelled += other.requests_cancelled;
    known.requests_failed += other.requests_failed;
    known.prompt_tokens += other.prompt_tokens;
    known.generated_tokens += other.generated_tokens;
    known.prefix_hit_tokens += other.prefix_hit_tokens;
    known.preemptions += other.preemptions;
    known.steps += other.steps;
}

/// The one that is further, with what both have to do, all adapters, and the context that every daemon that answers has.
fn better(one: v1::ModelStatus, other: v1::ModelStatus) -> v1::ModelStatus {
    let rank = |status: &v1::ModelStatus| match status.state() {
        ModelState::Ready => 0,
        ModelState::Loading => 1,
        ModelState::Queued => 2,
        ModelState::Draining => 3,
        ModelState::Failed => 4,
        ModelState::Unloaded | ModelState::Unspecified => 5,
    };
    let (mut best, rest) = if rank(&other) < rank(&one) { (other, one) } else { (one, other) };
    if best.state == rest.state {
        best.context_tokens_max = best.context_tokens_max.min(rest.context_tokens_max);
        best.loaded_at_unix_ms = best.loaded_at_unix_ms.min(rest.loaded_at_unix_ms);
    }
    best.requests_running = best.requests_running.saturating_add(rest.requests_running);
    best.requests_waiting = best.requests_waiting.saturating_add(rest.requests_waiting);
    for adapter in rest.adapters {
        if !best.adapters.iter().any(|known| known.name == adapter.name) {
            best.adapters.push(adapter);
        }
    }
    best
}

/// The stores of all.
pub(super) fn lists(of_each: Vec<v1::ListResponse>) -> v1::ListResponse {
    let mut models: BTreeMap<String, v1::StoredModel> = BTreeMap::new();
    for model in of_each.into_iter().flat_map(|one| one.models) {
        match models.entry(model.name.clone()) {
            Entry::Vacant(first) => {
                first.insert(model);
            }
            Entry::Occupied(mut known) => known.get_mut().loaded |= model.loaded,
        }
    }
    v1::ListResponse { models: models.into_values().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, state: ModelState, running: u32, adapter: &str) -> v1::StatsResponse {
        let status = v1::ModelStatus {
            name: name.to_owned(),
            state: state.into(),
            requests_running: running,
            context_tokens_max: 100 * (running + 1),
            adapters: vec![v1::Adapter { name: adapter.to_owned(), ..Default::default() }],
            ..Default::default()
        };
        let model = v1::ModelStats { status: Some(status), kv_blocks_total: 8, ..Default::default() };
        v1::StatsResponse {
            models: vec![model],
            memory_used_bytes: 5,
            draining: running == 9,
            ..Default::default()
        }
    }

    #[test]
    fn a_model_that_several_have_is_one() {
        use ModelState::{Loading, Ready};
        let all = stats(vec![
            one("a", Loading, 1, "x"),
            one("a", Ready, 2, "y"),
            one("b", Ready, 9, "x"),
            one("a", Ready, 3, "y"),
        ]);
        let [a, b] = &all.models[..] else { panic!("{all:?}") };
        let status = a.status.as_ref().unwrap();
        assert_eq!((status.state(), status.requests_running, status.context_tokens_max), (Ready, 6, 300));
        let mut adapters: Vec<&str> = status.adapters.iter().map(|adapter| adapter.name.as_str()).collect();
        adapters.sort_unstable();
        assert_eq!(adapters, ["x", "y"]);
        assert_eq!((a.kv_blocks_total, b.kv_blocks_total, all.memory_used_bytes), (24, 8, 20));
        assert!(!all.draining, "one does not");
        assert!(stats(vec![one("b", Ready, 9, "")]).draining);
        assert!(!stats(Vec::new()).draining);
    }

    #[test]
    fn stored_models_are_listed_once() {
        let list = |names: &[&str], loaded| v1::ListResponse {
            models: names
                .iter()
                .map(|name| v1::StoredModel { name: (*name).to_owned(), loaded, ..Default::default() })
                .collect(),
        };
        let all = lists(vec![list(&["b", "a"], false), list(&["c", "b"], true)]);
        let told: Vec<(&str, bool)> = all.models.iter().map(|m| (m.name.as_str(), m.loaded)).collect();
        assert_eq!(told, [("a", false), ("b", true), ("c", true)]);
    }
}
