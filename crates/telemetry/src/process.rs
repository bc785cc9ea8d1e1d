//! Process metrics as in Prometheus' own client libraries, with their names: CPU time, memory, files, threads.
//! Read from `/proc`; none on systems without it.

use prometheus::proto::{MetricFamily, MetricType};

use crate::family::{counter, family, gauge};

/// Figures of this process.
#[derive(Debug, Default, PartialEq)]
struct Figures {
    cpu_s: Option<f64>,
    resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    open_files: Option<f64>,
    open_files_max: Option<f64>,
    threads: Option<f64>,
    started_unix_s: Option<f64>,
}

/// Returns the current metrics.
pub fn families() -> Vec<MetricFamily> {
    let now = figures();
    let gauges = [
        ("process_resident_memory_bytes", "Bytes of memory that are resident.", now.resident_bytes),
        ("process_virtual_memory_bytes", "Bytes of address space.", now.virtual_bytes),
        ("process_open_fds", "Open files.", now.open_files),
        ("process_max_fds", "Files that may be open.", now.open_files_max),
        ("process_threads", "Threads.", now.threads),
        ("process_start_time_seconds", "When the process began, in seconds since 1970.", now.started_unix_s),
    ];
    let gauges = gauges.into_iter().filter_map(|(name, help, value)| {
        family(name, help, MetricType::GAUGE, value.map(|value| gauge([], value)).into_iter().collect())
    });
    let time = now.cpu_s.map(|seconds| counter([], seconds)).into_iter().collect();
    let time = family(
        "process_cpu_seconds_total",
        "Seconds of processors, of users and system.",
        MetricType::COUNTER,
        time,
    );
    time.into_iter().chain(gauges).collect()
}

#[cfg(not(target_os = "linux"))]
fn figures() -> Figures {
    Figures::default()
}

#[cfg(target_os = "linux")]
fn figures() -> Figures {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    // USER_HZ, whatever the kernel's own clock rate.
    const TICKS_PER_S: f64 = 100.0;
    let stat = read("/proc/self/stat");
    // The program's name, in brackets, may contain any character.
    let fields: Vec<f64> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect())
        .unwrap_or_default();
    // Field numbers as in proc(5), less the first two: 14 and 15 are times, 20 threads, 22 the start.
    let field = |number: usize| fields.get(number - 3).copied();
    let status = read("/proc/self/status");
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? * 1024.0)
    };
    let booted = read("/proc/stat");
    let booted = booted.lines().find_map(|line| line.strip_prefix("btime ")?.parse::<f64>().ok());
    let limits = read("/proc/self/limits");
    let open_max = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    Figures {
        cpu_s: field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS_PER_S),
        resident_bytes: bytes("VmRSS"),
        virtual_bytes: bytes("VmSize"),
        // The folder that is being read counts as one.
        open_files: std::fs::read_dir("/proc/self/fd")
            .ok()
            .map(|files| files.count().saturating_sub(1) as f64),
        open_files_max: open_max.and_then(|line| line.split_whitespace().next()?.parse().ok()),
        threads: field(20),
        started_unix_s: field(22).zip(booted).map(|(ticks, booted)| booted + ticks / TICKS_PER_S),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{families, figures};

    #[test]
    fn a_process_knows_itself() {
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let now = figures();
        assert!(now.resident_bytes.unwrap() > 1e5 && now.virtual_bytes > now.resident_bytes, "{now:?}");
        assert!(now.open_files.unwrap() >= 4.0 && now.open_files < now.open_files_max, "{now:?}");
        assert!(now.threads.unwrap() >= 1.0, "{now:?}");
        let unix_s = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        assert!((0.0..3600.0).contains(&(unix_s - now.started_unix_s.unwrap())), "{now:?}");
        // CPU time grows with work.
        let before = now.cpu_s.unwrap();
        let work: u64 = (0..30_000_000_u64).map(std::hint::black_box).sum();
        assert!(work > 0 && figures().cpu_s.unwrap() > before);
        assert_eq!(families().len(), 7);
        drop(file);
    }
}
