//! Session with a loaded model: sends questions and prints answers on the terminal.

use crate::args::RunArgs;
use crate::error::CliError;
use crate::host::{Host, HostOptions, Stays};
use crate::missing::IfMissing;
use crate::term::{Paint, harmless, tell};
use hanzo_engine_proto::v1::infer_event::Event;
use hanzo_engine_proto::v1::{self, FinishReason, InferRequest, Message, infer_request::Prompt};
use std::future::Future;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::pin::pin;

/// Session with a loaded model.
pub(crate) struct Session<'a> {
    args: &'a RunArgs,
    constraint: Option<v1::Constraint>,
    host: Host,
    /// Name under which it is served.
    pub(crate) model: String,
}

type Answer = tonic::Response<tonic::Streaming<v1::InferEvent>>;

/// Result of one question.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    /// True if the user stopped it early.
    pub(crate) interrupted: bool,
}

impl<'a> Session<'a> {
    /// Connects to a daemon or starts one, and loads the model.
    pub(crate) async fn open(args: &'a RunArgs) -> Result<Self, CliError> {
        let wanted = HostOptions {
            model: &args.model,
            engine: &args.engine,
            store: &args.store,
            kv_type: args.kv_type,
            draft_model: args.draft_model.as_deref(),
            gpu_layers: args.gpu_layers,
            gpu_devices: args.gpu_devices.as_ref(),
            overrides: args.overrides.config()?,
            log_level: args.log_level,
            quiet: false,
            missing: IfMissing::of(args.yes),
            stays: Stays::AsRequest,
        };
        let constraint = args.constraint.message()?;
        let host = Host::open(wanted).await?;
        Ok(Self { args, constraint, model: host.status.name.clone(), host })
    }

    /// Stops a daemon that was started for this session, also after a failure.
    pub(crate) async fn close(self, done: Result<(), CliError>) -> Result<(), CliError> {
        self.host.close(done).await
    }

    /// True if the session is a conversation. Raw text has no turns.
    pub(crate) fn has_turns(&self) -> bool {
        !self.args.raw
    }

    /// Sends a question and streams the answer to the terminal, until its end or until `interrupt` resolves.
    /// Dropping the stream then ends the generation in the daemon too. `text` is the typed text, for `--raw`.
    /// `turns` is the conversation up to it, for the model's chat template.
    pub(crate) async fn ask(
        &mut self,
        text: &str,
        turns: Vec<Message>,
        interrupt: impl Future<Output = ()>,
    ) -> Result<Reply, CliError> {
        let mut screen = Screen::new();
        let mut answer = Reply::default();
        let mut interrupt = pin!(interrupt);
        let request = self.request(text, turns);
        let stream = tokio::select! {
            stream = self.begin(request) => stream.map_err(CliError::Engine)?,
            () = &mut interrupt => return Ok(Reply { interrupted: true, ..answer }),
        };
        let mut stream = stream.into_inner();
        let mut started = v1::Started::default();
        let finished = loop {
            let event = tokio::select! {
                event = stream.message() => event,
                () = &mut interrupt => {
                    screen.end()?;
                    return Ok(Reply { interrupted: true, ..answer });
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
                // Events that were not requested, or that are from a later version of the contract.
                Some(Some(Event::PromptLogprobs(_) | Event::Loading(_)) | None) => {}
                None => {
                    screen.end()?;
                    return Err(CliError::CutOff);
                }
            }
        };
        screen.end()?;
        if finished.reason() == FinishReason::Error {
            // The status of the stream has the reason.
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

    /// Sends the request. If the model was unloaded, loads it again first, because a model given by path is not
    /// loaded on demand.
    async fn begin(&mut self, request: InferRequest) -> Result<Answer, tonic::Status> {
        match self.host.client.infer(request.clone()).await {
            Err(status) if status.code() == tonic::Code::NotFound => {
                self.host.again().await?;
                self.host.client.infer(request).await
            }
            answer => answer,
        }
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
            sampling: Some(args.sampling.message()),
            constraint: self.constraint.clone(),
            stop: Some(v1::StopConditions {
                max_tokens: args.max_tokens,
                strings: args.stop.clone(),
                ..Default::default()
            }),
            reasoning: args.thinking_budget.map(|tokens| v1::Reasoning { tokens_max: Some(tokens) }),
            keep_alive: args.keep_alive.map(|time| time.to_string()),
            ..Default::default()
        }
    }
}

/// Message of plain text.
pub(crate) fn message(role: &str, text: &str) -> Message {
    let part = v1::ContentPart { part: Some(v1::content_part::Part::Text(text.to_owned())) };
    Message { role: role.to_owned(), content: vec![part], ..Default::default() }
}

/// Prints the answer on stdout and the reasoning on stderr, on separate lines.
struct Screen {
    stderr: Paint,
    /// True if stdout is a terminal, so that escape sequences must be removed.
    stdout_obeys: bool,
    /// Stream whose line is still open.
    open: Option<OpenSection>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenSection {
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
            self.open = if text.ends_with('\n') { None } else { Some(OpenSection::Reasoning) };
        }
    }

    fn text(&mut self, text: &str) -> Result<(), CliError> {
        if text.is_empty() {
            return Ok(());
        }
        if self.open == Some(OpenSection::Reasoning) {
            tell("\n");
        }
        let mut out = stdout().lock();
        let written = if self.stdout_obeys {
            out.write_all(harmless(text).as_bytes())
        } else {
            out.write_all(text.as_bytes())
        };
        written.and_then(|()| out.flush()).map_err(CliError::Output)?;
        self.open = if text.ends_with('\n') { None } else { Some(OpenSection::Answer) };
        Ok(())
    }

    /// Closes the open line.
    fn end(&mut self) -> Result<(), CliError> {
        match self.open.take() {
            Some(OpenSection::Reasoning) => tell("\n"),
            Some(OpenSection::Answer) => {
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
    // The first token is part of the prefill.
    let rate = match times.decode_tokens_per_s {
        rate if rate > 0.0 => format!("{rate:.1} tokens/s after the first"),
        _ => "no rate".to_owned(),
    };
    let reason = match finished.reason() {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Error => "error",
        FinishReason::Unspecified => "unknown",
    };
    format!(
        "prompt: {} tokens, {} cached, {:.1} tokens/s\nanswer: {} tokens, {}\ntimes:  queue {:.1} ms, prefill {:.1} ms, decode {:.1} ms\nend:    {reason}, seed {}\n",
        usage.prompt_tokens,
        usage.cached_tokens,
        times.prefill_tokens_per_s,
        usage.completion_tokens,
        rate,
        times.queue_ms,
        times.prefill_ms,
        times.decode_ms,
        started.seed,
    )
}
