//! GPU metrics from NVIDIA's driver (NVML): power, memory, use, temperature, throttling and ECC errors. The library
//! is found through the system's loader and opened on first use; without it there are no metrics. A driver that
//! does not answer delays a scrape by a second at most and occupies a single thread.

use std::{
    ffi::OsString,
    sync::{
        Arc, Mutex, TryLockError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hanzo_engine_telemetry::family;
use nvml_wrapper::{
    Device, Nvml,
    bitmasks::device::ThrottleReasons,
    enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor},
    error::NvmlError,
};
use prometheus::proto::{Metric, MetricFamily, MetricType};

/// NVML's library under the names that drivers and development packages install.
const LIBRARIES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];
/// Time that a scrape waits for the driver.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Time until a failed driver is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// Throttle reasons and their labels.
const REASONS: [(ThrottleReasons, &str); 5] = [
    (ThrottleReasons::SW_POWER_CAP, "power_cap"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "thermal"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware_thermal"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power_brake"),
];

/// Connection to NVIDIA's driver.
pub(crate) struct Cards {
    libraries: Vec<OsString>,
    driver: Mutex<Driver>,
    absent: AtomicBool, // the library is missing, and is not looked for again
}

enum Driver {
    Untried,
    Failed { at: Instant },
    Open(Nvml),
}

/// Metrics of one GPU; unavailable ones are left out.
#[derive(Debug, Default, PartialEq)]
struct GpuMetrics {
    gpu: String, // index in the driver's order
    answers: bool,
    name: String,
    uuid: String,
    power_w: Option<f64>,
    power_limit_w: Option<f64>,
    memory_bytes: Option<(u64, u64)>, // used, total
    busy: Option<f64>,                // 0 to 1, over the driver's last sample period
    temperature_c: Option<f64>,
    slowed: Option<ThrottleReasons>,
    ecc_errors: Option<(u64, u64)>, // corrected, uncorrected; since the driver was loaded
}

impl Cards {
    /// Creates the reader without opening the library.
    pub(crate) fn of_the_driver() -> Cards {
        Cards::of(LIBRARIES.map(OsString::from).to_vec())
    }

    fn of(libraries: Vec<OsString>) -> Cards {
        Cards { libraries, driver: Mutex::new(Driver::Untried), absent: AtomicBool::new(false) }
    }

    /// Collects the current metrics.
    pub(crate) async fn families(self: &Arc<Self>) -> Vec<MetricFamily> {
        if self.absent.load(Relaxed) {
            return Vec::new();
        }
        let cards = self.clone();
        let looked = tokio::task::spawn_blocking(move || cards.look());
        match tokio::time::timeout(ANSWER_TIMEOUT, looked).await {
            Ok(Ok(families)) => families,
            Ok(Err(_)) => Vec::new(),
            Err(_) => {
                tracing::warn!("the NVIDIA driver does not answer; its cards are left out of /metrics");
                Vec::new()
            }
        }
    }

    fn look(&self) -> Vec<MetricFamily> {
        let mut driver = match self.driver.try_lock() {
            Ok(driver) => driver,
            // Another scrape is still waiting for the driver.
            Err(TryLockError::WouldBlock) => return Vec::new(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        let try_now = match &*driver {
            Driver::Untried => true,
            Driver::Failed { at } => at.elapsed() >= TRY_AGAIN,
            Driver::Open(_) => false,
        };
        if try_now {
            *driver = self.open();
        }
        match &*driver {
            Driver::Open(nvml) => families(&readings(nvml), &nvml.sys_driver_version().unwrap_or_default()),
            Driver::Untried | Driver::Failed { .. } => Vec::new(),
        }
    }

    fn open(&self) -> Driver {
        let mut why = None;
        for library in &self.libraries {
            match Nvml::builder().lib_path(library).init() {
                Ok(nvml) => return Driver::Open(nvml),
                Err(NvmlError::LibloadingError(_)) => {}
                Err(error) => why = Some(error),
            }
        }
        match why {
            Some(error) => {
                tracing::warn!(%error, "the NVIDIA driver cannot be used; its cards are left out of /metrics")
            }
            None => self.absent.store(true, Relaxed),
        }
        Driver::Failed { at: Instant::now() }
    }
}

fn readings(nvml: &Nvml) -> Vec<GpuMetrics> {
    let count = nvml.device_count().unwrap_or(0);
    (0..count)
        .map(|index| {
            let gpu = index.to_string();
            match nvml.device_by_index(index) {
                Ok(device) => GpuMetrics { gpu, ..reading(&device) },
                Err(_) => GpuMetrics { gpu, ..GpuMetrics::default() },
            }
        })
        .collect()
}

/// Reads one GPU. A GPU that fell off the bus reports that from every query.
fn reading(device: &Device<'_>) -> GpuMetrics {
    let milliwatts = |read: Result<u32, NvmlError>| read.ok().map(|read| f64::from(read) / 1e3);
    let temperature = device.temperature(TemperatureSensor::Gpu);
    let memory = device.memory_info();
    let ecc = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
    let lost = |error: &NvmlError| matches!(error, NvmlError::GpuLost | NvmlError::ResetRequired);
    GpuMetrics {
        gpu: String::new(),
        answers: !temperature.as_ref().err().is_some_and(lost) && !memory.as_ref().err().is_some_and(lost),
        name: device.name().unwrap_or_default(),
        uuid: device.uuid().unwrap_or_default(),
        power_w: milliwatts(device.power_usage()),
        power_limit_w: milliwatts(device.enforced_power_limit()),
        memory_bytes: memory.ok().map(|memory| (memory.used, memory.total)),
        busy: device.utilization_rates().ok().map(|rates| f64::from(rates.gpu) / 1e2),
        temperature_c: temperature.ok().map(f64::from),
        slowed: device.current_throttle_reasons().ok(),
        ecc_errors: ecc(MemoryError::Corrected).zip(ecc(MemoryError::Uncorrected)),
    }
}

fn families(cards: &[GpuMetrics], driver: &str) -> Vec<MetricFamily> {
    let of = |card: &GpuMetrics| ("gpu", card.gpu.clone());
    let gauges = |value: &dyn Fn(&GpuMetrics) -> Option<f64>| -> Vec<Metric> {
        cards.iter().filter_map(|card| Some(family::gauge([of(card)], value(card)?))).collect()
    };
    let info = cards.iter().filter(|card| card.answers).map(|card| {
        let labels = [
            ("driver", driver.to_owned()),
            of(card),
            ("name", card.name.clone()),
            ("uuid", card.uuid.clone()),
        ];
        family::gauge(labels, 1.0)
    });
    let slowed = cards.iter().filter_map(|card| Some((card, card.slowed?))).flat_map(|(card, slowed)| {
        REASONS.map(|(reason, name)| {
            family::gauge(
                [of(card), ("reason", name.to_owned())],
                f64::from(u8::from(slowed.contains(reason))),
            )
        })
    });
    let errors = cards.iter().filter_map(|card| Some((card, card.ecc_errors?))).flat_map(|(card, errors)| {
        [("corrected", errors.0), ("uncorrected", errors.1)]
            .map(|(kind, count)| family::counter([of(card), ("kind", kind.to_owned())], count as f64))
    });
    let all = [
        gauge(
            "gpu_up",
            "Whether a card answers the driver: 1 or 0.",
            gauges(&|card| Some(f64::from(u8::from(card.answers)))),
        ),
        gauge("gpu_info", "What a card is; always 1.", info.collect()),
        gauge("gpu_power_watts", "Watts that a card draws.", gauges(&|card| card.power_w)),
        gauge("gpu_power_limit_watts", "Watts that a card may draw.", gauges(&|card| card.power_limit_w)),
        gauge(
            "gpu_memory_used_bytes",
            "Bytes of a card's memory that are taken, by whomever.",
            gauges(&|card| card.memory_bytes.map(|(used, _)| used as f64)),
        ),
        gauge(
            "gpu_memory_total_bytes",
            "Bytes of a card's memory.",
            gauges(&|card| card.memory_bytes.map(|(_, total)| total as f64)),
        ),
        gauge(
            "gpu_utilization_ratio",
            "Share of the last moments in which a card computed, 0 to 1.",
            gauges(&|card| card.busy),
        ),
        gauge("gpu_temperature_celsius", "A card's temperature.", gauges(&|card| card.temperature_c)),
        gauge("gpu_throttled", "Whether a card's clocks are held down, by reason: 1 or 0.", slowed.collect()),
        counter(
            "gpu_ecc_errors_total",
            "Errors of a card's memory since its driver was loaded, by kind.",
            errors.collect(),
        ),
    ];
    all.into_iter().flatten().collect()
}

fn gauge(name: &str, help: &str, metrics: Vec<Metric>) -> Option<MetricFamily> {
    family::family(&format!("hanzo_engine_{name}"), help, MetricType::GAUGE, metrics)
}

fn counter(name: &str, help: &str, metrics: Vec<Metric>) -> Option<MetricFamily> {
    family::family(&format!("hanzo_engine_{name}"), help, MetricType::COUNTER, metrics)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::{path::Path, process::Command, sync::Arc};

    use prometheus::TextEncoder;

    use super::Cards;

    /// Compiles `testdata/nvml.c` as a library with NVML's symbols; `say` is the macro that selects its behaviour.
    fn library(dir: &Path, say: &str) -> Cards {
        let path = dir.join(format!("libnvidia-ml{say}.so"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nvml.c");
        let compiled =
            Command::new("cc").args(["-shared", "-fPIC", say, "-o"]).arg(&path).arg(source).status();
        assert!(compiled.is_ok_and(|status| status.success()), "cc");
        Cards::of(vec!["/no/such/library.so".into(), path.into()])
    }

    async fn told(cards: Cards) -> (String, Arc<Cards>) {
        let cards = Arc::new(cards);
        let families = cards.families().await;
        (TextEncoder::new().encode_to_string(&families).expect("text can be written"), cards)
    }

    #[tokio::test]
    async fn what_the_driver_says_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (text, _) = told(library(dir.path(), "-DSOUND")).await;
        for line in [
            r#"hanzo_engine_gpu_up{gpu="0"} 1"#,
            r#"hanzo_engine_gpu_info{driver="580.95.05",gpu="0",name="Card of a test",uuid="GPU-0"} 1"#,
            r#"hanzo_engine_gpu_power_watts{gpu="0"} 312.5"#,
            r#"hanzo_engine_gpu_power_limit_watts{gpu="0"} 700"#,
            r#"hanzo_engine_gpu_memory_used_bytes{gpu="0"} 21474836480"#,
            r#"hanzo_engine_gpu_memory_total_bytes{gpu="0"} 85899345920"#,
            r#"hanzo_engine_gpu_utilization_ratio{gpu="0"} 0.87"#,
            r#"hanzo_engine_gpu_temperature_celsius{gpu="0"} 61"#,
            r#"hanzo_engine_gpu_throttled{gpu="0",reason="power_cap"} 1"#,
            r#"hanzo_engine_gpu_throttled{gpu="0",reason="thermal"} 0"#,
            r#"hanzo_engine_gpu_ecc_errors_total{gpu="0",kind="corrected"} 3"#,
            r#"hanzo_engine_gpu_ecc_errors_total{gpu="0",kind="uncorrected"} 0"#,
            // The second GPU has memory without ECC and no power sensor.
            r#"hanzo_engine_gpu_up{gpu="1"} 1"#,
            r#"hanzo_engine_gpu_temperature_celsius{gpu="1"} 44"#,
            // The third GPU has fallen off the bus.
            r#"hanzo_engine_gpu_up{gpu="2"} 0"#,
        ] {
            assert!(text.lines().any(|told| told == line), "{line} in\n{text}");
        }
        for absent in [r#"power_watts{gpu="1"}"#, r#"ecc_errors_total{gpu="1""#, r#"celsius{gpu="2"}"#] {
            assert!(!text.contains(absent), "{absent} in\n{text}");
        }
    }

    #[tokio::test]
    async fn without_a_driver_nothing_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (text, cards) = told(Cards::of(vec!["/no/such/library.so".into()])).await;
        assert!(text.is_empty() && cards.absent.load(super::Relaxed), "{text}");
        // A library without its driver is tried again later.
        let (text, cards) = told(library(dir.path(), "-DNO_DRIVER")).await;
        assert!(text.is_empty() && !cards.absent.load(super::Relaxed), "{text}");
    }

    #[tokio::test]
    async fn a_driver_that_hangs_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let cards = Arc::new(library(dir.path(), "-DHANGS"));
        let began = std::time::Instant::now();
        assert!(cards.families().await.is_empty());
        // A second scrape while the first still waits.
        assert!(cards.families().await.is_empty());
        assert!(began.elapsed() < std::time::Duration::from_secs(3), "{:?}", began.elapsed());
    }
}
