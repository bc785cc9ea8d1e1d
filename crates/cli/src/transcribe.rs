//! `transcribe`: turns sound files into text or subtitles, several at once. Output is in the order of the
//! arguments.

use crate::args::TranscribeArgs;
use crate::connect::{self, SpeechApi};
use crate::error::CliError;
use crate::host::{Host, HostOptions};
use crate::print::print_line;
use crate::progress_line::ProgressLine;
use crate::size::show_span;
use crate::term::{harmless, tell};
use hanzo_engine_gateway::subtitles::{srt, vtt};
use hanzo_engine_process::tasks;
use hanzo_engine_proto::v1::{
    TranscribeConfig, TranscribeFinished, TranscribeRequest, TranscribeStarted, TranscriptSegment,
    transcribe_event::Event, transcribe_request::Part,
};
use serde_json::json;
use std::collections::VecDeque;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

/// Bytes of a message with a piece of a file.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that are read ahead.
const PIECES_MAX: usize = 4;

/// Runs the command.
pub(crate) async fn transcribe(args: TranscribeArgs) -> Result<(), CliError> {
    let shape = TranscriptFormat::of(&args)?;
    let usual = HostOptions::once(&args.model, &args.engine, &args.store);
    let wanted = HostOptions { log_level: args.log_level, quiet: args.quiet, ..usual };
    let host = Host::open(wanted).await?;
    let done = all(&args, shape, &host).await;
    host.close(done).await
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TranscriptFormat {
    Text,
    Srt,
    Vtt,
    Json,
}

impl TranscriptFormat {
    fn of(args: &TranscribeArgs) -> Result<Self, CliError> {
        let usage = |problem: &str| Err(CliError::Usage(problem.to_owned()));
        if args.files.iter().filter(|file| is_stdin(file)).count() > 1 {
            return usage("- stands for stdin, which is one file: name it once");
        }
        if args.temperature.is_some_and(|t| !(0.0..=1.0).contains(&t)) {
            return usage("--temperature must be 0 to 1");
        }
        if (args.srt || args.vtt) && args.files.len() > 1 && args.output_dir.is_none() {
            return usage("subtitles of several files need --output-dir, where each gets a file of its own");
        }
        let shape = match () {
            () if args.srt => TranscriptFormat::Srt,
            () if args.vtt => TranscriptFormat::Vtt,
            () if args.json => TranscriptFormat::Json,
            () => TranscriptFormat::Text,
        };
        // Two outputs of the same name would overwrite each other.
        let mut written: Vec<(PathBuf, &Path)> = Vec::new();
        for file in args.output_dir.iter().flat_map(|_| &args.files) {
            let name = shape.file_name(file);
            if let Some((_, first)) = written.iter().find(|(other, _)| *other == name) {
                let (first, file, name) = (first.display(), file.display(), name.display());
                return usage(&format!(
                    "{first} and {file} would both be written to {name}: ask for one at a time"
                ));
            }
            written.push((name, file));
        }
        Ok(shape)
    }

    /// Name of the output file for an input.
    fn file_name(self, file: &Path) -> PathBuf {
        let stem = if is_stdin(file) { Path::new("stdin") } else { file };
        let mut name = stem.file_stem().unwrap_or(stem.as_os_str()).to_owned();
        name.push(".");
        name.push(self.extension());
        PathBuf::from(name)
    }

    fn extension(self) -> &'static str {
        match self {
            TranscriptFormat::Text => "txt",
            TranscriptFormat::Srt => "srt",
            TranscriptFormat::Vtt => "vtt",
            TranscriptFormat::Json => "json",
        }
    }
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// Progress over all files.
struct TranscribeProgress {
    files: usize,
    done: usize,
    heard_s: f64,
    line: ProgressLine,
}

impl TranscribeProgress {
    fn show(&mut self) {
        let TranscribeProgress { files, done, heard_s, line } = self;
        line.show(*done as u64, |elapsed| {
            let speed = *heard_s / elapsed.as_secs_f64().max(1e-3);
            format!(
                "transcribing: {done} of {files} files, {} of sound, {speed:.1} x real time",
                show_span(*heard_s)
            )
        });
    }
}

type Shared = Arc<Mutex<TranscribeProgress>>;

fn locked(progress: &Shared) -> std::sync::MutexGuard<'_, TranscribeProgress> {
    // The lock guards plain counts, which a panic cannot corrupt.
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn all(args: &TranscribeArgs, shape: TranscriptFormat, host: &Host) -> Result<(), CliError> {
    if let Some(dir) = &args.output_dir {
        let made = std::fs::create_dir_all(dir);
        made.map_err(|source| CliError::Path { path: dir.clone(), source })?;
    }
    let line = ProgressLine::new(args.quiet, "{spinner} {msg}", None);
    let progress = TranscribeProgress { files: args.files.len(), done: 0, heard_s: 0.0, line };
    let progress: Shared = Arc::new(Mutex::new(progress));
    let mut running: VecDeque<(PathBuf, JoinHandle<Result<FileTranscript, CliError>>)> = VecDeque::new();
    let (mut files, mut failed) = (args.files.iter(), Vec::new());
    loop {
        while running.len() < args.in_flight as usize {
            let Some(file) = files.next() else { break };
            let work = one(host.speech.clone(), config(args, host, file), file.clone(), progress.clone());
            running.push_back((file.clone(), tasks::spawn(work)));
        }
        let Some((file, said)) = running.pop_front() else { break };
        let lost = |error: JoinError| Err(CliError::Start(format!("transcribing failed: {error}")));
        let said = said.await.unwrap_or_else(lost);
        {
            let mut progress = locked(&progress);
            progress.done += 1;
            progress.show();
            progress.line.hide();
        }
        let written = said.and_then(|said| write(args, shape, &file, &said));
        if let Err(error) = written {
            failed.push(match error {
                CliError::Engine(status) => CliError::Unheard(format!(
                    "{}: {}",
                    file.display(),
                    harmless(about_file(status.message()))
                )),
                error => error,
            });
        }
    }
    locked(&progress).line.end();
    match (failed.len(), args.files.len()) {
        (0, _) => Ok(()),
        (1, 1) => Err(failed.remove(0)),
        (count, files) => {
            failed.iter().for_each(|error| tell(&format!("error: {}\n", error.line())));
            Err(CliError::Unheard(format!("{count} of {files} files could not be transcribed")))
        }
    }
}

/// Removes the daemon's field name, because the user knows the file by its path.
fn about_file(message: &str) -> &str {
    message.strip_prefix("data: ").unwrap_or(message)
}

fn config(args: &TranscribeArgs, host: &Host, file: &Path) -> TranscribeConfig {
    TranscribeConfig {
        model: host.status.name.clone(),
        file_name: file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        language: args.language.clone().unwrap_or_default(),
        translate: args.translate,
        prompt: args.prompt.clone().unwrap_or_default(),
        temperatures: args.temperature.filter(|t| *t > 0.0).into_iter().collect(),
        word_timestamps: args.words,
        voice_activity: args.keep_pauses.then_some(false),
        ..TranscribeConfig::default()
    }
}

/// Transcript of a file.
#[derive(Default)]
struct FileTranscript {
    started: TranscribeStarted,
    segments: Vec<TranscriptSegment>,
    finished: TranscribeFinished,
}

async fn one(
    mut speech: SpeechApi,
    config: TranscribeConfig,
    file: PathBuf,
    progress: Shared,
) -> Result<FileTranscript, CliError> {
    let (to, pieces) = mpsc::channel(PIECES_MAX);
    let first = TranscribeRequest { part: Some(Part::Config(config)) };
    let requests = tokio_stream::once(first).chain(ReceiverStream::new(pieces));
    let path = file.clone();
    let reading = tokio::task::spawn_blocking(move || read(&path, &to));
    let events = speech.transcribe(requests).await;
    let mut events = match events {
        Ok(events) => events.into_inner(),
        // An unreadable file ends the request too.
        Err(status) => return Err(unread(reading, status).await),
    };
    let (mut said, mut heard_s) = (FileTranscript::default(), 0.0);
    loop {
        let event = match events.message().await {
            Ok(Some(event)) => event.event,
            Ok(None) => break,
            Err(status) => return Err(unread(reading, status).await),
        };
        match event {
            Some(Event::Started(started)) => said.started = started,
            Some(Event::Segment(segment)) => {
                let mut progress = locked(&progress);
                progress.heard_s += (segment.end_s - heard_s).max(0.0);
                heard_s = segment.end_s.max(heard_s);
                progress.show();
                said.segments.push(segment);
            }
            Some(Event::Finished(finished)) => {
                locked(&progress).heard_s += (finished.duration_s - heard_s).max(0.0);
                said.finished = finished;
            }
            Some(Event::Delta(_)) | None => {}
        }
    }
    // Wait for the reader, to be sure that the whole file was sent.
    reading.await.map_err(|error| CliError::Start(error.to_string()))??;
    Ok(said)
}

/// Reason of a failed request: the file could not be read, or the daemon's message.
async fn unread(reading: JoinHandle<Result<(), CliError>>, status: tonic::Status) -> CliError {
    match reading.await {
        Ok(Err(error)) => error,
        _ => connect::failed(status),
    }
}

/// Sends a file's bytes until it ends or the receiver is gone.
fn read(path: &Path, to: &mpsc::Sender<TranscribeRequest>) -> Result<(), CliError> {
    let failed = |source| CliError::Path { path: path.to_owned(), source };
    let mut file: Box<dyn Read> = match is_stdin(path) {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(std::fs::File::open(path).map_err(failed)?),
    };
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let bytes = match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        let piece = TranscribeRequest { part: Some(Part::Data(buffer[..bytes].to_vec().into())) };
        if to.blocking_send(piece).is_err() {
            return Ok(());
        }
    }
}

fn write(
    args: &TranscribeArgs,
    shape: TranscriptFormat,
    file: &Path,
    said: &FileTranscript,
) -> Result<(), CliError> {
    let segments = || said.segments.iter();
    let text = match shape {
        TranscriptFormat::Text => segments().map(|segment| format!("{}\n", segment.text.trim())).collect(),
        TranscriptFormat::Srt => srt(segments()),
        TranscriptFormat::Vtt => vtt(segments()),
        TranscriptFormat::Json => format!("{}\n", as_json(file, said, args.words)),
    };
    let Some(dir) = &args.output_dir else {
        if shape == TranscriptFormat::Text && args.files.len() > 1 {
            print_line(&format!("==> {} <==", harmless(&file.display().to_string())))?;
        }
        let text = text.trim_end_matches('\n');
        return if text.is_empty() { Ok(()) } else { print_line(&harmless(text)) };
    };
    let path = dir.join(shape.file_name(file));
    std::fs::write(&path, text).map_err(|source| CliError::Path { path, source })
}

fn as_json(file: &Path, said: &FileTranscript, words: bool) -> serde_json::Value {
    let segment = |segment: &TranscriptSegment| {
        let mut value = json!({
            "start": segment.start_s,
            "end": segment.end_s,
            "text": segment.text.trim(),
            "avg_logprob": segment.average_logprob,
            "no_speech_prob": segment.no_speech_probability,
        });
        if words {
            let words = segment.words.iter();
            value["words"] = words
                .map(|word| {
                    let (start, end) = (word.start_s, word.end_s);
                    json!({"word": word.word.trim(), "start": start, "end": end, "probability": word.probability})
                })
                .collect();
        }
        value
    };
    json!({
        "file": file.display().to_string(),
        "language": said.started.language,
        "duration": said.finished.duration_s,
        "text": said.finished.text,
        "segments": said.segments.iter().map(segment).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_a_text_of_its_own() {
        let name = |file: &str| TranscriptFormat::Srt.file_name(Path::new(file)).display().to_string();
        assert_eq!(
            ["a/talk.mp3", "talk.1.mp3", "talk.2.mp3", "talk", "-", "a/b.c/d"].map(name),
            ["talk.srt", "talk.1.srt", "talk.2.srt", "talk.srt", "stdin.srt", "d.srt"]
        );
        let shape = |files: &[&str]| {
            use clap::Parser as _;
            let command = ["hanzo-engine", "transcribe", "-m", "x", "--vtt", "--output-dir", "out"];
            let cli = crate::args::Cli::parse_from(command.iter().chain(files));
            let crate::args::Command::Transcribe(args) = cli.command else { panic!("another command") };
            TranscriptFormat::of(&args).map_err(|error| error.to_string())
        };
        assert_eq!(shape(&["talk.1.mp3", "talk.2.mp3"]), Ok(TranscriptFormat::Vtt));
        let both = "a/talk.mp3 and b/talk.wav would both be written to talk.vtt: ask for one at a time";
        assert_eq!(shape(&["a/talk.mp3", "b/talk.wav"]), Err(both.to_owned()));
    }
}
