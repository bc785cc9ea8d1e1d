//! `bench`: runs the daemon's benchmark and prints its rows as a table or as JSON.

use crate::args::BenchArgs;
use crate::error::CliError;
use crate::paths::model_source;
use crate::print::{print_json, print_table};
use crate::table::Table;
use crate::term::tell;
use hanzo_engine_daemon::bench::{self, BenchProgress, BenchReport, Limits, Shares};
use std::io::{IsTerminal, Write, stderr, stdout};

/// Runs the command.
pub(crate) fn bench(args: BenchArgs) -> Result<(), CliError> {
    let all = |numbers: &[u32]| numbers.iter().map(|number| *number as usize).collect::<Vec<_>>();
    let some = |lens: &[u32]| all(lens).into_iter().filter(|len| *len > 0).collect::<Vec<_>>();
    let (prompt_lens, gen_lens) = (some(&args.prompt), some(&args.generate));
    if prompt_lens.is_empty() && gen_lens.is_empty() {
        return Err(CliError::Usage("no test is left: give -p or -n a length above 0".to_owned()));
    }
    let asked = bench::BenchOptions {
        model: model_source(&args.model)?,
        store_dir: args.store.model_dir.clone(),
        prompt_lens,
        gen_lens,
        depths: all(&args.depth),
        batches: all(&args.batch),
        reps: args.repetitions as usize,
        threads: args.threads.map(usize::from),
        devices: args.device,
        gpu_layers: args.gpu_layers.map(|layers| layers as usize),
        split_mode: args.split_mode,
        kv_type: args.kv_type.0,
        limits: args.limits,
    };
    let waiting = stderr().is_terminal();
    let report = bench::run(&asked, |progress| {
        if waiting {
            tell(&format!("\r\x1b[K{}", said(&progress, args.repetitions)));
        }
    });
    if waiting {
        tell("\r\x1b[K");
    }
    let report = report?;
    if args.json { print_json(&report) } else { print_report(&args.model, &report) }
}

/// Formats the progress as one line.
fn said(progress: &BenchProgress, repetitions: u32) -> String {
    match progress {
        BenchProgress::Loading(percent) => format!("loading, {percent} %"),
        BenchProgress::Limits => "measuring this machine".to_owned(),
        BenchProgress::Filling { test, percent } => format!("{test}: filling the cache, {percent} %"),
        BenchProgress::Running { test, run, percent } => {
            let run = match run {
                0 => "warming up".to_owned(),
                run => format!("{run} of {repetitions}"),
            };
            match percent {
                0 => format!("{test}: {run}"),
                percent => format!("{test}: {run}, {percent} %"),
            }
        }
    }
}

fn print_report(model: &str, report: &BenchReport) -> Result<(), CliError> {
    if let Some(limits) = &report.limits {
        writeln!(stdout().lock(), "{}\n", show_limits(&report.device, limits)).map_err(CliError::Output)?;
    }
    let headings = &["MODEL", "TEST", ">TOKENS/S", "SHARE OF LIMIT"];
    let columns = if report.limits.is_some() { 4 } else { 3 };
    let mut table = Table::new(&headings[..columns]);
    for row in &report.rows {
        let speed = format!("{:.2} ± {:.2}", row.tokens_per_s, row.stddev);
        let cells = [model.to_owned(), row.test.clone(), speed];
        match &row.shares {
            Some(shares) => {
                let [model, test, speed] = cells;
                table.row([model, test, speed, show_shares(shares)]);
            }
            None => table.row(cells),
        }
    }
    print_table(&table)
}

fn show_limits(device: &str, limits: &Limits) -> String {
    format!(
        "{device}: reads {:.1} GB/s, int8 {:.2} TOP/s, f32 {:.2} TFLOP/s",
        limits.read_bytes_per_s * 1e-9,
        limits.int8_ops_per_s * 1e-12,
        limits.f32_ops_per_s * 1e-12
    )
}

/// Formats the resource that limits the result: the larger of the two shares.
fn show_shares(shares: &Shares) -> String {
    let percent = |share: f64, of: &str| format!("{:.0} % of {of}", share * 100.0);
    match shares.read {
        Some(read) if read >= shares.arithmetic => percent(read, "reads"),
        _ => percent(shares.arithmetic, "arithmetic"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_share_is_the_one_that_binds() {
        let show = |read, arithmetic| show_shares(&Shares { read, arithmetic });
        assert_eq!(show(Some(0.804), 0.03), "80 % of reads");
        assert_eq!(show(Some(0.2), 0.456), "46 % of arithmetic");
        assert_eq!(show(None, 0.5), "50 % of arithmetic");
    }

    #[test]
    fn limits_have_units() {
        let limits = Limits { read_bytes_per_s: 21.34e9, int8_ops_per_s: 0.987e12, f32_ops_per_s: 2.5e11 };
        let line = show_limits("cpu: avx2, 2 threads", &limits);
        assert_eq!(line, "cpu: avx2, 2 threads: reads 21.3 GB/s, int8 0.99 TOP/s, f32 0.25 TFLOP/s");
    }

    #[test]
    fn progress_is_one_line() {
        let running = |run, percent| said(&BenchProgress::Running { test: "pp512".into(), run, percent }, 5);
        assert_eq!(
            (running(0, 0), running(2, 40)),
            ("pp512: warming up".into(), "pp512: 2 of 5, 40 %".into())
        );
        let filling = BenchProgress::Filling { test: "tg64@d4096".into(), percent: 12 };
        assert_eq!(said(&filling, 5), "tg64@d4096: filling the cache, 12 %");
    }
}
