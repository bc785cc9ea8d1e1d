//! `embed`: computes embeddings. One loop serves two texts as well as a file of any size. A thread reads
//! batches, several requests are in flight at once, and records are written in the order of the input.

mod batch;
mod npy;
mod output;
mod parquet;
mod partial;
mod progress;
mod request;

use crate::args::{EmbedArgs, InputFormat};
use crate::connect::MESSAGE_BYTES_MAX;
use crate::error::{CliError, PartialError};
use crate::host::{Host, HostOptions};
use crate::input::{Input, Survey};
use crate::term::tell;
use batch::{Batch, EmbeddedBatch};
use hanzo_engine_process::tasks;
use hanzo_engine_proto::v1::{self, Capability};
use output::VectorFormat;
use partial::{ItemOutcome, Partial, Record, RowCounts};
use progress::EmbedProgress;
use request::EmbedClient;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::future::pending;
use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};
use std::pin::pin;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};

/// Maximum bytes of the vectors in one response: half of a message's limit.
const ANSWER_BYTES_MAX: u64 = MESSAGE_BYTES_MAX as u64 / 2;

/// Runs the command.
pub(crate) async fn embed(args: EmbedArgs) -> Result<(), CliError> {
    let plan = EmbedPlan::new(&args)?;
    let survey = plan.input.survey()?;
    let usual = HostOptions::once(&args.model, &args.engine, &args.store);
    let wanted = HostOptions { log_level: args.log_level, quiet: args.quiet, ..usual };
    let host = Host::open(wanted).await?;
    let embed_client = embed_client(&args, &host)?;
    let done = match &plan.output {
        Some(path) => to_file(&args, &plan, path, &host, embed_client, survey).await,
        None => {
            let quiet =
                args.quiet || !args.texts.is_empty() || !args.image.is_empty() || stdout().is_terminal();
            let progress = EmbedProgress::new(quiet, survey.map(|survey| survey.rows), 0);
            EmbedRun {
                args: &args,
                plan: &plan,
                embed_client,
                sink: Sink::Stdout,
                progress,
                counts: RowCounts::default(),
            }
            .run()
            .await
            .map(drop)
        }
    };
    host.close(done).await
}

/// Input, output and format of a job.
struct EmbedPlan {
    input: Input,
    kind: VectorFormat,
    /// Path of the output. None: stdout.
    output: Option<PathBuf>,
}

impl EmbedPlan {
    fn new(args: &EmbedArgs) -> Result<Self, CliError> {
        let input = match args.image.is_empty() {
            true => Input::new(&args.texts, args.input.as_deref(), args.input_format, args.field.as_deref())?,
            false => Some(Input::with_pictures(&args.texts, &args.image)),
        };
        let input = input.ok_or_else(|| {
            CliError::Usage("nothing to embed: give texts, --image, or --input with a file or -".to_owned())
        })?;
        let output = args.output.clone().filter(|path| path.as_os_str() != "-");
        let kind = match &output {
            Some(path) => VectorFormat::of(path, args.with_text)?,
            None if args.restart => {
                return Err(CliError::Usage("--restart is for an --output that is a file".to_owned()));
            }
            None => VectorFormat::Jsonl,
        };
        if args.with_text && !matches!(kind, VectorFormat::Parquet { .. }) {
            return Err(CliError::Usage("--with-text is for an --output that ends in .parquet".to_owned()));
        }
        if let Some(path) = &output
            && !args.restart
            && path.exists()
            && !partial_of(path).exists()
        {
            let path = path.display();
            return Err(CliError::Usage(format!("{path} exists already: --restart makes it anew")));
        }
        Ok(Self { input, kind, output })
    }
}

fn partial_of(output: &Path) -> PathBuf {
    output::with_suffix(output, ".partial")
}

/// Builds the request for every batch, and checks that the model supports it.
fn embed_client(args: &EmbedArgs, host: &Host) -> Result<EmbedClient, CliError> {
    let status = &host.status;
    let usage = |message: String| Err(CliError::Usage(message));
    let Some(embedder) =
        status.embedder.as_ref().filter(|_| status.capabilities().any(|can| can == Capability::Embed))
    else {
        return usage(format!("{} makes no vectors", status.name));
    };
    let dimensions = args.dimensions.unwrap_or(embedder.dimensions);
    if dimensions > embedder.dimensions {
        return usage(format!(
            "--dimensions {dimensions}: {}'s vectors have {}",
            status.name, embedder.dimensions
        ));
    }
    if let Some(name) = args.prompt_name.as_ref().filter(|name| !embedder.prompt_names.contains(name)) {
        let known = match embedder.prompt_names.as_slice() {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        return usage(format!("--prompt-name {name}: {} has {known}", status.name));
    }
    let batch_max = ANSWER_BYTES_MAX / (u64::from(dimensions.max(1)) * size_of::<f32>() as u64);
    if u64::from(args.batch) > batch_max {
        return usage(format!("--batch {}: {batch_max} vectors of {dimensions} fit an answer", args.batch));
    }
    let request = v1::EmbedRequest {
        model: status.name.clone(),
        dimensions: args.dimensions.unwrap_or_default(),
        normalize: args.normalizes(),
        truncate: args.truncates(),
        prompt_name: args.prompt_name.clone().unwrap_or_default(),
        instruction: args.instruction.clone().unwrap_or_default(),
        packed: true,
        ..Default::default()
    };
    Ok(EmbedClient { client: host.client.clone(), request, dimensions })
}

/// Header of a partial result: everything that determines its bytes. A resumed job must have the same header.
fn header(
    plan: &EmbedPlan,
    host: &Host,
    embed_client: &EmbedClient,
    survey: Option<&Survey>,
) -> Map<String, Value> {
    let (status, request, input) = (&host.status, &embed_client.request, &plan.input);
    let embedder = status.embedder.as_ref();
    let field = (input.format == InputFormat::Jsonl).then_some(&input.field);
    let kind = match plan.kind {
        VectorFormat::Jsonl => "jsonl",
        VectorFormat::Npy => "npy",
        VectorFormat::Parquet { .. } => "parquet",
    };
    let entries = [
        ("model", json!(status.name)),
        ("architecture", json!(status.architecture)),
        ("quantization", json!(status.quantization)),
        ("parameters", json!(status.parameters)),
        ("pooling", json!(embedder.map(|embedder| &embedder.pooling))),
        ("default_prompt", json!(embedder.map(|embedder| &embedder.default_prompt_name))),
        ("dimensions", json!(embed_client.dimensions)),
        ("normalize", json!(request.normalize)),
        ("truncate", json!(request.truncate)),
        ("prompt_name", json!(request.prompt_name)),
        ("instruction", json!(request.instruction)),
        ("field", json!(field)),
        ("output", json!(kind)),
        ("with_text", json!(plan.kind == VectorFormat::Parquet { with_text: true })),
        ("input_rows", json!(survey.map(|survey| survey.rows))),
        ("input_sha256", json!(survey.map(|survey| &survey.sha256))),
    ];
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Resumes the partial result beside `path` or starts one, and turns it into the file once complete.
async fn to_file(
    args: &EmbedArgs,
    plan: &EmbedPlan,
    path: &Path,
    host: &Host,
    embed_client: EmbedClient,
    survey: Option<Survey>,
) -> Result<(), CliError> {
    let beside = partial_of(path);
    if args.restart {
        Partial::discard(&beside)?;
    }
    let dimensions = embed_client.dimensions;
    let partial = Partial::open(&beside, &header(plan, host, &embed_client, survey.as_ref()))?;
    if let (Some((number, why)), false) = (&partial.failed, args.skip_errors) {
        return Err(CliError::Item { at: plan.input.at(*number), why: why.clone() });
    }
    let counts = partial.counts;
    if counts.rows > 0 && !args.quiet {
        tell(&format!("going on after {} rows in {}\n", counts.rows, beside.display()));
    }
    let progress = EmbedProgress::new(args.quiet, survey.map(|survey| survey.rows), counts.rows);
    let mut job = EmbedRun { args, plan, embed_client, sink: Sink::File(partial), progress, counts };
    let ended = job.run().await;
    let (Sink::File(partial), counts) = (job.sink, job.counts) else { return ended };
    let kept = |what: CliError, rows: u64| match rows {
        0 => what,
        rows => CliError::Kept { what: Box::new(what), rows, partial: beside.clone() },
    };
    if let Err(error) = ended {
        if partial.counts.rows == 0 {
            partial.remove()?;
        }
        return Err(kept(error, counts.rows));
    }
    let finished = output::finish(partial, path, plan.kind, plan.input.format, dimensions);
    finished.map_err(|error| kept(error, counts.rows))?;
    if !args.quiet {
        tell(&format!("{}: {}\n", path.display(), summary(&counts, dimensions)));
    }
    Ok(())
}

/// `5000 vectors of 384 numbers; without one: 2 empty lines, 1 error`
fn summary(counts: &RowCounts, dimensions: u32) -> String {
    let some = |count: u64, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        count => Some(format!("{count} {what}s")),
    };
    let without: Vec<String> =
        [some(counts.blank, "empty line"), some(counts.failed, "error")].into_iter().flatten().collect();
    let vectors = counts.rows - counts.blank - counts.failed;
    let mut line = format!("{vectors} vectors of {dimensions} numbers");
    if !without.is_empty() {
        line.push_str(&format!("; without one: {}", without.join(", ")));
    }
    line
}

/// Destination of records.
enum Sink {
    Stdout,
    File(Partial),
}

/// Job over one input.
struct EmbedRun<'a> {
    args: &'a EmbedArgs,
    plan: &'a EmbedPlan,
    embed_client: EmbedClient,
    sink: Sink,
    progress: EmbedProgress,
    counts: RowCounts,
}

type Flight = JoinHandle<Result<EmbeddedBatch, CliError>>;

impl EmbedRun<'_> {
    /// Reads, requests and writes until the input ends or the job fails.
    async fn run(&mut self) -> Result<(), CliError> {
        let ended = self.work().await;
        let line = self.progress.end();
        if let (Ok(()), Some(line)) = (&ended, line) {
            tell(&format!("{line}\n"));
        }
        ended
    }

    async fn work(&mut self) -> Result<(), CliError> {
        let mut batches = self.read()?;
        let mut interrupt = pin!(tokio::signal::ctrl_c());
        let mut flights: VecDeque<Flight> = VecDeque::new();
        let mut reading = true;
        while reading || !flights.is_empty() {
            tokio::select! {
                batch = batches.recv(), if reading && flights.len() < self.args.in_flight as usize => match batch {
                    Some(batch) => flights.push_back(tasks::spawn(batch?.embed(self.embed_client.clone()))),
                    None => reading = false,
                },
                landed = first(&mut flights), if !flights.is_empty() => {
                    flights.pop_front();
                    let lost = |error: JoinError| CliError::Start(format!("a request's task failed: {error}"));
                    self.write(landed.map_err(lost)??)?;
                }
                _ = &mut interrupt => return Err(CliError::Interrupted),
            }
        }
        Ok(())
    }

    /// Starts a thread that reads batches ahead from where the sink stands. One batch waits beside those in
    /// flight.
    fn read(&self) -> Result<mpsc::Receiver<Result<Batch, CliError>>, CliError> {
        let (input, kind, rows) = (&self.plan.input, self.plan.kind, self.args.batch as usize);
        let (mut items, name) = (input.items()?, input.name());
        let unread = |name: &str, error: std::io::Error| CliError::Input(format!("{name}: {error}"));
        if let Sink::File(partial) = &self.sink {
            let (done, chain) = (partial.counts.rows, partial.chain);
            if items.skip(done).map_err(|error| unread(&name, error))? != Some(chain) {
                let what = format!("its {done} rows are not the first of {name} as it is now");
                return Err(PartialError::Differs { path: partial.path().to_owned(), what }.into());
            }
        }
        let (send, receive) = mpsc::channel(1);
        let reader = std::thread::Builder::new().name("input".to_owned());
        let read = move || loop {
            let batch = match Batch::read(&mut items, kind, rows) {
                Ok(None) => break,
                Ok(Some(batch)) => Ok(batch),
                Err(error) => Err(unread(&name, error)),
            };
            let last = batch.is_err();
            // The receiver is gone once the job has ended.
            if send.blocking_send(batch).is_err() || last {
                break;
            }
        };
        reader.spawn(read).map_err(|error| CliError::Start(error.to_string()))?;
        Ok(receive)
    }

    /// Writes the records of a batch, up to one that ends the job.
    fn write(&mut self, landed: EmbeddedBatch) -> Result<(), CliError> {
        let EmbeddedBatch { records, tokens } = landed;
        let mut lines = Vec::new();
        let mut ended = Ok(());
        let rows = records.len() as u64;
        for record in records {
            if let ItemOutcome::Failed(why) = &record.outcome {
                let at = self.plan.input.at(record.number);
                if !self.args.skip_errors {
                    ended = Err(CliError::Item { at, why: why.clone() });
                    break;
                }
                self.progress.say(&format!("{at}: {why}"));
            }
            self.put(&record, &mut lines)?;
            self.counts.count(&record.outcome);
        }
        match &mut self.sink {
            Sink::Stdout => {
                let mut out = stdout().lock();
                out.write_all(&lines).and_then(|()| out.flush()).map_err(CliError::Output)?;
            }
            Sink::File(partial) => partial.flush()?,
        }
        if ended.is_ok() {
            self.progress.add(rows, tokens);
        }
        ended
    }

    fn put(&mut self, record: &Record, lines: &mut Vec<u8>) -> Result<(), CliError> {
        match &mut self.sink {
            Sink::Stdout => {
                let line = output::json_line(record, self.plan.input.format).map_err(CliError::Output)?;
                lines.extend(line);
            }
            Sink::File(partial) => partial.add(record)?,
        }
        Ok(())
    }
}

/// Waits for the oldest request in flight. Cancelling this future loses nothing.
async fn first(flights: &mut VecDeque<Flight>) -> Result<Result<EmbeddedBatch, CliError>, JoinError> {
    match flights.front_mut() {
        Some(flight) => flight.await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts_what_has_no_vector() {
        let all = RowCounts { rows: 5, blank: 0, failed: 0 };
        assert_eq!(summary(&all, 384), "5 vectors of 384 numbers");
        let some = RowCounts { rows: 9, blank: 2, failed: 1 };
        assert_eq!(summary(&some, 4), "6 vectors of 4 numbers; without one: 2 empty lines, 1 error");
    }
}
