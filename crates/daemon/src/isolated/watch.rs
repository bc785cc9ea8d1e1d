//! Daemon's end of the socket pair, and the process behind it. Orders are sent as far as the socket has room,
//! without blocking. Messages are read by the worker's thread, which also waits here. The process is killed if it
//! sends nothing for too long, makes no progress, or does not quit. Silence is counted in waits of bounded length,
//! so that a suspended machine does not count as silence.

use std::{
    io,
    os::{
        fd::AsFd as _,
        unix::{net::UnixStream, process::ExitStatusExt as _},
    },
    process::{Child, ExitStatus},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::event::PollFlags;

use super::wire::{FrameReader, FrameWriter, Impatient, Message, WorkerOrder, is_timeout};
use crate::{
    clock::{Bell, Woken},
    limits::{STUCK_AFTER, WORKER_EXIT_LOOK, WORKER_EXIT_LOOKS, WORKER_LEAVE_MAX, WORKER_START_MAX},
    prefix_disk::{DiskCounts, PrefixDisk},
};

/// Connection to a worker process.
pub(super) struct Watch {
    /// `None` in tests, where the other end is a thread.
    process: Option<Child>,
    stream: UnixStream,
    frames: FrameReader<Impatient>,
    orders: FrameWriter<Vec<u8>>,
    /// Bytes of `orders` that were sent.
    sent: usize,
    bell: Bell,
    look: Duration,
    silent: Duration,
    /// Maximum silence now: longer before the first message.
    silence_max: Duration,
    silence_max_later: Duration,
    /// Disk cache of its blocks, and the counters that were already added for it.
    disk: Option<Arc<PrefixDisk>>,
    counted: Option<DiskCounts>,
    /// Reason for the end, once it has ended.
    ended: Option<String>,
}

/// Result of listening to a process.
pub(super) enum WatchResult {
    Message(Message),
    /// Timeout, or the wake-up signal.
    Nothing,
    /// No more messages will arrive, with the reason.
    Ended(String),
}

/// Way in which a process ended.
enum End {
    /// The process ended on its own.
    Left,
    /// The process must be killed, with the reason.
    Must(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        match error.kind() {
            // The process may end before it has read all orders, or in the middle of a message.
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                End::Left
            }
            _ => End::Must(format!("it cannot be heard: {error}")),
        }
    }
}

impl Watch {
    /// Creates the connection on this end of a pair. The thread that `bell` wakes is the one that listens.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn new(
        stream: UnixStream,
        process: Option<Child>,
        bell: Bell,
        silence_max: Duration,
        disk: Option<Arc<PrefixDisk>>,
    ) -> io::Result<Watch> {
        bell.with_file()?;
        Ok(Watch {
            process,
            frames: FrameReader::new(Impatient(stream.try_clone()?)),
            stream,
            orders: FrameWriter::new(Vec::new()),
            sent: 0,
            bell,
            look: (silence_max / 8).clamp(Duration::from_millis(5), Duration::from_millis(250)),
            silent: Duration::ZERO,
            silence_max: WORKER_START_MAX,
            silence_max_later: silence_max,
            disk,
            counted: None,
            ended: None,
        })
    }

    /// Process id, if the other end is a process.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Sends an order now, or as soon as the process reads. The end of the process is noticed when listening.
    ///
    /// # Errors
    /// If the order cannot be encoded.
    pub(super) fn say(&mut self, order: &WorkerOrder) -> Result<(), String> {
        self.orders.write(order).map_err(|error| error.to_string())?;
        let _ = self.send();
        Ok(())
    }

    /// Next message. Waits until the deadline, without limit if there is none, or until the wake-up signal.
    pub(super) fn hear(&mut self, until: Option<Instant>) -> WatchResult {
        let bell = self.bell.clone();
        self.heard(until, &bell)
    }

    /// Next message, or the reason why none will come. The wake-up signal does not end this wait.
    ///
    /// # Errors
    /// Reason for the end of the process.
    pub(super) fn wait(&mut self) -> Result<Message, String> {
        loop {
            match self.heard(None, &Bell::default()) {
                WatchResult::Message(message) => return Ok(message),
                WatchResult::Ended(reason) => return Err(reason),
                WatchResult::Nothing => {}
            }
        }
    }

    fn heard(&mut self, until: Option<Instant>, bell: &Bell) -> WatchResult {
        if let Some(reason) = &self.ended {
            return WatchResult::Ended(reason.clone());
        }
        match self.listen(until, bell) {
            Ok(Some(message)) => WatchResult::Message(message),
            Ok(None) => WatchResult::Nothing,
            Err(end) => {
                let reason = self.bury(end);
                WatchResult::Ended(self.ended.insert(reason).clone())
            }
        }
    }

    fn listen(&mut self, until: Option<Instant>, bell: &Bell) -> Result<Option<Message>, End> {
        self.send()?;
        loop {
            match self.frames.next::<Message>() {
                Ok(None) => return Err(End::Left),
                Ok(Some(Message::Pulse { in_step, disk })) => self.pulse(in_step, disk)?,
                Ok(Some(Message::Ended(reason))) => {
                    self.ended = Some(reason.clone());
                    return Ok(Some(Message::Ended(reason)));
                }
                Ok(Some(message)) => {
                    self.silent = Duration::ZERO;
                    return Ok(Some(message));
                }
                Err(error) if is_timeout(&error) => {
                    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                    if left == Some(Duration::ZERO) || self.rest(left, bell)? == Woken::Rung {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn pulse(&mut self, in_step: Duration, disk: Option<DiskCounts>) -> Result<(), End> {
        (self.silent, self.silence_max) = (Duration::ZERO, self.silence_max_later);
        if let (Some(now), Some(disk)) = (disk, &self.disk) {
            disk.count(self.counted.replace(now), now);
        }
        if in_step > STUCK_AFTER {
            return Err(End::Must(format!("one step ran for {} s", in_step.as_secs())));
        }
        Ok(())
    }

    /// Waits for one bounded interval, or less, until the socket is readable or writable, or until the wake-up
    /// signal.
    fn rest(&mut self, left: Option<Duration>, bell: &Bell) -> Result<Woken, End> {
        // Send what had no room before.
        let all_out = self.send()?;
        let flags = if all_out { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let look = left.map_or(self.look, |left| left.min(self.look));
        let before = Instant::now();
        let woken = bell.rest_beside(self.stream.as_fd(), flags, Some(look))?;
        if woken != Woken::Ready {
            self.silent += before.elapsed().min(look);
            if self.silent >= self.silence_max {
                return Err(End::Must(format!("it said nothing for {:.1} s", self.silent.as_secs_f32())));
            }
        }
        Ok(woken)
    }

    /// Sends as much as there is room for; true if that was all.
    fn send(&mut self) -> io::Result<bool> {
        while let bytes = self.orders.waiting()
            && self.sent < bytes.len()
        {
            match rustix::net::send(&self.stream, &bytes[self.sent..], Impatient::SENDING) {
                Ok(sent) => self.sent += sent,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        self.sent = 0;
        self.orders.empty();
        Ok(true)
    }

    /// Waits for the process to end, killing it if necessary; returns a description.
    fn bury(&mut self, end: End) -> String {
        if matches!(end, End::Must(_)) {
            self.kill();
        }
        let ended = self.process.as_mut().map(ended);
        let who = match &self.process {
            Some(process) => format!("the model's process {}", process.id()),
            None => "the model's worker".to_owned(),
        };
        match (end, ended) {
            (End::Must(why), _) => format!("{who} was ended: {why}"),
            (End::Left, Some(Ok(status))) => format!("{who} {}", how(status)),
            (End::Left, Some(Err(error))) => {
                format!("{who} ended, and the system does not say how: {error}")
            }
            (End::Left, None) => format!("{who} left"),
        }
    }

    fn kill(&mut self) {
        match &mut self.process {
            // It may have ended already.
            Some(process) => _ = process.kill(),
            None => _ = self.stream.shutdown(std::net::Shutdown::Both),
        }
    }

    /// Orders the process to quit and waits for it, for a bounded time, since it may have to write its disk cache.
    fn leave(&mut self) {
        if self.is_over() {
            // The stream may have ended before the process did.
            _ = self.process.as_mut().map(ended);
            return;
        }
        let _ = self.say(&WorkerOrder::Quit);
        let (mut leaving, nobody) = (Duration::ZERO, Bell::default());
        while leaving < WORKER_LEAVE_MAX && !self.is_over() {
            let before = Instant::now();
            if let WatchResult::Nothing = self.heard(Some(before + self.look), &nobody) {
                leaving += before.elapsed().min(self.look);
            }
        }
        if !self.is_over() {
            let reason = self.bury(End::Must("it did not leave when it was told to".to_owned()));
            tracing::warn!("{reason}");
            self.ended = Some(reason);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Exit status of a process that has closed its stream, which it does while ending.
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

/// Description of an exit status.
fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => "was killed (signal 9); the system does so where memory runs out".to_owned(),
        (Some(signal), _) => format!("ended by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code}"),
        (None, None) => "ended".to_owned(),
    }
}
