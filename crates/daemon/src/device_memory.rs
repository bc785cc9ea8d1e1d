//! Metrics of device memory: the budget of each device, and the bytes reserved.

use hanzo_engine_telemetry::family::{self, gauge as value};
use prometheus::proto::{MetricFamily, MetricType};

use crate::devices::DevicePlace;

/// Collects the current metrics.
pub(crate) fn families(places: &[DevicePlace]) -> Vec<MetricFamily> {
    let of = |bytes: fn(&DevicePlace) -> u64| {
        let one =
            |place: &DevicePlace| value([("device", place.device.name().to_string())], bytes(place) as f64);
        places.iter().map(one).collect::<Vec<_>>()
    };
    let gauge = |name: &str, help: &str, bytes: fn(&DevicePlace) -> u64| {
        family::family(&format!("hanzo_engine_{name}"), help, MetricType::GAUGE, of(bytes))
    };
    let all = [
        gauge("device_memory_budget_bytes", "Bytes that models may take of a device's memory.", |place| {
            place.budget.total_bytes()
        }),
        gauge("device_memory_used_bytes", "Bytes that models have of a device's memory.", |place| {
            place.budget.used_bytes()
        }),
    ];
    all.into_iter().flatten().collect()
}
