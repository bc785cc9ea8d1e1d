//! The one account of memory: every byte of weights, KV cache and scratch is reserved here before it is
//! allocated, and given back when the worker that held it is gone.

use std::{
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::limits::MEMORY_BUDGET_SHARE;

/// What all models together may take, and what they have.
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
}

impl Budget {
    /// A budget of so many bytes.
    pub(crate) fn new(total_bytes: u64) -> Arc<Self> {
        Arc::new(Self { total_bytes, used_bytes: Mutex::new(0) })
    }

    /// All of it.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// What is reserved now.
    pub(crate) fn used_bytes(&self) -> u64 {
        *self.lock()
    }

    /// Decides with `choose` what to take of the bytes that are free, and takes it; nobody else decides meanwhile.
    ///
    /// # Errors
    /// Those of `choose`, which must not ask for more than it is told is free.
    pub(crate) fn reserve<T, E>(
        self: &Arc<Self>,
        choose: impl FnOnce(u64) -> Result<(u64, T), E>,
    ) -> Result<(Reservation, T), E> {
        let mut used = self.lock();
        let free = self.total_bytes.saturating_sub(*used);
        let (bytes, chosen) = choose(free)?;
        assert!(bytes <= free, "{bytes} bytes were chosen of {free}");
        *used += bytes;
        Ok((Reservation { budget: self.clone(), bytes }, chosen))
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        // One number is never half-changed.
        self.used_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        *self.budget.lock() -= self.bytes;
    }
}

/// The budget when nobody says otherwise: 80 % of what is available now. `None` where the system does not say.
pub(crate) fn default_bytes() -> Option<u64> {
    let (numerator, denominator) = MEMORY_BUDGET_SHARE;
    Some(available_bytes()? / denominator * numerator)
}

/// Memory this process could take now: what the kernel says is available, within the control group's limit.
fn available_bytes() -> Option<u64> {
    let machine = match fs::read_to_string("/proc/meminfo") {
        Ok(text) => meminfo_available(&text),
        Err(_) => physical_bytes(),
    };
    let group = || {
        let read = |file: &str| {
            fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse::<u64>().ok()
        };
        Some(read("memory.max")?.saturating_sub(read("memory.current").unwrap_or(0)))
    };
    match (machine, group()) {
        (Some(machine), Some(group)) => Some(machine.min(group)),
        (machine, group) => machine.or(group),
    }
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Where there is no `/proc`: what macOS and the BSDs say the machine has.
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
    fn available_memory_is_read_in_kibibytes() {
        let text = "MemTotal:       16 kB\nMemAvailable:   12345 kB\nBuffers: 1 kB\n";
        assert_eq!(meminfo_available(text), Some(12345 * 1024));
        assert_eq!(meminfo_available("MemTotal: 1 kB\n"), None);
        assert!(default_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
