//! `run`: one question, or a conversation, with a model of the running daemon or of this process.

use crate::args::RunArgs;
use crate::error::CliError;
use crate::host::{Host, Wanted};
use crate::missing::IfMissing;
use crate::pull::interrupted;
use crate::repl;
use crate::term::{Paint, harmless, tell};
use hanzo_engine_proto::v1::infer_event::Event;
use hanzo_engine_proto::v1::{self, FinishReason, InferRequest, Message, infer_request::Prompt};
use std::future::Future;
use std::io::{IsTerminal, Read, Write, stderr, stdin, stdout};
use std::pin::pin;

/// Of piped input: a daemon takes no larger message.
const INPUT_BYTES_MAX: usize = 4 << 20;

/// A model that is loaded and can be asked.
pub(crate) struct Session<'a> {
    args: &'a RunArgs,
    host: Host,
    /// The name it is served under.
    pub(crate) model: String,
}

/// What came of one question.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    /// The user did not wait for its end.
    pub(crate) interrupted: bool,
}

/// Runs the command.
pub(crate) async fn run(args: RunArgs) -> Result<(), CliError> {
    let prompt = prompt(&args)?;
    if args.stop.len() > 16 {
        return Err(CliError::Usage(format!("--stop is given {} times, 16 is the most", args.stop.len())));
    }
    let mut session = Session::open(&args).await?;
    let done = match prompt {
        Some(prompt) => {
            let asked = vec![message("user", &prompt)];
            let answer = session.ask(&prompt, asked, interrupted()).await;
            answer.and_then(|answer| if answer.interrupted { Err(CliError::Interrupted) } else { Ok(()) })
        }
        None => repl::talk(&mut session).await,
    };
    session.host.close(done).await
}

/// The words after MODEL and the piped input; none when a conversation is to begin.
fn prompt(args: &RunArgs) -> Result<Option<String>, CliError> {
    let words = args.prompt.join(" ");
    if stdin().is_terminal() {
        return Ok(Some(words).filter(|words| !words.is_empty()));
    }
    let mut piped = Vec::new();
    let limit = INPUT_BYTES_MAX as u64 + 1;
    stdin().lock().take(limit).read_to_end(&mut piped).map_err(|error| CliError::Input(error.to_string()))?;
    if piped.len() > INPUT_BYTES_MAX {
        return Err(CliError::Input(format!("it is longer than {INPUT_BYTES_MAX} bytes")));
    }
    let piped = String::from_utf8(piped).map_err(|error| {
        CliError::Input(format!("it is not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
    })?;
    // The line feed at the end of a file is no part of a question, but may be one of a text to be continued.
    let piped = if args.raw { piped.as_str() } else { piped.trim_end() };
    match (words.is_empty(), piped.is_empty()) {
        (true, true) => {
            let message =
                "nothing to ask: give a prompt, pipe one in, or run it on a terminal for a conversation";
            Err(CliError::Usage(message.to_owned()))
        }
        (false, true) => Ok(Some(words)),
        (true, false) => Ok(Some(piped.to_owned())),
        (false, false) => Ok(Some(format!("{words}\n\n{piped}"))),
    }
}

impl<'a> Session<'a> {
    /// Finds or starts a daemon and has it load the model.
    async fn open(args: &'a RunArgs) -> Result<Self, CliError> {
        let wanted = Wanted {
            model: &args.model,
            engine: &args.engine,
            store: &args.store,
            kv_type: args.kv_type,
            log_level: args.log_level,
            quiet: false,
            missing: IfMissing::of(args.yes),
        };
        let host = Host::open(wanted).await?;
        Ok(Self { args, model: host.status.name.clone(), host })
    }

    /// Whether there is a conversation: raw text has no turns.
    pub(crate) fn has_turns(&self) -> bool {
        !self.args.raw
    }

    /// Asks and streams the answer to the terminal, until its end or until `interrupt` resolves; dropping the
    /// stream then ends the generation in the daemon too. `text` is what was typed, for `--raw`; `turns` the
    /// conversation up to it, for the model's chat template.
    pub(crate) async fn ask(
        &mut self,
        text: &str,
        turns: Vec<Message>,
        interrupt: impl Future<Output = ()>,
    ) -> Result<Answer, CliError> {
        let mut screen = Screen::new();
        let mut answer = Answer::default();
        let mut interrupt = pin!(interrupt);
        let request = self.request(text, turns);
        let stream = tokio::select! {
            stream = self.host.client.infer(request) => stream.map_err(CliError::Engine)?,
            () = &mut interrupt => return Ok(Answer { interrupted: true, ..answer }),
        };
        let mut stream = stream.into_inner();
        let mut started = v1::Started::default();
        let finished = loop {
            let event = tokio::select! {
                event = stream.message() => event,
                () = &mut interrupt => {
                    screen.end()?;
                    return Ok(Answer { interrupted: true, ..answer });
                }
            };
            let event = match event {
                Ok(event) => event,
                Err(status) => {
                    screen.end()?;
                    return Err(CliError::Engine(status));
                }
            };
            match event.map(|event| event.event) {
                Some(Some(Event::Started(event))) => started = event,
                Some(Some(Event::Delta(delta))) => {
                    screen.reasoning(&delta.reasoning);
                    screen.text(&delta.text)?;
                    answer.reasoning.push_str(&delta.reasoning);
                    answer.text.push_str(&delta.text);
                }
                Some(Some(Event::Finished(finished))) => break finished,
                // An event of a later version of the contract.
                Some(None) => {}
                None => {
                    screen.end()?;
                    return Err(CliError::CutOff);
                }
            }
        };
        screen.end()?;
        if finished.reason() == FinishReason::Error {
            // The stream's status says why.
            let status = stream.message().await.err();
            return Err(status.map_or(CliError::CutOff, CliError::Engine));
        }
        if finished.reason() == FinishReason::Length && self.args.max_tokens.is_none() {
            tell(&screen.stderr.dim("the context is full: the answer ends here\n"));
        }
        if self.args.verbose {
            tell(&screen.stderr.dim(&summary(&started, &finished)));
        }
        Ok(answer)
    }

    fn request(&self, text: &str, turns: Vec<Message>) -> InferRequest {
        let args = self.args;
        let prompt = if args.raw {
            Prompt::Text(text.to_owned())
        } else {
            let mut messages: Vec<Message> = args.system.iter().map(|text| message("system", text)).collect();
            messages.extend(turns);
            let switch = match (args.think, args.no_think) {
                (true, _) => r#"{"enable_thinking":true}"#,
                (_, true) => r#"{"enable_thinking":false}"#,
                _ => "",
            };
            Prompt::Chat(v1::Chat { messages, template_kwargs_json: switch.to_owned(), ..Default::default() })
        };
        InferRequest {
            model: self.model.clone(),
            prompt: Some(prompt),
            sampling: Some(v1::Sampling {
                temperature: args.temperature,
                seed: args.seed,
                ..Default::default()
            }),
            stop: Some(v1::StopConditions {
                max_tokens: args.max_tokens,
                strings: args.stop.clone(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

/// A message of plain text.
pub(crate) fn message(role: &str, text: &str) -> Message {
    let part = v1::ContentPart { part: Some(v1::content_part::Part::Text(text.to_owned())) };
    Message { role: role.to_owned(), content: vec![part], ..Default::default() }
}

/// The answer on stdout, the reasoning on stderr, each on lines of its own.
struct Screen {
    stderr: Paint,
    /// Escape sequences are taken out only where a terminal would obey them.
    stdout_obeys: bool,
    /// The stream whose line is still open.
    open: Option<Open>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Answer,
    Reasoning,
}

impl Screen {
    fn new() -> Self {
        Self { stderr: Paint::of(&stderr()), stdout_obeys: stdout().is_terminal(), open: None }
    }

    fn reasoning(&mut self, text: &str) {
        if !text.is_empty() {
            tell(&self.stderr.dim(&harmless(text)));
            self.open = if text.ends_with('\n') { None } else { Some(Open::Reasoning) };
        }
    }

    fn text(&mut self, text: &str) -> Result<(), CliError> {
        if text.is_empty() {
            return Ok(());
        }
        if self.open == Some(Open::Reasoning) {
            tell("\n");
        }
        let mut out = stdout().lock();
        let written = if self.stdout_obeys {
            out.write_all(harmless(text).as_bytes())
        } else {
            out.write_all(text.as_bytes())
        };
        written.and_then(|()| out.flush()).map_err(CliError::Output)?;
        self.open = if text.ends_with('\n') { None } else { Some(Open::Answer) };
        Ok(())
    }

    /// Closes the open line.
    fn end(&mut self) -> Result<(), CliError> {
        match self.open.take() {
            Some(Open::Reasoning) => tell("\n"),
            Some(Open::Answer) => {
                let mut out = stdout().lock();
                writeln!(out).and_then(|()| out.flush()).map_err(CliError::Output)?;
            }
            None => {}
        }
        Ok(())
    }
}

fn summary(started: &v1::Started, finished: &v1::Finished) -> String {
    let usage = finished.usage.unwrap_or_default();
    let times = finished.timings.unwrap_or_default();
    let reason = match finished.reason() {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Error => "error",
        FinishReason::Unspecified => "unknown",
    };
    format!(
        "prompt: {} tokens, {} cached, {:.1} tokens/s\nanswer: {} tokens, {:.1} tokens/s\ntimes:  queue {:.1} ms, prefill {:.1} ms, decode {:.1} ms\nend:    {reason}, seed {}\n",
        usage.prompt_tokens,
        usage.cached_tokens,
        times.prefill_tokens_per_s,
        usage.completion_tokens,
        times.decode_tokens_per_s,
        times.queue_ms,
        times.prefill_ms,
        times.decode_ms,
        started.seed,
    )
}
