//! Conversation on the terminal: lines with history, a few commands, Ctrl-C to stop an answer.

use crate::error::CliError;
use crate::session::{Session, message};
use crate::shown::{MediaLine, dropped};
use crate::term::{Paint, harmless, tell};
use hanzo_engine_proto::v1::{ContentPart, Message};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::stderr;

const HELP: &str = "\
  /clear   forget the conversation so far
  /help    this list
  /exit    end (so does Ctrl-D)
  FILE     the path of a picture or a sound, dropped or typed, is shown with
           what else the line says, or with the next question
  Ctrl-C   stops an answer
";

/// Meaning of a typed line.
#[derive(Debug, PartialEq, Eq)]
enum TypedLine<'a> {
    Say(&'a str),
    Clear,
    Help,
    Exit,
    Unknown(&'a str),
    Nothing,
}

/// Runs a conversation until the user leaves. A question that fails is reported and removed, and the
/// conversation goes on.
pub(crate) async fn talk(session: &mut Session<'_>) -> Result<(), CliError> {
    let paint = Paint::of(&stderr());
    let input = |error: ReadlineError| CliError::Input(error.to_string());
    let mut editor = DefaultEditor::new().map_err(input)?;
    let kind = if session.has_turns() { "" } else { "; each line is continued on its own" };
    tell(&paint.dim(&format!("{}{kind}. /help lists the commands, Ctrl-D ends.\n", session.model)));
    let mut turns: Vec<Message> = Vec::new();
    let mut shown: Vec<ContentPart> = Vec::new(); // before the next question
    loop {
        // The editor blocks on keys, while the daemon in this process keeps running.
        let line = match tokio::task::block_in_place(|| editor.readline(">>> ")) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                tell(&paint.dim("/exit or Ctrl-D ends\n"));
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(input(error)),
        };
        let said = match parse(&line) {
            TypedLine::Nothing => continue,
            TypedLine::Exit => return Ok(()),
            TypedLine::Help => {
                tell(HELP);
                continue;
            }
            TypedLine::Clear => {
                turns.clear();
                shown.clear();
                tell(&paint.dim("the conversation is forgotten\n"));
                continue;
            }
            TypedLine::Unknown(command) => {
                tell(&format!("{command} is no command: /help lists them\n"));
                continue;
            }
            TypedLine::Say(said) => said,
        };
        // History only serves the arrow keys, so the conversation goes on without it.
        let _ = editor.add_history_entry(said);
        let question = match session.has_turns() {
            true => question(said, &mut shown, &paint),
            false => Some(message("user", said)),
        };
        let Some(mut asked) = question else { continue };
        asked.content.splice(..0, shown.drain(..));
        turns.push(asked);
        // If the signal cannot be caught, Ctrl-C ends the process as usual.
        let interrupt = async {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending().await
            }
        };
        match session.ask(said, turns.clone(), interrupt).await {
            Ok(answer) if answer.text.is_empty() && answer.interrupted => drop(turns.pop()),
            Ok(answer) => {
                let reasoning_content = answer.reasoning;
                turns.push(Message { reasoning_content, ..message("assistant", &answer.text) });
            }
            Err(error @ CliError::Output(_)) => return Err(error),
            Err(error) => {
                turns.pop();
                tell(&format!("{} {}\n", paint.red("error:"), error.line()));
            }
        }
    }
}

/// Question of a line. Media files that the line names are added to `shown`. None: the line has no question.
fn question(line: &str, shown: &mut Vec<ContentPart>, paint: &Paint) -> Option<Message> {
    match dropped(line) {
        Ok(MediaLine { names, .. }) if names.is_empty() => Some(message("user", line)),
        Ok(MediaLine { parts, names, text }) => {
            shown.extend(parts);
            let when = if text.is_empty() { "goes with the next question" } else { "goes with it" };
            tell(&paint.dim(&format!("{} {when}\n", harmless(&names.join(", ")))));
            (!text.is_empty()).then(|| message("user", &text))
        }
        Err(error) => {
            tell(&format!("{} {}\n", paint.red("error:"), error.line()));
            None
        }
    }
}

fn parse(line: &str) -> TypedLine<'_> {
    let line = line.trim();
    match line {
        "" => TypedLine::Nothing,
        "/exit" | "/quit" | "/bye" => TypedLine::Exit,
        "/help" | "/?" => TypedLine::Help,
        "/clear" => TypedLine::Clear,
        // A path or a fraction may begin with a slash too. Only a lone word of letters is a command.
        _ => match line.strip_prefix('/') {
            Some(word) if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase()) => {
                TypedLine::Unknown(line)
            }
            _ => TypedLine::Say(line),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_words() {
        let lines = [
            ("  ", TypedLine::Nothing),
            (" /exit ", TypedLine::Exit),
            ("/help", TypedLine::Help),
            ("/clear", TypedLine::Clear),
            ("/claer", TypedLine::Unknown("/claer")),
            ("/usr/bin is full", TypedLine::Say("/usr/bin is full")),
            ("/ 2", TypedLine::Say("/ 2")),
            (" hello there ", TypedLine::Say("hello there")),
        ];
        for (typed, line) in lines {
            assert_eq!(parse(typed), line);
        }
    }
}
