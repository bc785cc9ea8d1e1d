//! Hardware and limits of this machine, and advice to make the engine faster. Read from Linux's own files; what
//! they do not say is left out. For people only: nothing here decides how models run.

use std::{
    fs,
    path::{Path, PathBuf},
};

use hanzo_engine_kernels::cpu::Tier;
use hanzo_engine_kernels_cuda::{CardInfo, Driver, check};
use serde::Serialize;

use crate::{budget, hidden_cards};

/// Memory in bytes below which most models with a billion weights do not fit.
const MEMORY_SMALL: u64 = 4 << 30;

/// Instruction sets that the kernels use on this architecture, slowest first.
const FASTER: &[Tier] = if cfg!(target_arch = "x86_64") {
    &[Tier::Avx2, Tier::AvxVnni, Tier::Avx512, Tier::Avx512Vnni, Tier::Amx]
} else if cfg!(target_arch = "aarch64") {
    &[Tier::Neon, Tier::NeonDot, Tier::NeonI8mm]
} else {
    &[]
};

/// Machine, or the part of it that a container may use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Name of the processor, such as "AMD EPYC 9R14".
    pub processor: String,
    /// Threads that this process may run at once.
    pub threads: usize,
    /// Instruction set in use, such as "avx512vnni".
    pub tier: String,
    /// Instruction sets that the kernels could use but this processor lacks, fastest first.
    pub tiers_missing: Vec<&'static str>,
    /// Physical memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Memory that could be allocated now, in bytes.
    pub memory_available_bytes: Option<u64>,
    /// Memory limit of the cgroup in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// CPU limit of the cgroup, in processors.
    pub cpu_limit: Option<f64>,
    /// Setting of transparent huge pages: always, madvise or never.
    pub huge_pages: Option<String>,
    /// Frequency governor of the first processor, such as "performance".
    pub governor: Option<String>,
    /// Version of NVIDIA's driver.
    pub nvidia_driver: Option<String>,
    /// Names of the NVIDIA GPUs.
    pub gpus: Vec<String>,
    /// State of each GPU that the driver reports, tested as an engine would use it.
    pub cards: Vec<CardState>,
    /// Reason why there is no GPU to test.
    pub cards_missing: Option<String>,
    /// Advice for speed or safety, one sentence each.
    pub advice: Vec<String>,
}

/// GPU, and whether models can be loaded on it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CardState {
    /// Name, such as "cuda:0: NVIDIA H200, driver 13.0".
    pub name: String,
    /// Size of its memory in bytes.
    pub memory_bytes: u64,
    /// Free memory in bytes, if the GPU works.
    pub memory_free_bytes: Option<u64>,
    /// Reason why it cannot be used.
    pub fault: Option<String>,
}

impl CardState {
    /// Opens a GPU and has it compute a known result.
    fn of(driver: &Driver, info: &CardInfo) -> CardState {
        let tried = driver.open(info.ordinal).map_err(|error| error.to_string()).and_then(|card| {
            check(&card).map_err(|error| error.to_string())?;
            card.free_bytes().map_err(|error| error.to_string())
        });
        CardState {
            name: info.to_string(),
            memory_bytes: info.memory_bytes,
            memory_free_bytes: tried.as_ref().ok().copied(),
            fault: tried.err(),
        }
    }
}

impl Machine {
    /// Describes the machine of this process.
    pub fn of_this_process() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut machine = read(Path::new("/"), threads);
        machine.memory_available_bytes = budget::available_bytes();
        let driver = Driver::default();
        match driver.cards() {
            Ok(cards) => machine.cards = cards.iter().map(|card| CardState::of(&driver, card)).collect(),
            Err(error) => machine.cards_missing = Some(error.to_string()),
        }
        let hidden = match &machine.cards_missing {
            Some(why) => hidden_cards::hidden(Path::new("/"), why).or_else(|| {
                let there = !machine.gpus.is_empty();
                there.then(|| format!("there is an NVIDIA card, and no model can be loaded on it: {why}"))
            }),
            None => hidden_cards::hidden_by_unit(Path::new("/")),
        };
        machine.advice.extend(hidden);
        machine.tiers_missing =
            FASTER.iter().rev().take_while(|tier| !tier.is_available()).map(|tier| tier.name()).collect();
        match Tier::detect() {
            Ok(tier) => machine.tier = tier.name().to_owned(),
            Err(error) => machine.advice.push(error.to_string()),
        }
        let best = Tier::available().last().map(Tier::name);
        if let Some(best) = best.filter(|best| !machine.tier.is_empty() && *best != machine.tier) {
            let advice =
                format!("HANZO_ENGINE_CPU_TIER asks for {}, and this processor has {best}", machine.tier);
            machine.advice.push(advice);
        }
        machine
    }
}

/// Reads the files below `root`.
fn read(root: &Path, threads: usize) -> Machine {
    let text = |path: &str| fs::read_to_string(root.join(path)).ok();
    let word = |path: &str| text(path).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let cpuinfo = text("proc/cpuinfo").unwrap_or_default();
    let group = groups(root);
    let driver = text("proc/driver/nvidia/version");
    let mut machine = Machine {
        processor: field(&cpuinfo, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        threads,
        tier: String::new(),
        tiers_missing: Vec::new(),
        memory_bytes: text("proc/meminfo")
            .and_then(|text| field(&text, "MemTotal")?.strip_suffix(" kB")?.trim().parse::<u64>().ok())
            .map(|kib| kib << 10),
        memory_available_bytes: None,
        memory_limit_bytes: group.iter().filter_map(|group| limit(&group.join("memory.max"))).min(),
        cpu_limit: group.iter().filter_map(|group| quota(&group.join("cpu.max"))).min_by(f64::total_cmp),
        huge_pages: text("sys/kernel/mm/transparent_hugepage/enabled").as_deref().and_then(chosen),
        governor: word("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        nvidia_driver: driver.as_deref().and_then(driver_version),
        cards: Vec::new(),
        cards_missing: None,
        gpus: cards(&root.join("proc/driver/nvidia/gpus")),
        advice: Vec::new(),
    };
    machine.advice = advice(&machine);
    machine
}

fn advice(machine: &Machine) -> Vec<String> {
    let mut advice = Vec::new();
    if let Some(limit) = machine.cpu_limit.filter(|limit| *limit + 0.5 < machine.threads as f64) {
        let whole = (limit.ceil() as usize).max(1);
        advice.push(format!(
            "the control group gets {limit:.1} processors' time and {} threads would share it, which stalls each step: set engine.threads = {whole}",
            machine.threads
        ));
    }
    if machine.huge_pages.as_deref() == Some("never") {
        advice.push(
            "transparent huge pages are off: with madvise in /sys/kernel/mm/transparent_hugepage/enabled weights take fewer page table walks"
                .to_owned(),
        );
    }
    if let Some(governor) = machine.governor.as_deref().filter(|governor| *governor == "powersave") {
        advice.push(format!(
            "the processor's frequency governor is {governor}: performance makes steps shorter"
        ));
    }
    let memory = machine.memory_limit_bytes.into_iter().chain(machine.memory_bytes).min();
    if memory.is_some_and(|bytes| bytes < MEMORY_SMALL) {
        advice.push(
            "less than 4 GiB of memory: models up to about a billion weights, at 4 bits, fit".to_owned(),
        );
    }
    advice
}

/// Value of the first line `name: value` or `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned()).filter(|value| !value.is_empty())
    })
}

/// Folders of this process's cgroup (version 2) and its ancestors.
fn groups(root: &Path) -> Vec<PathBuf> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    let top = root.join("sys/fs/cgroup");
    let own = top.join(path.trim_start_matches('/'));
    own.ancestors().take_while(|group| group.starts_with(&top)).map(Path::to_owned).collect()
}

fn limit(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// CPU limit from `cpu.max`: microseconds in each period, or `max`.
fn quota(file: &Path) -> Option<f64> {
    let text = fs::read_to_string(file).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (period > 0.0).then_some(quota / period)
}

/// Word in brackets.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// Version in a line such as `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul …`.
fn driver_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    let is_version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    line.split_whitespace().find(is_version).map(str::to_owned)
}

fn cards(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let name =
        |entry: fs::DirEntry| field(&fs::read_to_string(entry.path().join("information")).ok()?, "Model");
    let mut names: Vec<String> = entries.filter_map(name).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn a_container_on_a_box_with_a_card_is_told_what_slows_it() {
        let root = tree(&[
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 9R14\nmodel name\t: other\n"),
            ("proc/meminfo", "MemTotal:       16384000 kB\nMemFree: 1 kB\n"),
            ("proc/self/cgroup", "0::/kubepods/pod7\n"),
            ("sys/fs/cgroup/kubepods/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/kubepods/pod7/memory.max", "max\n"),
            ("sys/fs/cgroup/kubepods/pod7/cpu.max", "150000 100000\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            (
                "proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n",
            ),
            ("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t NVIDIA H200\nIRQ: 1\n"),
        ]);
        let machine = read(root.path(), 8);
        assert_eq!(machine.processor, "AMD EPYC 9R14");
        assert_eq!(machine.memory_bytes, Some(16_384_000 << 10));
        assert_eq!((machine.memory_limit_bytes, machine.cpu_limit), (Some(2 << 30), Some(1.5)));
        assert_eq!(
            (machine.huge_pages.as_deref(), machine.governor.as_deref()),
            (Some("never"), Some("powersave"))
        );
        assert_eq!(
            (machine.nvidia_driver.as_deref(), &machine.gpus[..]),
            (Some("580.65.06"), &["NVIDIA H200".to_owned()][..])
        );
        let said = machine.advice.join("\n");
        for part in ["engine.threads = 2", "huge pages are off", "powersave", "4 GiB"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(machine.advice.len(), 4);
    }

    #[test]
    fn a_machine_that_says_nothing_gets_no_advice() {
        let root = tree(&[
            ("proc/self/cgroup", "12:cpu:/\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "[madvise]"),
        ]);
        let machine = read(root.path(), 4);
        assert_eq!(machine.processor, std::env::consts::ARCH);
        assert_eq!(
            (machine.memory_limit_bytes, machine.cpu_limit, machine.nvidia_driver),
            (None, None, None)
        );
        assert!(machine.advice.is_empty() && machine.gpus.is_empty(), "{:?}", machine.advice);
    }

    #[test]
    fn this_machine_is_read() {
        let machine = Machine::of_this_process();
        assert!(machine.threads > 0 && !machine.tier.is_empty() && !machine.processor.is_empty());
        assert!(!machine.tiers_missing.contains(&machine.tier.as_str()));
        assert_ne!(machine.cards.is_empty(), machine.cards_missing.is_none(), "cards, or why there are none");
    }
}
