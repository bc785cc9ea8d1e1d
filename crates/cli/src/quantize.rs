//! `quantize`: writes a GGUF file, or a folder, with fewer bits. Runs in this process.

use crate::args::{QuantizeArgs, QuantizeTo};
use crate::byte_progress::ByteProgress;
use crate::error::CliError;
use crate::inspect::path_of;
use crate::print::{print_json, print_line, print_table};
use crate::size::show_bytes;
use crate::table::Table;
use crate::term::{harmless, interrupted};
use hanzo_engine_daemon::quantize::{self, QuantizeError, QuantizeReport};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs the command.
pub(crate) async fn quantize(args: QuantizeArgs) -> Result<(), CliError> {
    let output = args.output.as_ref().filter(|_| !args.dry_run);
    if let Some(file) = output {
        if file.is_dir() && matches!(args.to, QuantizeTo::Mix(_)) {
            let file = file.display();
            return Err(CliError::Usage(format!("{file} is a directory: say what the file in it is called")));
        }
        if file.exists() && !args.force && matches!(args.to, QuantizeTo::Mix(_)) {
            let file = file.display();
            return Err(CliError::Usage(format!("{file} exists already: --force writes over it")));
        }
    }
    let asked = quantize::QuantizeOptions {
        model: path_of(&args.model, &args.engine).await?,
        store_dir: args.store.model_dir.clone(),
        output: output.cloned(),
        target: args.target().map_err(CliError::Usage)?,
        importance: args.imatrix.clone(),
        threads: args.threads.map(usize::from),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let (stops, quiet) = (stop.clone(), args.json);
    let mut making = tokio::task::spawn_blocking(move || {
        let mut progress = ByteProgress::new("quantising", None, quiet);
        let made = quantize::run(&asked, &stops, |bytes| progress.add(bytes));
        progress.end();
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
        Err(QuantizeError::Stopped) => return Err(CliError::Interrupted),
        made => made?,
    };
    if args.json { print_json(&report) } else { print(&args, &report) }
}

fn print(args: &QuantizeArgs, report: &QuantizeReport) -> Result<(), CliError> {
    if args.dry_run {
        let mut table = Table::new(&["TENSOR", "SHAPE", "FROM", "TO", ">SIZE"]);
        for row in &report.tensors {
            let shape: Vec<String> = row.shape.iter().map(usize::to_string).collect();
            let types = (row.from.to_owned(), row.to.to_owned());
            table.row([harmless(&row.name), shape.join(" x "), types.0, types.1, show_bytes(row.bytes)]);
        }
        print_table(&table)?;
    }
    let QuantizeReport { source_bytes, size_bytes, bits_per_weight, .. } = report;
    let sizes = format!(
        "{} of {}, {bits_per_weight:.2} bits per weight",
        show_bytes(*size_bytes),
        show_bytes(*source_bytes)
    );
    match &report.file {
        Some(file) => print_line(&format!("made {} ({}): {sizes}", file.display(), args.to.name())),
        None => print_line(&format!("{} would be {sizes}", args.to.name())),
    }
}
