//! Exemplars: the last traced request of each bucket of a histogram, which lead from a slow request to its
//! trace.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use crate::context::TraceContext;

/// Exemplars of one histogram with one label. Stores at most one trace for each bucket of each series.
#[derive(Debug)]
pub struct Exemplars {
    family: &'static str,                                  // full name
    bounds: Vec<f64>,                                      // the histogram's bucket bounds
    series: Mutex<HashMap<String, Vec<Option<Exemplar>>>>, // by label value; one entry more than bounds
}

/// Observation with its trace.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Exemplar {
    pub(crate) trace_id: String,
    pub(crate) value: f64,
    pub(crate) unix_s: f64,
}

impl Exemplars {
    /// Creates an empty set for a histogram.
    pub fn new(family: &'static str, bounds: &[f64]) -> Exemplars {
        Exemplars { family, bounds: bounds.to_vec(), series: Mutex::default() }
    }

    /// Records the observation of a traced request. Ignores traces that are not sampled.
    pub fn note(&self, label: &str, value: f64, trace: Option<&TraceContext>) {
        let Some(trace) = trace.filter(|trace| trace.is_sampled()) else { return };
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let exemplar = Exemplar { trace_id: trace.id().to_owned(), value, unix_s: unix.as_secs_f64() };
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        if !series.contains_key(label) {
            series.insert(label.to_owned(), vec![None; self.bounds.len() + 1]);
        }
        if let Some(place) = series.get_mut(label).and_then(|buckets| buckets.get_mut(bucket)) {
            *place = Some(exemplar);
        }
    }

    /// Removes the exemplars of a series.
    pub fn forget(&self, label: &str) {
        self.series.lock().unwrap_or_else(PoisonError::into_inner).remove(label);
    }

    /// Returns the exemplar of a bucket, by index.
    pub(crate) fn of(&self, family: &str, label: &str, bucket: usize) -> Option<Exemplar> {
        if family != self.family {
            return None;
        }
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series.get(label)?.get(bucket)?.clone()
    }
}
