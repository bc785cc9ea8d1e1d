//! Kernel settings of a worker's process: it ends with the daemon, writes no core dump, and allocates no more than
//! its limit.

use std::{io, os::unix::net::UnixStream};

use rustix::process::{
    Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};

/// Makes this process die with its parent, which must be the process at the other end of `stream`.
///
/// # Errors
/// If it is not, or the operating system's error.
pub(super) fn belong_to_peer(stream: &UnixStream) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let own = rustix::process::geteuid();
    // If the daemon ended before the call above, this process has a new parent already.
    if peer.uid != own || getppid() != Some(peer.pid) {
        let reason = "who is at the other end is not the daemon that started this process";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    Ok(())
}

/// Disables core dumps. A dump would contain prompts and take as long to write as the weights are large.
pub(super) fn leave_no_image() {
    // 1 rather than 0, since programs that receive dumps through a pipe ignore 0.
    let Rlimit { maximum, .. } = getrlimit(Resource::Core);
    // A limit that cannot be set is no reason not to run.
    let _ =
        setrlimit(Resource::Core, Rlimit { current: Some(maximum.map_or(1, |most| most.min(1))), maximum });
}

/// Limits the data memory of this process; allocations beyond it fail.
pub(super) fn data(bytes: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Data);
    let current = Some(maximum.map_or(bytes, |most| most.min(bytes)));
    if let Err(error) = setrlimit(Resource::Data, Rlimit { current, maximum }) {
        tracing::warn!(%error, bytes, "the memory of a worker is not limited");
    }
}
