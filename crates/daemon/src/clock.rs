//! Real clock and threads, on which workers run. All durations are measured with `Instant`. Functions that decide
//! by the time take it as an argument, so that tests can set it.

#[cfg(target_os = "linux")]
use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};
use std::{
    sync::{Arc, OnceLock},
    task::{Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

#[cfg(target_os = "linux")]
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

/// Nanoseconds since the first call. Engines have no clock and measure parts of a step with this function.
pub(crate) fn nanoseconds() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps until this thread is unparked, or until the given time.
pub(crate) fn rest(until: Option<Instant>) {
    match until {
        None => thread::park(),
        Some(until) => thread::park_timeout(until.saturating_duration_since(Instant::now())),
    }
}

/// Wake-up signal of a worker's thread. If the thread also waits for a stream, the signal is an eventfd beside it.
#[derive(Clone, Default)]
pub(crate) struct Bell(Arc<Rope>);

#[derive(Default)]
struct Rope {
    thread: OnceLock<Thread>,
    #[cfg(target_os = "linux")]
    file: OnceLock<OwnedFd>,
}

impl Bell {
    /// Binds the signal to this thread. Signals from before are not delivered; the thread must check for work
    /// itself.
    pub(crate) fn hang_here(&self) {
        let _ = self.0.thread.set(thread::current());
    }

    /// Waker that triggers the signal.
    pub(crate) fn waker(&self) -> Waker {
        self.0.clone().into()
    }

    /// Creates the eventfd, so that [`Bell::rest_beside`] sees the signal.
    #[cfg(target_os = "linux")]
    pub(crate) fn with_file(&self) -> io::Result<()> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let file = rustix::event::eventfd(0, flags)?;
        let _ = self.0.file.set(file);
        Ok(())
    }

    /// Waits for the signal, the stream or the timeout, and returns which came first. Without an eventfd the signal
    /// is not seen.
    #[cfg(target_os = "linux")]
    pub(crate) fn rest_beside(
        &self,
        stream: BorrowedFd<'_>,
        flags: PollFlags,
        time: Option<Duration>,
    ) -> io::Result<Woken> {
        let stream = PollFd::from_borrowed_fd(stream, flags);
        let Some(file) = self.0.file.get() else {
            let mut files = [stream];
            poll(&mut files, time)?;
            return Ok(if files[0].revents().is_empty() { Woken::Late } else { Woken::Ready });
        };
        let mut files = [stream, PollFd::new(file, PollFlags::IN)];
        poll(&mut files, time)?;
        if !files[1].revents().is_empty() {
            // Reset the eventfd before looking at the work that it announces.
            let _ = rustix::io::read(file, &mut [0; size_of::<u64>()]);
            return Ok(Woken::Rung);
        }
        Ok(if files[0].revents().is_empty() { Woken::Late } else { Woken::Ready })
    }
}

/// Reason for a wake-up.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    Rung,
    /// The stream is readable, writable or closed.
    Ready,
    Late,
}

#[cfg(target_os = "linux")]
fn poll(files: &mut [PollFd<'_>], time: Option<Duration>) -> io::Result<()> {
    // A duration too long for `Timespec` means no timeout.
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    match rustix::event::poll(files, time.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Wake for Rope {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        #[cfg(target_os = "linux")]
        if let Some(file) = self.file.get() {
            // Fails only when the counter is full of signals that were not read yet.
            let _ = rustix::io::write(file, &1_u64.to_ne_bytes());
        }
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}
