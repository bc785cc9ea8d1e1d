//! Opens one model as a load does, all but its engine, and says what came of it and how much memory it took: a process of
//! its own, so that the memory is that of one model. Usage: `open_model PATH`; prints two lines, the most memory that
//! was ever resident in KiB, and `ok` or the error.

use std::path::Path;

use hanzo_engine_runtime::Opened;

fn main() {
    let path = std::env::args().nth(1).expect("usage: open_model PATH");
    let came = Opened::open(Path::new(&path)).and_then(|opened| {
        let text = opened.text_model()?;
        opened.embedder(&text.tokenizer, 4096).map(drop)
    });
    let status =
        std::fs::read_to_string("/proc/self/status").expect("a system that says what a process takes");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its most memory");
    println!("{}", peak.trim_end_matches("kB").trim());
    match came {
        Ok(()) => println!("ok"),
        Err(error) => println!("{error}"),
    }
}
