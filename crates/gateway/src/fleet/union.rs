//! Combined answers of several daemons. A model that several have appears once, with summed numbers.

use std::collections::{BTreeMap, btree_map::Entry};

use hanzo_engine_proto::v1::{self, ModelState};

/// Combined statistics.
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

/// Adds a model's statistics of another daemon.
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

/// Status of the daemon that is further along, with the load of both and all adapters. If both are in the same
/// state, it has the smaller context.
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

/// Combined list of stored models.
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

/// Combined progress of downloads: sizes are summed, and it is done when all daemons are.
pub(super) fn pulls(far: &[v1::PullProgress]) -> v1::PullProgress {
    let mut all =
        v1::PullProgress { phase: v1::pull_progress::Phase::Done.into(), joined: true, ..Default::default() };
    let mut files: BTreeMap<&str, v1::FileProgress> = BTreeMap::new();
    for one in far {
        if all.model.is_empty() {
            all.model.clone_from(&one.model);
        }
        if all.file.is_empty() {
            all.file.clone_from(&one.file);
        }
        // The least advanced daemon determines the phase.
        all.phase = all.phase.min(one.phase);
        all.bytes_done += one.bytes_done;
        all.bytes_total += one.bytes_total;
        all.bytes_fetched += one.bytes_fetched;
        all.bytes_per_s += one.bytes_per_s;
        all.eta_s = if all.eta_s < 0.0 || one.eta_s < 0.0 { -1.0 } else { all.eta_s.max(one.eta_s) };
        all.joined &= one.joined;
        for file in &one.files {
            match files.entry(&file.name) {
                Entry::Vacant(first) => {
                    first.insert(file.clone());
                }
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.phase = known.phase.min(file.phase);
                    known.bytes_done += file.bytes_done;
                    known.bytes_total += file.bytes_total;
                }
            }
        }
    }
    all.files = files.into_values().collect();
    if far.iter().all(|one| one.stored.is_some()) {
        all.stored = far.iter().find_map(|one| one.stored.clone());
    }
    all
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
    fn pulls_are_one_that_is_as_far_as_the_least() {
        use v1::pull_progress::Phase;
        let file = |phase: Phase, bytes_done| v1::FileProgress {
            name: "m.gguf".to_owned(),
            phase: phase.into(),
            bytes_done,
            bytes_total: 10,
            digest: "sha256:a".to_owned(),
        };
        let far = |phase: Phase, bytes_done: u64, stored: bool| v1::PullProgress {
            model: "m".to_owned(),
            phase: phase.into(),
            bytes_done,
            bytes_total: 10,
            eta_s: 2.0,
            files: vec![file(phase, bytes_done)],
            stored: stored.then(|| v1::StoredModel { name: "m".to_owned(), ..Default::default() }),
            ..Default::default()
        };
        let begun = pulls(&[v1::PullProgress::default(), far(Phase::Downloading, 4, false)]);
        assert_eq!((begun.phase(), begun.model.as_str(), begun.bytes_total), (Phase::Unspecified, "m", 10));
        let half = pulls(&[far(Phase::Done, 10, true), far(Phase::Downloading, 4, false)]);
        assert_eq!(
            (half.phase(), half.bytes_done, half.bytes_total, half.eta_s),
            (Phase::Downloading, 14, 20, 2.0)
        );
        assert_eq!((half.stored.is_some(), half.files.len(), half.files[0].bytes_done), (false, 1, 14));
        let whole = pulls(&[far(Phase::Done, 10, true), far(Phase::Done, 10, true)]);
        assert_eq!(
            (whole.phase(), whole.files[0].phase(), whole.stored.unwrap().name),
            (Phase::Done, Phase::Done, "m".to_owned())
        );
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
