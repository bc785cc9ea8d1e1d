//! cgroups of workers, available if systemd delegated the daemon's own (`Delegate=memory`, version 2). Each process
//! has a cgroup below it. If a process exceeds its limit, the kernel kills that cgroup as a whole and nothing else.
//! Without delegation there are no cgroups, and `limit.rs` limits a worker's data.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

const ROOT: &str = "/sys/fs/cgroup";
/// Attribute that systemd sets on a cgroup that its processes may subdivide.
const DELEGATED: &str = "user.delegate";
/// Name of the daemon's own subgroup: a cgroup with children may hold no processes itself.
const OWN: &str = "daemon";
const WORKER: &str = "worker-";

/// Delegated cgroup.
#[derive(Debug)]
pub(super) struct DelegatedCgroup(PathBuf);

/// cgroup of one worker. Removed on drop, if its process has ended.
#[derive(Debug)]
pub(super) struct Group {
    dir: PathBuf,
    bytes_max: Option<u64>,
}

impl DelegatedCgroup {
    /// Finds this process's cgroup, or its parent, if it was delegated with the memory controller. Moves the daemon
    /// into a subgroup of it.
    pub(super) fn find() -> Option<DelegatedCgroup> {
        let said = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = Path::new(ROOT).join(own_group(&said)?);
        let dir = [own.as_path(), own.parent()?].into_iter().find(|dir| is_delegated(dir))?.to_owned();
        match Self::divide(&dir, std::process::id()) {
            Ok(found) => Some(found),
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "workers have no control groups, though theirs is delegated");
                None
            }
        }
    }

    fn divide(dir: &Path, process: u32) -> io::Result<DelegatedCgroup> {
        if !words(&dir.join("cgroup.controllers"))?.contains(&"memory".to_owned()) {
            return Err(io::Error::other("the memory controller is not delegated with it (Delegate=memory)"));
        }
        sweep(dir);
        let own = dir.join(OWN);
        make(&own)?;
        for process in words(&dir.join("cgroup.procs"))? {
            // A process that has ended meanwhile needs no place.
            let _ = fs::write(own.join("cgroup.procs"), process);
        }
        fs::write(own.join("cgroup.procs"), process.to_string())?;
        fs::write(dir.join("cgroup.subtree_control"), "+memory")?;
        Ok(DelegatedCgroup(dir.to_owned()))
    }

    /// Creates a cgroup for a new process, with an optional memory limit. `None` if it cannot be created.
    pub(super) fn group(&self, process: u32, bytes_max: Option<u64>) -> Option<Group> {
        sweep(&self.0);
        let group = Group { dir: self.0.join(format!("{WORKER}{process}")), bytes_max };
        // Until the process is in it, another worker's start may remove it as a leftover. Therefore try twice.
        match group.begin(process).or_else(|_| group.begin(process)) {
            Ok(()) => Some(group),
            Err(error) => {
                tracing::warn!(dir = %group.dir.display(), %error, "a worker has no control group");
                None
            }
        }
    }
}

impl Group {
    fn begin(&self, process: u32) -> io::Result<()> {
        make(&self.dir)?;
        self.limit()?;
        // The model's whole cgroup is killed, or nothing. Kernels without this setting kill a single
        // process, which is the same here.
        let _ = fs::write(self.dir.join("memory.oom.group"), "1");
        fs::write(self.dir.join("cgroup.procs"), process.to_string())
    }

    fn limit(&self) -> io::Result<()> {
        let bytes = self.bytes_max.map_or("max".to_owned(), |bytes| bytes.to_string());
        fs::write(self.dir.join("memory.max"), bytes)
    }

    /// Raises the memory limit by this many bytes.
    pub(super) fn raise(&mut self, more: u64) {
        let Some(most) = &mut self.bytes_max else { return };
        *most = most.saturating_add(more);
        if let Err(error) = self.limit() {
            tracing::warn!(dir = %self.dir.display(), %error, "the limit of a worker's control group stays");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // If the process has not ended yet, the start of the next worker removes the cgroup.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// cgroup (version 2) of a process, relative to the root.
fn own_group(said: &str) -> Option<&str> {
    said.lines().find_map(|line| line.strip_prefix("0::/"))
}

fn is_delegated(dir: &Path) -> bool {
    let mut value = [0; 8];
    matches!(rustix::fs::getxattr(dir, DELEGATED, &mut value), Ok(1) if value[0] == b'1')
}

/// Removes the cgroups of workers that have ended, also those of a daemon that was killed. Those with processes
/// stay.
fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(WORKER)) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn make(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn words(file: &Path) -> io::Result<Vec<String>> {
    Ok(fs::read_to_string(file)?.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_what_the_system_says() {
        let said = "1:name=systemd:/system.slice\n0::/system.slice/engined.service\n";
        assert_eq!(own_group(said), Some("system.slice/engined.service"));
        assert_eq!(own_group("4:memory:/x\n"), None);
        assert!(!is_delegated(Path::new("/")));
    }

    /// A plain folder stands in for the cgroup: its files show what the kernel would be told.
    #[test]
    fn the_daemon_and_each_worker_have_groups_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let read = |name: &str| fs::read_to_string(at(name)).unwrap();
        fs::write(at("cgroup.controllers"), "cpu\n").unwrap();
        let refused = DelegatedCgroup::divide(dir.path(), 7).unwrap_err().to_string();
        assert!(refused.contains("Delegate=memory"), "{refused}");
        fs::write(at("cgroup.controllers"), "cpu memory\n").unwrap();
        fs::write(at("cgroup.procs"), "7\n").unwrap();
        fs::create_dir(at("worker-3")).unwrap();
        let delegated = DelegatedCgroup::divide(dir.path(), 7).unwrap();
        assert!(!at("worker-3").exists(), "one that a daemon before has left");
        assert_eq!(
            (read("daemon/cgroup.procs"), read("cgroup.subtree_control")),
            ("7".into(), "+memory".into())
        );
        let mut group = delegated.group(9, Some(1000)).unwrap();
        assert_eq!((read("worker-9/cgroup.procs"), read("worker-9/memory.max")), ("9".into(), "1000".into()));
        assert_eq!(read("worker-9/memory.oom.group"), "1");
        group.raise(24);
        assert_eq!(read("worker-9/memory.max"), "1024");
        let mut unbounded = delegated.group(10, None).unwrap();
        unbounded.raise(24);
        assert_eq!(read("worker-10/memory.max"), "max");
    }
}
