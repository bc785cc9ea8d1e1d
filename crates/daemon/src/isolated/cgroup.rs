//! Control groups of workers, where the daemon's own has been handed to it (systemd's `Delegate=memory`, version 2): each process
//! has a group below it, which the system ends alone, and as a whole, when it takes more than its limit. Where nothing is
//! delegated there are none, and a worker's data is limited by `limit.rs`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

const ROOT: &str = "/sys/fs/cgroup";
/// What systemd writes on a group that whoever runs in it may divide.
const DELEGATED: &str = "user.delegate";
/// Where the daemon goes: a group that has others below it has no processes of its own.
const OWN: &str = "daemon";
const WORKER: &str = "worker-";

/// The group that may be divided.
#[derive(Debug)]
pub(super) struct Delegated(PathBuf);

/// A worker's. It is gone when this is dropped, if its process is.
#[derive(Debug)]
pub(super) struct Group {
    dir: PathBuf,
    bytes_max: Option<u64>,
}

impl Delegated {
    /// The group of this process, or the one around it, if it was handed over with its memory. The daemon goes into a group of
    /// its own below that.
    pub(super) fn find() -> Option<Delegated> {
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

    fn divide(dir: &Path, process: u32) -> io::Result<Delegated> {
        if !words(&dir.join("cgroup.controllers"))?.contains(&"memory".to_owned()) {
            return Err(io::Error::other("the memory controller is not delegated with it (Delegate=memory)"));
        }
        sweep(dir);
        let own = dir.join(OWN);
        make(&own)?;
        for process in words(&dir.join("cgroup.procs"))? {
            // One that has ended meanwhile needs no place.
            let _ = fs::write(own.join("cgroup.procs"), process);
        }
        fs::write(own.join("cgroup.procs"), process.to_string())?;
        fs::write(dir.join("cgroup.subtree_control"), "+memory")?;
        Ok(Delegated(dir.to_owned()))
    }

    /// A group for a process that has just begun, of so many bytes at most, where there is a most. None where it cannot be made.
    pub(super) fn group(&self, process: u32, bytes_max: Option<u64>) -> Option<Group> {
        sweep(&self.0);
        let group = Group { dir: self.0.join(format!("{WORKER}{process}")), bytes_max };
        // Until its process is in it another that begins may take it for one of a worker that has ended.
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
        // It is the model's process or nothing that goes; a system without the setting ends one of one.
        let _ = fs::write(self.dir.join("memory.oom.group"), "1");
        fs::write(self.dir.join("cgroup.procs"), process.to_string())
    }

    fn limit(&self) -> io::Result<()> {
        let bytes = self.bytes_max.map_or("max".to_owned(), |bytes| bytes.to_string());
        fs::write(self.dir.join("memory.max"), bytes)
    }

    /// Has the system give so many more bytes.
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
        // Where its process is about to end, the next worker's beginning removes it.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// The group that a process is in, of version 2, under the root.
fn own_group(said: &str) -> Option<&str> {
    said.lines().find_map(|line| line.strip_prefix("0::/"))
}

fn is_delegated(dir: &Path) -> bool {
    let mut value = [0; 8];
    matches!(rustix::fs::getxattr(dir, DELEGATED, &mut value), Ok(1) if value[0] == b'1')
}

/// Removes groups of workers that have ended, those of a daemon that was killed too; one that has a process stays.
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

    /// A folder stands for the group: what would be said to the system is in its files.
    #[test]
    fn the_daemon_and_each_worker_have_groups_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let read = |name: &str| fs::read_to_string(at(name)).unwrap();
        fs::write(at("cgroup.controllers"), "cpu\n").unwrap();
        let refused = Delegated::divide(dir.path(), 7).unwrap_err().to_string();
        assert!(refused.contains("Delegate=memory"), "{refused}");
        fs::write(at("cgroup.controllers"), "cpu memory\n").unwrap();
        fs::write(at("cgroup.procs"), "7\n").unwrap();
        fs::create_dir(at("worker-3")).unwrap();
        let delegated = Delegated::divide(dir.path(), 7).unwrap();
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
