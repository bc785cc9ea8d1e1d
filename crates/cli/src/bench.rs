//! `bench`: the daemon's benchmark, its rows as a table or as JSON.

use crate::args::BenchArgs;
use crate::connect::model_source;
use crate::error::CliError;
use crate::models::{print_json, print_table};
use crate::table::Table;
use crate::term::tell;
use hanzo_engine_daemon::bench::{self, Progress};
use std::io::{IsTerminal, stderr};

/// Runs the command.
pub(crate) fn bench(args: BenchArgs) -> Result<(), CliError> {
    let some =
        |lens: &[u32]| lens.iter().filter(|len| **len > 0).map(|len| *len as usize).collect::<Vec<_>>();
    let (prompt_lens, gen_lens) = (some(&args.prompt), some(&args.generate));
    if prompt_lens.is_empty() && gen_lens.is_empty() {
        return Err(CliError::Usage("no test is left: give -p or -n a length above 0".to_owned()));
    }
    let asked = bench::Args {
        model: model_source(&args.model)?,
        store_dir: args.store.model_dir.clone(),
        prompt_lens,
        gen_lens,
        reps: args.repetitions as usize,
        threads: args.threads.map(usize::from),
        kv_type: args.kv_type.0,
    };
    let waiting = stderr().is_terminal();
    let rows = bench::run(&asked, |progress| {
        if waiting {
            tell(&match progress {
                Progress::Loading(percent) => format!("\r\x1b[Kloading, {percent} %"),
                Progress::Running(test, 0) => format!("\r\x1b[K{test}: warming up"),
                Progress::Running(test, run) => format!("\r\x1b[K{test}: {run} of {}", args.repetitions),
            });
        }
    });
    if waiting {
        tell("\r\x1b[K");
    }
    let rows = rows?;
    if args.json {
        return print_json(&rows);
    }
    let mut table = Table::new(&["MODEL", "TEST", ">TOKENS/S"]);
    for row in &rows {
        let speed = format!("{:.2} ± {:.2}", row.tokens_per_s, row.stddev);
        table.row([args.model.clone(), row.test.clone(), speed]);
    }
    print_table(&table)
}
