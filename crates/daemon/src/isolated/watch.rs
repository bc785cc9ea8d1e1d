//! Who listens to a worker's process: passes on what it says, and ends it where it says nothing for too long, does not get
//! on, or does not leave. Time is counted in looks of its own, so that a machine that stood still has taken none.

use std::{
    io,
    os::unix::{net::UnixStream, process::ExitStatusExt as _},
    process::{Child, ExitStatus},
    sync::Arc,
    thread,
    time::Duration,
};

use super::{
    inbox::Inbox,
    wire::{FrameReader, Message},
};
use crate::{
    limits::{STUCK_AFTER, WORKER_EXIT_LOOK, WORKER_EXIT_LOOKS, WORKER_LEAVE_MAX, WORKER_START_MAX},
    prefix_disk::PrefixDisk,
};

/// See the module.
pub(super) struct Watch {
    /// None where the other end is a thread, in tests.
    pub(super) process: Option<Child>,
    pub(super) stream: UnixStream,
    pub(super) inbox: Arc<Inbox>,
    /// It may say nothing for so long.
    pub(super) silence_max: Duration,
    /// Where its blocks are counted.
    pub(super) disk: Option<Arc<PrefixDisk>>,
}

impl Watch {
    /// Until it has ended.
    pub(super) fn run(mut self) {
        let why = self.listen().unwrap_or_else(|error| Some(format!("it cannot be heard: {error}")));
        if why.is_some() {
            self.kill();
        }
        let ended = self.process.as_mut().map(ended);
        let who = match &self.process {
            Some(process) => format!("the model's process {}", process.id()),
            None => "the model's worker".to_owned(),
        };
        let reason = match (why, ended) {
            (Some(why), _) => format!("{who} was ended: {why}"),
            (None, Some(Ok(status))) => format!("{who} {}", how(status)),
            (None, Some(Err(error))) => format!("{who} ended, and the system does not say how: {error}"),
            (None, None) => format!("{who} left"),
        };
        self.inbox.end(reason);
    }

    /// Passes on what it says; why it must be ended, unless it ended by itself.
    fn listen(&mut self) -> io::Result<Option<String>> {
        let look = (self.silence_max / 8).clamp(Duration::from_millis(5), Duration::from_millis(250));
        self.stream.set_read_timeout(Some(look))?;
        let mut frames = FrameReader::new(self.stream.try_clone()?);
        let (mut silent, mut silence_max, mut leaving) = (Duration::ZERO, WORKER_START_MAX, Duration::ZERO);
        let (mut counted, mut waited) = (None, false);
        loop {
            match frames.next::<Message>() {
                Ok(None) => return Ok(None),
                Ok(Some(Message::Pulse { in_step, disk })) => {
                    (silent, silence_max) = (Duration::ZERO, self.silence_max);
                    waited = true;
                    if let (Some(now), Some(disk)) = (disk, &self.disk) {
                        disk.count(counted.replace(now), now);
                    }
                    if in_step > STUCK_AFTER {
                        return Ok(Some(format!("one step ran for {} s", in_step.as_secs())));
                    }
                }
                Ok(Some(message)) => {
                    silent = Duration::ZERO;
                    self.inbox.put(message);
                }
                Err(error) if is_timeout(&error) => {
                    silent += look;
                    waited = true;
                    if silent >= silence_max {
                        return Ok(Some(format!("it said nothing for {:.1} s", silent.as_secs_f32())));
                    }
                }
                // It may end before it has read all that it was told.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
            // A look that found something to pass on was not one of waiting.
            if std::mem::take(&mut waited) && self.inbox.is_closed() {
                leaving += look;
                if leaving >= WORKER_LEAVE_MAX {
                    return Ok(Some("it did not leave when it was told to".to_owned()));
                }
            }
        }
    }

    fn kill(&mut self) {
        match &mut self.process {
            // It may have ended already.
            Some(process) => _ = process.kill(),
            None => _ = self.stream.shutdown(std::net::Shutdown::Both),
        }
    }
}

/// How a process ended that has let go of its stream: it does so as it ends.
fn ended(process: &mut Child) -> io::Result<ExitStatus> {
    for _ in 0..WORKER_EXIT_LOOKS {
        if let Some(status) = process.try_wait()? {
            return Ok(status);
        }
        thread::sleep(WORKER_EXIT_LOOK);
    }
    process.kill()?;
    process.wait()
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// How a process ended, for people.
fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => "was killed (signal 9); the system does so where memory runs out".to_owned(),
        (Some(signal), _) => format!("ended by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code}"),
        (None, None) => "ended".to_owned(),
    }
}
