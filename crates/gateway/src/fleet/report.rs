//! Last report of a daemon: its models and its load.

use std::collections::BTreeSet;

use hanzo_engine_proto::v1::{self, ModelState};

/// State of a model on a daemon, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Has {
    /// Loaded.
    Ready,
    /// Being loaded.
    Loading,
    /// Stored.
    Stored,
    /// Unknown: an alias or reference that only the daemon can resolve, or a wrong name.
    Nothing,
}

impl Has {
    /// Whether it is in memory or being loaded.
    pub(crate) fn is_loaded(self) -> bool {
        matches!(self, Has::Ready | Has::Loading)
    }
}

/// Last report of one daemon.
#[derive(Debug, Clone, Default)]
pub(crate) struct DaemonReport {
    models: Vec<LoadedModel>,
    stored: BTreeSet<String>,
    /// Running and waiting requests of all clients.
    pub(crate) requests: usize,
}

#[derive(Debug, Clone)]
struct LoadedModel {
    name: String,
    adapters: Vec<String>,
    state: ModelState,
}

impl DaemonReport {
    /// Takes over the loaded models and the load; the stored models stay.
    pub(crate) fn take_stats(&mut self, stats: v1::StatsResponse) {
        let statuses = stats.models.into_iter().filter_map(|model| model.status);
        let statuses: Vec<v1::ModelStatus> = statuses.collect();
        let requests = |status: &v1::ModelStatus| status.requests_running + status.requests_waiting;
        self.requests = statuses.iter().map(|status| requests(status) as usize).sum();
        let loaded = |status: v1::ModelStatus| LoadedModel {
            state: status.state(),
            name: status.name,
            adapters: status.adapters.into_iter().map(|adapter| adapter.name).collect(),
        };
        self.models = statuses.into_iter().map(loaded).collect();
    }

    /// Takes over the stored models.
    pub(crate) fn take_list(&mut self, list: v1::ListResponse) {
        self.stored = list.models.into_iter().map(|model| model.name).collect();
    }

    /// Adds a stored model.
    pub(crate) fn keep(&mut self, model: String) {
        self.stored.insert(model);
    }

    /// State of a model. An empty name means any loaded model.
    pub(crate) fn has(&self, model: &str) -> Has {
        let named = |loaded: &&LoadedModel| model.is_empty() || loaded.answers_to(model);
        let best = self.models.iter().filter(named).map(|loaded| match loaded.state {
            ModelState::Ready => Has::Ready,
            ModelState::Loading | ModelState::Queued => Has::Loading,
            ModelState::Draining | ModelState::Unloaded | ModelState::Failed | ModelState::Unspecified => {
                Has::Nothing
            }
        });
        let best = best.min().unwrap_or(Has::Nothing);
        let stored = best == Has::Nothing && self.stored.iter().any(|name| stands_for(model, name));
        if stored { Has::Stored } else { best }
    }
}

impl LoadedModel {
    fn answers_to(&self, asked: &str) -> bool {
        stands_for(asked, &self.name)
            || asked.rsplit_once(':').is_some_and(|(model, adapter)| {
                stands_for(model, &self.name) && self.adapters.iter().any(|own| own == adapter)
            })
    }
}

/// Whether `asked` may mean the model `name`, by the daemons' rules: case is ignored, and the owner and the
/// quantisation may be left out.
fn stands_for(asked: &str, name: &str) -> bool {
    let (asked, name) = (asked.to_lowercase(), name.to_lowercase());
    let without_owner = |name: &str| name.split_once('/').map(|(_, model)| model == asked);
    let is = |name: &str| name == asked || without_owner(name) == Some(true);
    is(&name) || name.split_once(':').is_some_and(|(untagged, _)| is(untagged))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(models: &[(&str, ModelState, &str)], stored: &[&str]) -> DaemonReport {
        let mut report = DaemonReport::default();
        let stats = |(name, state, adapter): &(&str, ModelState, &str)| v1::ModelStats {
            status: Some(v1::ModelStatus {
                name: (*name).to_owned(),
                state: (*state).into(),
                requests_running: 2,
                requests_waiting: 3,
                adapters: vec![v1::Adapter { name: (*adapter).to_owned(), ..Default::default() }],
                ..Default::default()
            }),
            ..Default::default()
        };
        let models = models.iter().map(stats).collect();
        report.take_stats(v1::StatsResponse { models, ..Default::default() });
        let model = |name: &&str| v1::StoredModel { name: (*name).to_owned(), ..Default::default() };
        report.take_list(v1::ListResponse { models: stored.iter().map(model).collect() });
        report
    }

    #[test]
    fn a_model_is_found_by_any_of_its_names_where_it_is_best() {
        use ModelState::{Failed, Loading, Ready};
        let report = report(
            &[("qwen/qwen3-4b:Q8_0", Ready, "sql"), ("big", Loading, ""), ("bad", Failed, "")],
            &["big", "bad", "owner/kept"],
        );
        for (asked, has) in [
            ("qwen/qwen3-4b:q8_0", Has::Ready),
            ("Qwen3-4B", Has::Ready),
            ("qwen3-4b:sql", Has::Ready),
            ("qwen3-4b:other", Has::Nothing),
            ("big", Has::Loading),
            ("bad", Has::Stored),
            ("kept", Has::Stored),
            ("none", Has::Nothing),
            ("", Has::Ready),
        ] {
            assert_eq!(report.has(asked), has, "{asked}");
        }
        assert_eq!(report.requests, 15);
    }
}
