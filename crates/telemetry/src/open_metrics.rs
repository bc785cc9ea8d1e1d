//! OpenMetrics text format, which Prometheus prefers to its own, and the only one with exemplars.
//! <https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>

use std::fmt::Write as _;

use prometheus::proto::{LabelPair, MetricFamily, MetricType};

use crate::exemplars::{Exemplar, Exemplars};

/// Content type of a response in this format.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns true if a client with that `Accept` header reads the format.
pub fn is_wanted(accept: Option<&str>) -> bool {
    accept.is_some_and(|accept| accept.contains("application/openmetrics-text"))
}

/// Formats the families, with their exemplars.
pub fn text(families: &[MetricFamily], exemplars: &[&Exemplars]) -> String {
    let mut out = String::new();
    for family in families {
        write_family(&mut out, family, exemplars);
    }
    out.push_str("# EOF\n");
    out
}

fn write_family(out: &mut String, family: &MetricFamily, exemplars: &[&Exemplars]) {
    let name = family.name();
    let (kind, base) = match family.get_field_type() {
        MetricType::COUNTER => match name.strip_suffix("_total") {
            Some(base) => ("counter", base),
            // Samples of a counter must have this suffix. Without it, the family is not a counter here.
            None => ("unknown", name),
        },
        MetricType::GAUGE => ("gauge", name),
        MetricType::HISTOGRAM => ("histogram", name),
        MetricType::SUMMARY | MetricType::UNTYPED => ("unknown", name),
    };
    let _ = writeln!(out, "# TYPE {base} {kind}\n# HELP {base} {}", escaped(family.help()));
    for metric in family.get_metric() {
        let labels = metric.get_label();
        match family.get_field_type() {
            MetricType::COUNTER => sample(out, name, labels, None, metric.get_counter().get_value(), None),
            MetricType::GAUGE => sample(out, name, labels, None, metric.get_gauge().get_value(), None),
            MetricType::HISTOGRAM => {
                let histogram = metric.get_histogram();
                let label = labels.first().map_or("", LabelPair::value);
                let exemplar =
                    |bucket| exemplars.iter().find_map(|exemplars| exemplars.of(name, label, bucket));
                let buckets = histogram.get_bucket();
                let bucket = format!("{name}_bucket");
                for (at, of) in buckets.iter().enumerate().filter(|(_, of)| of.upper_bound().is_finite()) {
                    let count = of.cumulative_count() as f64;
                    sample(out, &bucket, labels, Some(of.upper_bound()), count, exemplar(at));
                }
                let count = histogram.get_sample_count() as f64;
                let last = buckets.iter().filter(|of| of.upper_bound().is_finite()).count();
                sample(out, &bucket, labels, Some(f64::INFINITY), count, exemplar(last));
                sample(out, &format!("{name}_sum"), labels, None, histogram.get_sample_sum(), None);
                sample(out, &format!("{name}_count"), labels, None, count, None);
            }
            MetricType::SUMMARY | MetricType::UNTYPED => {}
        }
    }
}

fn sample(
    out: &mut String,
    name: &str,
    labels: &[LabelPair],
    le: Option<f64>,
    value: f64,
    exemplar: Option<Exemplar>,
) {
    let mut pairs: Vec<String> =
        labels.iter().map(|pair| format!("{}=\"{}\"", pair.name(), escaped(pair.value()))).collect();
    pairs.extend(le.map(|le| format!("le=\"{}\"", number(le))));
    out.push_str(name);
    if !pairs.is_empty() {
        let _ = write!(out, "{{{}}}", pairs.join(","));
    }
    let _ = write!(out, " {}", number(value));
    if let Some(Exemplar { trace_id, value, unix_s }) = exemplar {
        let _ = write!(out, " # {{trace_id=\"{trace_id}\"}} {} {unix_s:.3}", number(value));
    }
    out.push('\n');
}

/// Formats a number as in the specification's examples: `1.0`, `0.005`, `+Inf`.
fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => format!("{value:?}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

    use super::{is_wanted, text};
    use crate::{Exemplars, TraceContext};

    fn trace(flags: &str) -> TraceContext {
        let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
        TraceContext::of(&HeaderMap::from_iter([(
            "traceparent".parse().unwrap(),
            HeaderValue::from_str(&parent).unwrap(),
        )]))
        .unwrap()
    }

    #[test]
    fn buckets_name_the_traces_of_what_was_observed() {
        let registry = Registry::new();
        let bounds = [0.5, 1.0];
        let opts = HistogramOpts::new("wait_seconds", "What \"it\" took.").buckets(bounds.to_vec());
        let wait = HistogramVec::new(opts, &["model"]).unwrap();
        let asked = IntCounterVec::new(Opts::new("asked_total", "Asked."), &["model"]).unwrap();
        let idle = IntGauge::new("idle", "Idle.").unwrap();
        registry.register(Box::new(wait.clone())).unwrap();
        registry.register(Box::new(asked.clone())).unwrap();
        registry.register(Box::new(idle.clone())).unwrap();
        let exemplars = Exemplars::new("wait_seconds", &bounds);
        for (seconds, flags) in [(0.5, "01"), (0.75, "00"), (7.0, "01")] {
            wait.with_label_values(&["a\"b"]).observe(seconds);
            exemplars.note("a\"b", seconds, Some(&trace(flags)));
        }
        asked.with_label_values(&["m"]).inc_by(3);
        let written = text(&registry.gather(), &[&exemplars]);
        // The time, which differs in each run.
        let moment = |line: &str| match line.split_once("} 0.5 ").or_else(|| line.split_once("} 7.0 ")) {
            Some((_, moment)) => line.replace(moment, "NOW"),
            None => line.to_owned(),
        };
        let lines: Vec<String> = written.lines().map(moment).collect();
        let exemplar = "# {trace_id=\"4bf92f3577b34da6a3ce929d0e0e4736\"}";
        let expected = format!(
            "# TYPE asked counter
# HELP asked Asked.
asked_total{{model=\"m\"}} 3.0
# TYPE idle gauge
# HELP idle Idle.
idle 0.0
# TYPE wait_seconds histogram
# HELP wait_seconds What \\\"it\\\" took.
wait_seconds_bucket{{model=\"a\\\"b\",le=\"0.5\"}} 1.0 {exemplar} 0.5 NOW
wait_seconds_bucket{{model=\"a\\\"b\",le=\"1.0\"}} 2.0
wait_seconds_bucket{{model=\"a\\\"b\",le=\"+Inf\"}} 3.0 {exemplar} 7.0 NOW
wait_seconds_sum{{model=\"a\\\"b\"}} 8.25
wait_seconds_count{{model=\"a\\\"b\"}} 3.0
# EOF"
        );
        assert_eq!(lines.join("\n"), expected);
        exemplars.forget("a\"b");
        assert!(!text(&registry.gather(), &[&exemplars]).contains("trace_id"));
    }

    #[test]
    fn prometheus_reads_it_and_others_may_not() {
        assert!(is_wanted(Some("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1")));
        assert!(!is_wanted(Some("text/plain")) && !is_wanted(None));
    }
}
