//! What a person sees of a pull: the program on a pseudo-terminal, whose screen is kept as a terminal keeps it.

use super::content::Content;
use super::place::{Ended, Place, text};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The lines of a terminal, and its cursor.
struct Screen {
    columns: usize,
    lines: Vec<String>,
    row: usize,
    column: usize,
    cursor_hidden: bool,
    /// Every line there ever was, but those that were not whole yet.
    seen: BTreeSet<String>,
    /// Bytes of a character or a sequence that is not whole yet.
    pending: Vec<u8>,
}

impl Screen {
    fn new(columns: usize) -> Self {
        let (lines, pending) = (vec![String::new()], Vec::new());
        Self { columns, lines, row: 0, column: 0, cursor_hidden: false, seen: BTreeSet::new(), pending }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.pending);
        let whole = match std::str::from_utf8(&pending) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&pending[..error.valid_up_to()]).unwrap(),
        };
        let mut rest = whole;
        while let Some(c) = rest.chars().next() {
            if c == '\u{1b}' {
                // `ESC [`, parameters, and a letter that says what to do.
                let Some(end) = rest[1..].find(|c: char| c.is_ascii_alphabetic()) else { break };
                let (sequence, after) = rest.split_at(end + 2);
                self.obey(sequence);
                rest = after;
                continue;
            }
            rest = &rest[c.len_utf8()..];
            match c {
                '\r' => self.column = 0,
                '\n' => self.down(1),
                c => self.put(c),
            }
        }
        self.pending = [rest.as_bytes(), &pending[whole.len()..]].concat();
    }

    fn put(&mut self, c: char) {
        // What does not fit into a line goes on in the next.
        if self.column == self.columns {
            self.column = 0;
            self.down(1);
        }
        let line = &mut self.lines[self.row];
        // Every character of the bars is one column wide; overwriting replaces.
        let mut chars: Vec<char> = line.chars().collect();
        chars.resize(chars.len().max(self.column), ' ');
        match chars.get_mut(self.column) {
            Some(slot) => *slot = c,
            None => chars.push(c),
        }
        *line = chars.into_iter().collect();
        self.column += 1;
        if self.column == self.columns {
            self.seen.insert(line.trim_end().to_owned());
        }
    }

    fn down(&mut self, rows: usize) {
        self.row += rows;
        self.lines.resize(self.lines.len().max(self.row + 1), String::new());
    }

    fn obey(&mut self, sequence: &str) {
        let (parameters, what) = sequence[2..].split_at(sequence.len() - 3);
        let count = parameters.parse().unwrap_or(1);
        match (what, parameters) {
            ("A", _) => self.row = self.row.saturating_sub(count),
            ("B", _) => self.down(count),
            ("C", _) => self.column = (self.column + count).min(self.columns - 1),
            ("D", _) => self.column = self.column.saturating_sub(count),
            ("K", "2") => self.lines[self.row].clear(),
            ("K", "" | "0") => {
                self.lines[self.row] = self.lines[self.row].chars().take(self.column).collect();
            }
            ("J", "" | "0") => self.lines.truncate(self.row + 1),
            ("m", _) => {}
            ("l", "?25") => self.cursor_hidden = true,
            ("h", "?25") => self.cursor_hidden = false,
            _ => panic!("no terminal of these tests knows {sequence:?}"),
        }
    }

    fn shown(&self) -> Vec<&str> {
        self.lines.iter().map(|line| line.trim_end()).filter(|line| !line.is_empty()).collect()
    }
}

/// The program on a terminal with so many columns, and what is seen there.
fn on_terminal(
    command: &mut Command,
    columns: u16,
) -> (Ended, Arc<Mutex<Screen>>, std::thread::JoinHandle<()>) {
    let owner = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&owner).unwrap();
    unlockpt(&owner).unwrap();
    let name = ptsname(&owner, Vec::new()).unwrap();
    let user = rustix::fs::open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    tcsetwinsize(&user, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let user = File::from(user);
    command.env("TERM", "xterm").env_remove("NO_COLOR").env_remove("CLICOLOR");
    command.stdout(user.try_clone().unwrap()).stderr(user);
    let child = Ended(command.spawn().unwrap());
    // The command keeps the terminal open for as long as it can be run again.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let screen = Arc::new(Mutex::new(Screen::new(columns.into())));
    let (mut owner, seen) = (File::from(owner), screen.clone());
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; 4_096];
        // Once nobody has the terminal open, Linux says so with an error.
        while let Ok(read) = owner.read(&mut bytes) {
            if read == 0 {
                break;
            }
            seen.lock().unwrap().take(&bytes[..read]);
        }
    });
    (child, screen, reader)
}

fn until(what: &str, screen: &Mutex<Screen>, condition: impl Fn(&Screen) -> bool) {
    let began = Instant::now();
    while !condition(&screen.lock().unwrap()) {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "never: {what}: {:?}",
            screen.lock().unwrap().shown()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bars_fit_the_terminal_and_leave_nothing_behind() {
    let place = Place::new().await;
    let shards = [1, 2].map(|n| format!("model-0000{n}-of-00002-{}.safetensors", "x".repeat(120)));
    let files = [
        (shards[0].as_str(), Content::made(1, 24 << 20)),
        (shards[1].as_str(), Content::made(2, 24 << 20)),
        ("config.json", Content::given("{\"model_type\":\"qwen3\"}")),
    ];
    place.hub.put(&format!("Owner/{}", "n".repeat(40)), &files);
    let reference = format!("owner/{}", "n".repeat(40));
    for columns in [80, 132] {
        let store = columns.to_string();
        // Interrupted in the middle, then to the end.
        place.hub.cdn.fault(|faults| faults.rate = Some(1 << 20));
        let (mut child, screen, reader) =
            on_terminal(&mut place.program(&store, &["pull", &reference]), columns);
        let bars = |screen: &Screen| {
            let shown = screen.shown();
            // A bar for each file, and one for all.
            shown.len() == 3 && shown.iter().all(|line| line.contains('%')) && shown[2].starts_with("total, ")
        };
        until("bars", &screen, bars);
        let child_id = child.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &child_id]).status().unwrap().success());
        assert_eq!(child.0.wait().unwrap().code(), Some(130));
        reader.join().unwrap();
        {
            let screen = screen.lock().unwrap();
            let clean = (screen.shown(), screen.column, screen.cursor_hidden);
            assert_eq!(clean, (vec!["error: interrupted"], 0, false));
            // Each line stood in a line of its own: none went on in the next. The first says what is asked.
            assert!(screen.seen.len() > 3, "{:?}", screen.seen);
            for line in &screen.seen {
                let whole = ["asking the source", "total, ", "model-0000", "config.json"]
                    .iter()
                    .any(|begin| line.starts_with(begin));
                assert!(whole && line.chars().count() <= 80, "{line:?}");
            }
        }

        place.hub.cdn.fault(|faults| faults.rate = None);
        let (mut child, screen, reader) =
            on_terminal(&mut place.program(&store, &["pull", &reference]), columns);
        assert!(child.0.wait().unwrap().success());
        reader.join().unwrap();
        let screen = screen.lock().unwrap();
        let said = screen.shown();
        assert!(said.len() == 1 && said[0].starts_with("pulled Owner/nnn"), "{said:?}");
        assert_eq!((screen.column, screen.cursor_hidden), (0, false));
    }
    // Interrupted twice, it ends once, and no sooner than the first time it says so.
    place.hub.cdn.fault(|faults| faults.rate = Some(1 << 20));
    let (mut child, screen, reader) = on_terminal(&mut place.program("twice", &["pull", &reference]), 80);
    until("a bar", &screen, |screen| screen.shown().iter().any(|line| line.contains("MB/s")));
    let child_id = child.0.id().to_string();
    let both = format!("kill -INT {child_id}; kill -INT {child_id}");
    let output = Command::new("sh").args(["-c", &both]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(child.0.wait().unwrap().code(), Some(130));
    reader.join().unwrap();
    assert_eq!(screen.lock().unwrap().shown(), ["error: interrupted"]);
}
