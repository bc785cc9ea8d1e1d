//! The daemon's end of the pair, and the process behind it. What is said to it goes out as far as there is room and never
//! waits; what it says is read by the thread that needs it, which rests here meanwhile. It is ended where it says nothing for
//! too long, does not get on, or does not leave. Time is counted in rests of bounded length, so that a machine that stood
//! still has taken none.

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

use super::wire::{FrameReader, FrameWriter, Impatient, Message, Order, is_timeout};
use crate::{
    clock::{Bell, Woken},
    limits::{STUCK_AFTER, WORKER_EXIT_LOOK, WORKER_EXIT_LOOKS, WORKER_LEAVE_MAX, WORKER_START_MAX},
    prefix_disk::{DiskCounts, PrefixDisk},
};

/// See the module.
pub(super) struct Watch {
    /// None where the other end is a thread, in tests.
    process: Option<Child>,
    stream: UnixStream,
    frames: FrameReader<Impatient>,
    orders: FrameWriter<Vec<u8>>,
    /// Bytes of `orders` that have gone out.
    sent: usize,
    bell: Bell,
    look: Duration,
    silent: Duration,
    /// It may say nothing for so long: longer until it has said something.
    silence_max: Duration,
    silence_max_later: Duration,
    /// Where its blocks are counted, and what was counted of it so far.
    disk: Option<Arc<PrefixDisk>>,
    counted: Option<DiskCounts>,
    /// It is over, and why.
    ended: Option<String>,
}

/// What is heard of a process.
pub(super) enum Heard {
    Message(Message),
    /// The time has passed, or the bell was rung.
    Nothing,
    /// Nothing more comes, and why.
    Ended(String),
}

/// How a process has come to its end.
enum End {
    /// By itself.
    Left,
    /// It must be ended, and why.
    Must(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        match error.kind() {
            // It may end before it has read all that it was told, and amid a word.
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                End::Left
            }
            _ => End::Must(format!("it cannot be heard: {error}")),
        }
    }
}

impl Watch {
    /// Over this end of a pair. The thread that `bell` wakes is the one that listens.
    ///
    /// # Errors
    /// The system's.
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

    /// The number of the process, where it is one.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Tells it so, now or as soon as it reads. That it is gone is heard.
    ///
    /// # Errors
    /// Why it cannot be said.
    pub(super) fn say(&mut self, order: &Order) -> Result<(), String> {
        self.orders.write(order).map_err(|error| error.to_string())?;
        let _ = self.send();
        Ok(())
    }

    /// The next that it says; waits until then, for ever where there is no then, or until the bell is rung.
    pub(super) fn hear(&mut self, until: Option<Instant>) -> Heard {
        let bell = self.bell.clone();
        self.heard(until, &bell)
    }

    /// The next that it says, or why nothing more comes. What the bell is rung for must wait as well.
    ///
    /// # Errors
    /// Why nothing more comes.
    pub(super) fn wait(&mut self) -> Result<Message, String> {
        loop {
            match self.heard(None, &Bell::default()) {
                Heard::Message(message) => return Ok(message),
                Heard::Ended(reason) => return Err(reason),
                Heard::Nothing => {}
            }
        }
    }

    fn heard(&mut self, until: Option<Instant>, bell: &Bell) -> Heard {
        if let Some(reason) = &self.ended {
            return Heard::Ended(reason.clone());
        }
        match self.listen(until, bell) {
            Ok(Some(message)) => Heard::Message(message),
            Ok(None) => Heard::Nothing,
            Err(end) => {
                let reason = self.bury(end);
                Heard::Ended(self.ended.insert(reason).clone())
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

    /// Rests for a look, or less, until something can be read or sent, or the bell is rung.
    fn rest(&mut self, left: Option<Duration>, bell: &Bell) -> Result<Woken, End> {
        // What did not go out may go now.
        let all_out = self.send()?;
        let flags = if all_out { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let look = left.map_or(self.look, |left| left.min(self.look));
        let before = Instant::now();
        let woken = bell.rest_beside((self.stream.as_fd(), flags), Some(look))?;
        if woken != Woken::Ready {
            self.silent += before.elapsed().min(look);
            if self.silent >= self.silence_max {
                return Err(End::Must(format!("it said nothing for {:.1} s", self.silent.as_secs_f32())));
            }
        }
        Ok(woken)
    }

    /// Sends as much as there is room for; says whether that was all.
    fn send(&mut self) -> io::Result<bool> {
        while self.sent < self.orders.waiting().len() {
            let bytes = &self.orders.waiting()[self.sent..];
            match rustix::net::send(&self.stream, bytes, Impatient::SENDING) {
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

    /// Sees the process to its end; says how that came.
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

    /// Has it leave, and waits until it has, within bounds: what it keeps on a disk takes it a while.
    fn leave(&mut self) {
        if self.is_over() {
            // It may have said so before it was.
            _ = self.process.as_mut().map(ended);
            return;
        }
        let _ = self.say(&Order::Quit);
        let (mut leaving, nobody) = (Duration::ZERO, Bell::default());
        while leaving < WORKER_LEAVE_MAX && !self.is_over() {
            let before = Instant::now();
            if let Heard::Nothing = self.heard(Some(before + self.look), &nobody) {
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

/// How a process ended, for people.
fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => "was killed (signal 9); the system does so where memory runs out".to_owned(),
        (Some(signal), _) => format!("ended by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code}"),
        (None, None) => "ended".to_owned(),
    }
}
