//! `say`: speaks a text into a sound file, which is written while the sound is made.

use crate::args::{SayArgs, SayFormat};
use crate::connect;
use crate::error::CliError;
use crate::host::{Host, HostOptions};
use crate::print::print_table;
use crate::size::show_span;
use crate::table::Table;
use crate::term::{harmless, tell};
use hanzo_engine_proto::v1::{
    SpeakFinished, SpeakRequest, VoicesRequest, speak_event::Event, speak_request::Input,
};
use std::fs::File;
use std::io::{self, IsTerminal, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Offsets of a WAV file's two length fields: of the whole file, and of the samples.
const WAV_LENGTHS: [u64; 2] = [4, 40];

/// Runs the command.
pub(crate) async fn say(args: SayArgs) -> Result<(), CliError> {
    let plan = if args.voices { None } else { Some(SayPlan::new(&args)?) };
    let usual = HostOptions::once(&args.model, &args.engine, &args.store);
    let wanted = HostOptions { log_level: args.log_level, quiet: args.quiet, ..usual };
    let host = Host::open(wanted).await?;
    let done = match plan {
        None => voices(&host).await,
        Some(plan) => write(&args, plan, &host).await,
    };
    host.close(done).await
}

/// Text, format and output of the command.
struct SayPlan {
    text: String,
    format: SayFormat,
    output: PathBuf,
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl SayPlan {
    fn new(args: &SayArgs) -> Result<SayPlan, CliError> {
        let usage = |problem: String| CliError::Usage(problem);
        let output = args.output.clone().unwrap_or_else(|| PathBuf::from("-"));
        let extension = output.extension().map(|extension| extension.to_string_lossy().into_owned());
        let format = match (args.format, extension) {
            (Some(format), _) => format,
            (None, None) if is_standard(&output) => SayFormat::Wav,
            (None, extension) => {
                let known = extension.as_deref().and_then(SayFormat::of_extension);
                known.ok_or_else(|| {
                    let path = output.display();
                    usage(format!(
                        "{path}: its name ends in none of .wav, .mp3, .opus, .ogg, .flac and .pcm; give --format"
                    ))
                })?
            }
        };
        if is_standard(&output) && io::stdout().is_terminal() {
            return Err(usage(
                "sound does not go to a terminal: name a file, or a program behind |".to_owned(),
            ));
        }
        let text = match (&args.text, &args.input) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) => read(path)?,
            (None, None) => String::new(),
        };
        Ok(SayPlan { text, format, output })
    }
}

fn read(path: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let done = match is_standard(path) {
        true => io::stdin().lock().read_to_string(&mut text),
        false => File::open(path).and_then(|mut file| file.read_to_string(&mut text)),
    };
    done.map_err(|source| CliError::Path { path: path.to_owned(), source })?;
    Ok(text)
}

async fn voices(host: &Host) -> Result<(), CliError> {
    let model = host.status.name.clone();
    let voices = host.speech.clone().voices(VoicesRequest { model }).await.map_err(connect::failed)?;
    let mut table = Table::new(&["VOICE", "LANGUAGE", "GENDER", "ALSO"]);
    for voice in voices.into_inner().voices {
        let also = voice.aliases.join(", ");
        table.row([voice.name, voice.language, voice.gender, also].map(|cell| harmless(&cell)));
    }
    print_table(&table)
}

async fn write(args: &SayArgs, plan: SayPlan, host: &Host) -> Result<(), CliError> {
    let input = if args.phonemes { Input::Phonemes(plan.text) } else { Input::Text(plan.text) };
    let request = SpeakRequest {
        model: host.status.name.clone(),
        input: Some(input),
        voice: args.voice.clone().unwrap_or_default(),
        speed: args.speed,
        format: plan.format.wire().into(),
        language: args.language.clone().unwrap_or_default(),
        seed: args.seed,
        ..SpeakRequest::default()
    };
    let mut events = host.speech.clone().speak(request).await.map_err(connect::failed)?.into_inner();
    let failed = |source| CliError::Path { path: plan.output.clone(), source };
    // Opened when the first sound arrives, so that a refused text leaves an existing file as it was.
    let mut sink = None;
    let mut finished = None;
    while let Some(event) = events.message().await.map_err(connect::failed)? {
        match event.event {
            Some(Event::Data(data)) => {
                if sink.is_none() {
                    sink = Some(Sink::open(&plan.output).map_err(failed)?);
                }
                if let Some(sink) = &mut sink {
                    sink.write(&data).map_err(failed)?;
                }
            }
            Some(Event::Finished(last)) => finished = Some(last),
            Some(Event::Started(_)) | None => {}
        }
    }
    if let Some(sink) = sink {
        sink.finish(plan.format).map_err(failed)?;
    }
    if let Some(finished) = finished {
        report(args, &finished);
    }
    Ok(())
}

fn report(args: &SayArgs, finished: &SpeakFinished) {
    if !finished.unknown_words.is_empty() {
        let words = harmless(&finished.unknown_words.join(", "));
        tell(&format!("said by their letters, as no dictionary has them: {words}\n"));
    }
    if !args.quiet {
        let (length, took) = (show_span(finished.duration_s), finished.total_ms / 1e3);
        let first = finished.first_sound_ms / 1e3;
        tell(&format!("{length} of sound in {took:.2} s, the first after {first:.2} s\n"));
    }
}

/// Destination of the sound.
enum Sink {
    Stdout,
    File { file: File, bytes: u64 },
}

impl Sink {
    fn open(path: &Path) -> io::Result<Sink> {
        Ok(match is_standard(path) {
            true => Sink::Stdout,
            false => Sink::File { file: File::create(path)?, bytes: 0 },
        })
    }

    fn write(&mut self, data: &[u8]) -> io::Result<()> {
        match self {
            Sink::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(data)?;
                out.flush()
            }
            Sink::File { file, bytes } => {
                *bytes += data.len() as u64;
                file.write_all(data)
            }
        }
    }

    /// Finishes the file. Fills in the lengths in a WAV header, which were unknown when it was written.
    fn finish(self, format: SayFormat) -> io::Result<()> {
        let Sink::File { mut file, bytes } = self else { return Ok(()) };
        if format == SayFormat::Wav && file.metadata()?.is_file() {
            for at in WAV_LENGTHS {
                let Ok(length) = u32::try_from(bytes.saturating_sub(at + 4)) else { break };
                file.seek(SeekFrom::Start(at))?;
                file.write_all(&length.to_le_bytes())?;
            }
        }
        Ok(())
    }
}
