//! Time that requests waited for models to load. A model loaded on demand may come and go by the minute, so these
//! series outlive it. Since a daemon may see any number of names over the years, the oldest series are removed.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use prometheus::HistogramVec;

use crate::limits::{LOAD_WAITS_MAX, MODELS_MAX};

/// Histogram with a series per model.
pub(super) struct LoadWaits {
    seconds: HistogramVec,
    names: Mutex<VecDeque<String>>, // names with a series; the most recently used is last
}

// More names than loaded models, so that a name to remove always exists.
const _: () = assert!(LOAD_WAITS_MAX > MODELS_MAX);

impl LoadWaits {
    pub(super) fn new(seconds: HistogramVec) -> Self {
        Self { seconds, names: Mutex::default() }
    }

    /// Records the time that a request waited for a model.
    pub(super) fn note(&self, model: &str, seconds: f64, is_loaded: impl Fn(&str) -> bool) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        match names.iter().position(|name| name == model).and_then(|at| names.remove(at)) {
            Some(name) => names.push_back(name),
            None => names.push_back(model.to_owned()),
        }
        if names.len() > LOAD_WAITS_MAX
            && let Some(at) = names.iter().position(|name| name != model && !is_loaded(name))
            && let Some(oldest) = names.remove(at)
        {
            let _ = self.seconds.remove_label_values(&[&oldest]);
        }
        self.seconds.with_label_values(&[model]).observe(seconds);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, core::Collector as _};

    use super::*;

    #[test]
    fn names_of_models_that_left_do_not_grow_for_ever() {
        let seconds = HistogramVec::new(HistogramOpts::new("wait", "w"), &["model"]).unwrap();
        let waits = LoadWaits::new(seconds.clone());
        let has = |name: &str| {
            let families = seconds.collect();
            families[0].get_metric().iter().any(|metric| metric.get_label()[0].value() == name)
        };
        for round in 0..3 * LOAD_WAITS_MAX {
            waits.note(&format!("m{round}"), 0.1, |name| name == "m0");
            waits.note("often", 0.1, |name| name == "m0");
            assert!(seconds.collect()[0].get_metric().len() <= LOAD_WAITS_MAX);
        }
        // Loaded models and recent names are kept; names not used for long are removed.
        assert!(has("m0") && has("often") && has(&format!("m{}", 3 * LOAD_WAITS_MAX - 1)) && !has("m1"));
        assert_eq!(waits.names.lock().unwrap().len(), LOAD_WAITS_MAX);
        assert_eq!(seconds.with_label_values(&["often"]).get_sample_count(), 3 * LOAD_WAITS_MAX as u64);
    }
}
