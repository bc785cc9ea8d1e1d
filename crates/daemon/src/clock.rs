//! The machine's clock and threads, which a worker is run by. Everything that is measured uses `Instant`, which is an
//! argument wherever something is decided by it, so that tests can say what it is.

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

use hanzo_engine_runtime::StepError;
#[cfg(target_os = "linux")]
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::worker::{Turn, Worker};

/// Runs a worker on this thread until it has left.
///
/// # Errors
/// Those of [`Worker::turn`].
pub(crate) fn run(worker: &mut Worker) -> Result<(), StepError> {
    loop {
        match worker.turn(Instant::now)? {
            Turn::Ran => {}
            Turn::Park(until) => worker.rest(until),
            Turn::Left => return Ok(()),
        }
    }
}

/// Nanoseconds since the first call: what an engine, which knows no clock, tells a stretch of a step by.
pub(crate) fn nanoseconds() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Rests until this thread is woken, or until then.
pub(crate) fn rest(until: Option<Instant>) {
    match until {
        None => thread::park(),
        Some(until) => thread::park_timeout(until.saturating_duration_since(Instant::now())),
    }
}

/// What a worker's thread is woken by. Where it waits for a stream too, the bell is a file beside that.
#[derive(Clone, Default)]
pub(crate) struct Bell(Arc<Rope>);

#[derive(Default)]
struct Rope {
    thread: OnceLock<Thread>,
    #[cfg(target_os = "linux")]
    file: OnceLock<OwnedFd>,
}

impl Bell {
    /// It is this thread's from now on. What was rung before is for the thread to see by itself.
    pub(crate) fn hang_here(&self) {
        let _ = self.0.thread.set(thread::current());
    }

    /// What rings it.
    pub(crate) fn waker(&self) -> Waker {
        self.0.clone().into()
    }

    /// Has it be heard by [`Bell::rest_beside`].
    #[cfg(target_os = "linux")]
    pub(crate) fn with_file(&self) -> io::Result<()> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let file = rustix::event::eventfd(0, flags)?;
        let _ = self.0.file.set(file);
        Ok(())
    }

    /// Waits until it is rung, the stream is ready, or for so long; says which. One that has no file is not heard.
    #[cfg(target_os = "linux")]
    pub(crate) fn rest_beside(
        &self,
        stream: (BorrowedFd<'_>, PollFlags),
        time: Option<Duration>,
    ) -> io::Result<Woken> {
        let stream = PollFd::from_borrowed_fd(stream.0, stream.1);
        let Some(file) = self.0.file.get() else {
            let mut files = [stream];
            poll(&mut files, time)?;
            return Ok(if files[0].revents().is_empty() { Woken::Late } else { Woken::Ready });
        };
        let mut files = [stream, PollFd::new(file, PollFlags::IN)];
        poll(&mut files, time)?;
        if !files[1].revents().is_empty() {
            // Silent before anything is looked at that it was rung for.
            let _ = rustix::io::read(file, &mut [0; size_of::<u64>()]);
            return Ok(Woken::Rung);
        }
        Ok(if files[0].revents().is_empty() { Woken::Late } else { Woken::Ready })
    }
}

/// Why a thread no longer rests.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    Rung,
    /// There is something to read, or room to write, or the stream is at its end.
    Ready,
    Late,
}

#[cfg(target_os = "linux")]
fn poll(files: &mut [PollFd<'_>], time: Option<Duration>) -> io::Result<()> {
    // A time that no clock has is none.
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
            // Full only of rings that nobody has heard yet.
            let _ = rustix::io::write(file, &1_u64.to_ne_bytes());
        }
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}
