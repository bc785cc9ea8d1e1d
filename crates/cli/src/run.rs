//! `run`: asks one question, or holds a conversation, with a model of the running daemon or of this process.

use crate::args::RunArgs;
use crate::error::CliError;
use crate::repl;
use crate::session::{Session, message};
use crate::shown;
use crate::term::interrupted;
use std::io::{IsTerminal, Read, stdin};

/// Maximum bytes of piped input, which is a daemon's limit of a message.
const INPUT_BYTES_MAX: usize = 4 << 20;

/// Runs the command.
pub(crate) async fn run(args: RunArgs) -> Result<(), CliError> {
    let prompt = prompt(&args)?;
    if args.stop.len() > 16 {
        return Err(CliError::Usage(format!("--stop is given {} times, 16 is the most", args.stop.len())));
    }
    let shown = shown::of_options(&args.image, &args.sound)?;
    if prompt.is_none() && !shown.is_empty() {
        let option = if args.image.is_empty() { "--sound" } else { "--image" };
        let message = format!("{option} needs a question: give a prompt behind the model, or pipe one in");
        return Err(CliError::Usage(message));
    }
    let mut session = Session::open(&args).await?;
    let done = match prompt {
        Some(prompt) => {
            let mut asked = message("user", &prompt);
            asked.content.splice(..0, shown);
            let answer = session.ask(&prompt, vec![asked], interrupted()).await;
            answer.and_then(|answer| if answer.interrupted { Err(CliError::Interrupted) } else { Ok(()) })
        }
        None => repl::talk(&mut session).await,
    };
    session.close(done).await
}

/// Prompt from the words after MODEL and the piped input. None if a conversation should begin.
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
    // The line feed at the end of a file is not part of a question, but may be part of a text to continue.
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
