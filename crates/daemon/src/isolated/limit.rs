//! What the system is asked of a worker's process: that it ends with the daemon, leaves no image of its memory behind, and
//! takes no more than it may.

use std::{io, os::unix::net::UnixStream};

use rustix::process::{
    Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};

/// Has this process end with the one that made it, which must be the one at the other end of `stream`.
///
/// # Errors
/// That it is not, or the system's.
pub(super) fn belong_to_peer(stream: &UnixStream) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let own = rustix::process::geteuid();
    // One that had ended before it was asked for has left this process to another.
    if peer.uid != own || getppid() != Some(peer.pid) {
        let reason = "who is at the other end is not the daemon that started this process";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    Ok(())
}

/// An image would have prompts in it, and take as long to write as the weights are large.
pub(super) fn leave_no_image() {
    // 1 rather than 0, which programs that take images through a pipe do not heed.
    let Rlimit { maximum, .. } = getrlimit(Resource::Core);
    // A limit that cannot be set is no reason not to run.
    let _ =
        setrlimit(Resource::Core, Rlimit { current: Some(maximum.map_or(1, |most| most.min(1))), maximum });
}

/// Lets this process have so many bytes of data: what it asks for beyond them it does not get.
pub(super) fn data(bytes: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Data);
    let current = Some(maximum.map_or(bytes, |most| most.min(bytes)));
    if let Err(error) = setrlimit(Resource::Data, Rlimit { current, maximum }) {
        tracing::warn!(%error, bytes, "the memory of a worker is not limited");
    }
}
