//! `imatrix`: computes a model's importance matrix by running the model over a text in this process.

use crate::args::ImatrixArgs;
use crate::error::CliError;
use crate::paths::model_source;
use crate::print::{print_json, print_line};
use crate::term::{interrupted, tell};
use hanzo_engine_daemon::imatrix::{self, ImatrixError};
use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum bytes of the calibration text, which is tokenized as a whole.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Runs the command.
pub(crate) async fn imatrix(args: ImatrixArgs) -> Result<(), CliError> {
    if args.output.exists() && !args.force {
        let file = args.output.display();
        return Err(CliError::Usage(format!("{file} exists already: --force writes over it")));
    }
    let file = args.text.display();
    let failed = |reason: String| CliError::Usage(format!("{file}: {reason}"));
    let about = std::fs::metadata(&args.text).map_err(|error| failed(error.to_string()))?;
    if !about.is_file() || about.len() > TEXT_BYTES_MAX {
        return Err(failed(format!("a file of at most {TEXT_BYTES_MAX} bytes of text is needed")));
    }
    let text = std::fs::read_to_string(&args.text).map_err(|error| failed(error.to_string()))?;
    let asked = imatrix::ImatrixOptions {
        model: model_source(&args.model)?,
        store_dir: args.store.model_dir.clone(),
        text,
        dataset: file.to_string(),
        output: args.output.clone(),
        form: args.output_format.form(),
        chunk_tokens: args.chunk_tokens as usize,
        chunks_max: args.chunks.map(|chunks| chunks as usize),
        threads: args.threads.map(usize::from),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let (stops, shown) = (stop.clone(), stderr().is_terminal() && !args.json);
    let mut making = tokio::task::spawn_blocking(move || {
        let made = imatrix::run(&asked, &stops, |done, all| {
            if shown {
                tell(&format!("\r\x1b[Kchunk {done} of {all}"));
            }
        });
        if shown {
            tell("\r\x1b[K");
        }
        made
    });
    let made = tokio::select! {
        made = &mut making => made,
        () = interrupted() => {
            stop.store(true, Ordering::Relaxed);
            making.await
        }
    };
    let report = match made.map_err(|error| CliError::Start(error.to_string()))? {
        Err(ImatrixError::Stopped) => return Err(CliError::Interrupted),
        made => made?,
    };
    if args.json {
        return print_json(&report);
    }
    print_line(&format!(
        "made {}: {} tensors, over {} chunks of {} tokens",
        report.file.display(),
        report.tensors,
        report.chunks,
        report.chunk_tokens
    ))?;
    if report.unmet > 0 {
        let unmet = report.unmet;
        tell(&format!(
            "{unmet} matrices of experts met nothing, and all of their columns count alike: give more text\n"
        ));
    }
    Ok(())
}
