//! Messages between the daemon and a worker process: orders one way, messages the other, each in a frame of length
//! and content. Both ends are the same program, so the format has no versions.

use std::{
    io::{self, Read, Write},
    ops::Range,
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

use hanzo_engine_runtime::{
    EmbedJob, EngineStats, Event, Job, JobId, Overrides, StepReport, ToolFormat, encoder::WeightType,
    engine::EngineMemory,
};
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    config::LogConfig,
    device::EngineSize,
    device_name::DeviceName,
    limits::WORKER_FRAME_BYTES_MAX,
    prefix_disk::{DiskCounts, DiskPlace},
    source::ModelSource,
};
use hanzo_engine_constraints::Spec;

/// Order to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkerOrder {
    /// Build the engine. Always the first order, and sent only once.
    Open(Box<OpenOrder>),
    /// Run this generation.
    Run(Box<RunOrder>),
    /// Embed these inputs.
    Embed(EmbedJob),
    /// Cancel this job.
    Cancel(JobId),
    /// Pause this job, or resume it.
    Pause(JobId, bool),
    /// Load this adapter, within the memory reserved for it.
    Adapter { path: PathBuf, digest: [u8; 32], bytes: u64 },
    /// Release the adapter in this slot; no new job will name it.
    DropAdapter(u32),
    /// Quit.
    Quit,
}

/// Message from a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// Progress of the load, 0 to 1.
    Progress(f32),
    /// The engine is ready for work.
    Ready,
    /// The engine could not be built.
    Refused(Refusal),
    /// A step ran, or the statistics changed for another reason.
    Stepped(StepResult),
    /// Result of [`WorkerOrder::Adapter`]: its slot, or the reason why it was refused.
    Adapter(Result<u32, Refusal>),
    /// Heartbeat, with the time that the current step has taken so far.
    Pulse { in_step: Duration, disk: Option<DiskCounts> },
    /// Reason for the worker's end, if known.
    Ended(String),
}

/// Result of a step.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct StepResult {
    pub(super) report: StepReport,
    pub(super) stats: EngineStats,
    /// Duration; `None` if no step ran.
    pub(super) took: Option<Duration>,
    pub(super) events: Vec<Event>,
}

/// Reason why a worker refused an order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub(super) reason: String,
    /// Device that lacked memory and the number of bytes, if that was the reason.
    pub(super) no_memory: Option<(String, usize)>,
    /// Device that cannot run it and its message, if that was the reason.
    pub(super) refused_by: Option<(String, String)>,
}

/// Parts that an engine is built from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OpenOrder {
    pub(super) source: ModelSource,
    pub(super) overrides: Overrides,
    pub(super) draft: Option<ModelSource>,
    pub(super) tool_format: Option<ToolFormat>,
    /// Devices that hold the layers not on the GPU, if the model is shared.
    pub(super) others: Option<Vec<(DeviceName, usize)>>,
    /// Whether the devices have parts of each layer.
    pub(super) by_rows: bool,
    pub(super) size: EngineSize,
    /// Planned memory.
    pub(super) memory: EngineMemory,
    pub(super) device: DeviceName,
    pub(super) threads: Option<usize>,
    pub(super) encoder_weights: WeightType,
    pub(super) kept: Option<DiskPlace>,
    pub(super) turns: Option<[PathBuf; 2]>,
    pub(super) log: LogConfig,
    /// Bytes that its data may take beyond the plan; `None` for no limit.
    pub(super) margin_bytes: Option<u64>,
}

/// Generation, with names in place of the parts of a [`Job`] that cannot leave their process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunOrder {
    /// The job without its adapter and its constraint.
    pub(super) job: Job,
    /// Slot of the job's adapter.
    pub(super) adapter: Option<u32>,
    /// Constraint to compile for the job.
    pub(super) constraint: Option<Spec>,
}

impl RunOrder {
    pub(super) fn of(job: &Job) -> RunOrder {
        RunOrder {
            job: job.clone(),
            adapter: job.adapter.as_ref().map(|adapter| adapter.slot()),
            constraint: job.constraint.as_ref().map(|grammar| grammar.source().clone()),
        }
    }
}

/// Writer of frames, each in one write.
pub(super) struct FrameWriter<W> {
    to: W,
    buffer: Vec<u8>,
}

/// Reader of frames. A partial frame stays in the buffer when a timeout interrupts reading.
pub(super) struct FrameReader<R> {
    from: R,
    buffer: Vec<u8>,
    unread: Range<usize>, // received bytes that belong to no returned frame yet
}

/// Non-blocking reader of a socket.
pub(super) struct Impatient(pub(super) UnixStream);

impl Impatient {
    /// Flags for sending in the other direction.
    pub(super) const SENDING: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
}

impl Read for Impatient {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let (read, _) = rustix::net::recv(&self.0, to, RecvFlags::DONTWAIT)?;
        Ok(read)
    }
}

const LENGTH_BYTES: usize = size_of::<u32>();
/// Bytes to read at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// Buffer memory that is kept between frames.
const KEPT_BYTES: usize = 1 << 20;
const _: () = assert!(WORKER_FRAME_BYTES_MAX <= u32::MAX as usize);

impl<W: Write> FrameWriter<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, buffer: Vec::new() }
    }

    /// # Errors
    /// `InvalidData` if the content cannot be encoded; then nothing was written. Errors of the stream.
    pub(super) fn write(&mut self, content: &impl Serialize) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.resize(LENGTH_BYTES, 0);
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let mut frame = postcard::to_extend(content, std::mem::take(&mut self.buffer))
            .map_err(|error| invalid(error.to_string()))?;
        let bytes = frame.len() - LENGTH_BYTES;
        if bytes > WORKER_FRAME_BYTES_MAX {
            return Err(invalid(format!("{bytes} bytes, and a frame has {WORKER_FRAME_BYTES_MAX} at most")));
        }
        frame[..LENGTH_BYTES].copy_from_slice(&(bytes as u32).to_le_bytes());
        let written = self.to.write_all(&frame);
        if frame.capacity() <= KEPT_BYTES {
            self.buffer = frame;
        }
        written
    }
}

impl FrameWriter<Vec<u8>> {
    /// Frames not sent yet.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.to
    }

    /// Discards all frames, because they were sent.
    pub(super) fn empty(&mut self) {
        self.to.clear();
        self.to.shrink_to(KEPT_BYTES);
    }
}

impl<R: Read> FrameReader<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, buffer: Vec::new(), unread: 0..0 }
    }

    /// Whether part of a frame has arrived, but not its end.
    pub(super) fn is_amid(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Next frame; `None` at the stream's end.
    ///
    /// # Errors
    /// `WouldBlock` or `TimedOut` if the stream has a timeout and nothing arrived; `InvalidData` for an invalid
    /// frame; `UnexpectedEof` if a frame is cut off; errors of the stream.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut wanted = LENGTH_BYTES;
        loop {
            let unread = &self.buffer[self.unread.clone()];
            if let Some((length, content)) = unread.split_first_chunk::<LENGTH_BYTES>() {
                let bytes = u32::from_le_bytes(*length) as usize;
                if bytes > WORKER_FRAME_BYTES_MAX {
                    let reason = format!("a frame of {bytes} bytes");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
                }
                wanted = LENGTH_BYTES + bytes;
                if let Some(content) = content.get(..bytes) {
                    let decoded = postcard::from_bytes(content);
                    self.unread.start += wanted;
                    return decoded
                        .map(Some)
                        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()));
                }
            }
            if !self.fill(wanted)? {
                return if self.is_amid() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
            }
        }
    }

    /// Reads more of a frame with this many bytes. False at the stream's end.
    fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        if self.unread.is_empty() {
            self.unread = 0..0;
            if self.buffer.len() > KEPT_BYTES {
                self.buffer = Vec::new();
            }
        }
        if self.buffer.len() - self.unread.end < CHUNK_BYTES {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            // Allocate at most twice the bytes received, so that a false length alone cannot allocate memory.
            let room = wanted.min(2 * self.unread.len()).max(self.unread.len()) + CHUNK_BYTES;
            if room > self.buffer.len() {
                self.buffer.resize(room, 0);
            }
        }
        let read = loop {
            match self.from.read(&mut self.buffer[self.unread.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.unread.end += read;
        Ok(read > 0)
    }
}

/// Whether the error means that nothing arrived in time.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reader that returns one byte at a time, with timeouts in between.
    struct Drip(Vec<u8>, usize);

    impl Read for Drip {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.1 += 1;
            if self.1 % 2 == 1 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let Some(&byte) = self.0.get(self.1 / 2 - 1) else { return Ok(0) };
            to[0] = byte;
            Ok(1)
        }
    }

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        let mut written = FrameWriter::new(Vec::new());
        let long = "x".repeat(300_000);
        for text in ["", "ab", &long] {
            written.write(&text).unwrap();
        }
        let mut whole = FrameReader::new(&written.to[..]);
        let all: Vec<String> = std::iter::from_fn(|| whole.next().unwrap()).collect();
        assert_eq!(all, ["", "ab", &long]);
        let mut drip = FrameReader::new(Drip(written.to[..9].to_vec(), 0));
        let mut seen: Vec<String> = Vec::new();
        let end = loop {
            match drip.next() {
                Ok(Some(text)) => seen.push(text),
                Ok(None) => break None,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => break Some(error.kind()),
            }
        };
        assert_eq!((seen, end), (vec![String::new()], Some(io::ErrorKind::UnexpectedEof)));
    }

    #[test]
    fn what_is_no_frame_is_refused_before_it_takes_memory() {
        let mut huge = FrameReader::new(&[0xff; 100][..]);
        assert_eq!(huge.next::<String>().unwrap_err().kind(), io::ErrorKind::InvalidData);
        let mut wrong = FrameReader::new(&[2, 0, 0, 0, 0xff, 0xff, 1][..]);
        assert_eq!(wrong.next::<Message>().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
