//! Memory budget. All bytes of weights, KV cache and scratch are reserved here before they are allocated, and given
//! back when the worker that holds them is gone.

use std::{
    fs,
    path::{Component, Path},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::limits::MEMORY_BUDGET_SHARE;

/// Memory budget of all models in one place, with the bytes in use.
#[derive(Debug)]
pub(crate) struct Budget {
    total_bytes: u64,
    used_bytes: Mutex<u64>,
}

/// Part of the budget; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
    /// Reservations in other budgets for the same model.
    beside: Vec<Reservation>,
}

impl Budget {
    /// Creates a budget of this many bytes.
    pub(crate) fn new(total_bytes: u64) -> Arc<Self> {
        Arc::new(Self { total_bytes, used_bytes: Mutex::new(0) })
    }

    /// Size of the budget in bytes.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes that are reserved now.
    pub(crate) fn used_bytes(&self) -> u64 {
        *self.lock()
    }

    /// Reserves the bytes that `choose` returns for the number of free bytes. The budget stays locked meanwhile.
    ///
    /// # Errors
    /// Errors of `choose`, which must not ask for more than the free bytes.
    pub(crate) fn reserve<T, E>(
        self: &Arc<Self>,
        choose: impl FnOnce(u64) -> Result<(u64, T), E>,
    ) -> Result<(Reservation, T), E> {
        let mut used = self.lock();
        let free = self.total_bytes.saturating_sub(*used);
        let (bytes, chosen) = choose(free)?;
        assert!(bytes <= free, "{bytes} bytes were chosen of {free}");
        *used += bytes;
        Ok((Reservation { budget: self.clone(), bytes, beside: Vec::new() }, chosen))
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        // A single number cannot be left half-updated.
        self.used_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// Adds a reservation of another budget, released together with this one.
    pub(crate) fn with(mut self, other: Reservation) -> Reservation {
        self.beside.push(other);
        self
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        *self.budget.lock() -= self.bytes;
    }
}

/// Default budget: 80 % of the memory available now. `None` if the system does not report that.
pub(crate) fn default_bytes() -> Option<u64> {
    let (numerator, denominator) = MEMORY_BUDGET_SHARE;
    Some(available_bytes()? / denominator * numerator)
}

/// Memory that this process could allocate now: what the kernel reports as available, within the cgroup's limit.
pub(crate) fn available_bytes() -> Option<u64> {
    let machine = match fs::read_to_string("/proc/meminfo") {
        Ok(text) => meminfo_available(&text),
        Err(_) => physical_bytes(),
    };
    let group = fs::read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|groups| groups_available(&groups, Path::new("/sys/fs/cgroup")));
    match (machine, group) {
        (Some(machine), Some(group)) => Some(machine.min(group)),
        (machine, group) => machine.or(group),
    }
}

/// Files of a cgroup's memory controller, in one cgroup version.
struct GroupFiles {
    under: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Keys of `memory.stat` for file pages, which can be reclaimed. `MemAvailable` counts them as available too.
    cached: [&'static str; 2],
}

const GROUPS_V2: GroupFiles = GroupFiles {
    under: "",
    limit: "memory.max",
    used: "memory.current",
    cached: ["active_file", "inactive_file"],
};
const GROUPS_V1: GroupFiles = GroupFiles {
    under: "memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_active_file", "total_inactive_file"],
};

/// Memory left under the tightest limit of this process's cgroup and its ancestors, such as a unit's `MemoryMax=`
/// and its slice's. `groups` is the text of `/proc/self/cgroup`; `root` is where cgroups are mounted. In a
/// container the path may be the host's, so that only the root is visible. `None` if no limit applies.
fn groups_available(groups: &str, root: &Path) -> Option<u64> {
    let own = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        match controllers {
            "" => Some((&GROUPS_V2, path)),
            v1 if v1.split(',').any(|name| name == "memory") => Some((&GROUPS_V1, path)),
            _ => None,
        }
    });
    own.flat_map(|(files, path)| {
        let names = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
        let own = root.join(files.under).join(names.collect::<std::path::PathBuf>());
        let around: Vec<_> =
            own.ancestors().take_while(|dir| dir.starts_with(root)).map(Path::to_owned).collect();
        around.into_iter().filter_map(|dir| group_available(&dir, files))
    })
    .min()
}

fn group_available(dir: &Path, files: &GroupFiles) -> Option<u64> {
    let text = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    // `max` does not parse: there is no limit.
    let limit = number(files.limit)?;
    let stat = text("memory.stat").unwrap_or_default();
    let cached: u64 = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| files.cached.contains(name))
        .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
        .sum();
    Some(limit.saturating_sub(number(files.used).unwrap_or(0).saturating_sub(cached)))
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Physical memory, for systems without `/proc`. macOS and the BSDs report it through `sysctl`.
fn physical_bytes() -> Option<u64> {
    let output = std::process::Command::new("sysctl").args(["-n", "hw.memsize"]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_counted_until_it_is_dropped() {
        let budget = Budget::new(100);
        let take = |bytes| budget.reserve(|free| if bytes <= free { Ok((bytes, free)) } else { Err(free) });
        let (first, free) = take(60).unwrap();
        assert_eq!((free, budget.used_bytes()), (100, 60));
        assert_eq!(take(41).unwrap_err(), 40);
        let (second, _) = take(40).unwrap();
        drop(first);
        assert_eq!(budget.used_bytes(), 40);
        drop(second);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn the_tightest_group_around_the_process_counts() {
        let root = tempfile::tempdir().unwrap();
        let set = |dir: &str, file: &str, text: &str| {
            let dir = root.path().join(dir);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(file), text).unwrap();
        };
        let check = |groups: &str| groups_available(groups, root.path());
        let groups = "0::/system.slice/engined.service\n";
        assert_eq!(check(groups), None);
        set("system.slice/engined.service", "memory.max", "max\n");
        assert_eq!(check(groups), None);
        set("system.slice", "memory.max", "1000\n");
        set("system.slice", "memory.current", "700\n");
        assert_eq!(check(groups), Some(300));
        set("system.slice", "memory.stat", "anon 100\nactive_file 150\ninactive_file 50\nfile 600\n");
        assert_eq!(check(groups), Some(500));
        set("system.slice/engined.service", "memory.max", "400\n");
        assert_eq!(check(groups), Some(400));
        // Limits of other groups do not apply, and a path that does not exist leaves only the root.
        assert_eq!(check("0::/user.slice\n"), None);
        set("", "memory.max", "90\n");
        assert_eq!(check("0::/docker/1\n"), Some(90));
        assert_eq!(check("0::/../..\n"), Some(90));
        set("memory/a", "memory.limit_in_bytes", "60\n");
        set("memory/a", "memory.usage_in_bytes", "10\n");
        assert_eq!(check("5:cpu,memory:/a\n4:pids:/a\n0::/\n"), Some(50));
    }

    #[test]
    fn available_memory_is_read_in_kibibytes() {
        let text = "MemTotal:       16 kB\nMemAvailable:   12345 kB\nBuffers: 1 kB\n";
        assert_eq!(meminfo_available(text), Some(12345 * 1024));
        assert_eq!(meminfo_available("MemTotal: 1 kB\n"), None);
        assert!(default_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
