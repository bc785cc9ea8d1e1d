//! Test of nvcc's output for kernels with programmatic dependent launch: on every path to the wait for earlier
//! kernels, a kernel only reads weights and the number of rows, and writes nothing.

use std::collections::{BTreeSet, HashMap};
use std::mem::offset_of;

use super::*;
use crate::driver::ptx;
use crate::params::{BatchParams, ProductParams, StackParams};

const BEGINS: &str = "griddepcontrol.launch_dependents;";
const WAITS: &str = "griddepcontrol.wait;";

/// Marker of an unknown offset among the parameters.
const SOMEWHERE: usize = usize::MAX;

fn behind(place: usize, bytes: isize) -> usize {
    if place == SOMEWHERE { place } else { place.checked_add_signed(bytes).unwrap_or(SOMEWHERE) }
}

/// Pointer parameters that may be read through before the wait.
fn allowed() -> BTreeSet<usize> {
    let (weights, batch) = (offset_of!(ProductParams, weights), offset_of!(ProductParams, batch));
    [
        weights + offset_of!(StackParams, parts),
        weights + offset_of!(StackParams, codebooks),
        batch + offset_of!(BatchParams, counts),
        batch + offset_of!(BatchParams, adapters),
        batch + offset_of!(BatchParams, logit_rows),
    ]
    .into()
}

/// Name and operands of an instruction, without its guard and brackets.
fn parts(line: &str) -> (&str, Vec<&str>) {
    let line =
        line.strip_prefix('@').map_or(line, |guarded| guarded.split_once(char::is_whitespace).unwrap().1);
    let (name, rest) = line.trim_end_matches(';').split_once(char::is_whitespace).unwrap_or((line, ""));
    (name, rest.split([',', ' ', '{', '}', '|']).map(str::trim).filter(|word| !word.is_empty()).collect())
}

fn is_register(word: &str) -> bool {
    word.starts_with('%')
        && word[1..].starts_with(|c: char| "rfp".contains(c))
        && word.ends_with(|c: char| c.is_ascii_digit())
}

/// Registers of an operand.
fn registers(word: &str) -> impl Iterator<Item = &str> {
    word.split(['[', ']', '+', '-']).filter(|word| is_register(word))
}

/// Instructions and labels of a kernel.
struct Body<'a> {
    lines: Vec<&'a str>,
    labels: HashMap<&'a str, usize>,
}

impl<'a> Body<'a> {
    fn of(entry: &'a str) -> Body<'a> {
        let mut body = Body { lines: Vec::new(), labels: HashMap::new() };
        for line in entry.lines().skip_while(|line| *line != "{").skip(1) {
            if let Some(label) = line.strip_suffix(':') {
                body.labels.insert(label, body.lines.len());
            } else if !line.starts_with(['.', '{', '}']) {
                body.lines.push(line);
            }
        }
        body
    }

    /// Instructions that can be reached without waiting.
    fn before_waiting(&self) -> BTreeSet<usize> {
        let (mut found, mut next) = (BTreeSet::new(), vec![0]);
        while let Some(at) = next.pop() {
            let Some(&line) = self.lines.get(at) else { continue };
            if line == WAITS || !found.insert(at) {
                continue;
            }
            let (name, operands) = parts(line);
            assert!(!name.starts_with("brx"), "a jump by a table is not followed here");
            let guarded = line.starts_with('@');
            let jumps = name.starts_with("bra");
            if jumps {
                next.push(self.labels[operands[0]]);
            }
            if guarded || !(jumps || name == "ret" || name == "exit") {
                next.push(at + 1);
            }
        }
        found
    }

    /// For each register, the pointer parameters that its value derives from on any path.
    fn pointers(&self) -> HashMap<&'a str, BTreeSet<usize>> {
        let mut pointers: HashMap<&str, BTreeSet<usize>> = HashMap::new();
        // Registers that hold an address among the parameters: the possible offsets.
        let mut places: HashMap<&str, BTreeSet<usize>> = HashMap::new();
        loop {
            let sizes = |of: &HashMap<&str, BTreeSet<usize>>| of.values().map(BTreeSet::len).sum::<usize>();
            let before = sizes(&pointers) + sizes(&places);
            for line in &self.lines {
                let (name, operands) = parts(line);
                if operands.is_empty() || name.starts_with("st") {
                    continue;
                }
                let memory = operands.iter().position(|word| word.starts_with('['));
                let (to, from) = operands.split_at(memory.unwrap_or(1));
                let all_of = |of: &HashMap<&str, BTreeSet<usize>>| -> BTreeSet<usize> {
                    let registers = from.iter().flat_map(|word| registers(word));
                    registers.filter_map(|register| of.get(register)).flatten().copied().collect()
                };
                let (mut of, mut place) = (BTreeSet::new(), BTreeSet::new());
                if name == "ld.param.u64" {
                    let inner = from[0].trim_matches(['[', ']']);
                    let (at, offset) = inner.split_once('+').unwrap_or((inner, "0"));
                    let offset: isize = offset.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
                    let begins = if at.ends_with("_param_0") { [0].into() } else { all_of(&places) };
                    assert!(!begins.is_empty(), "{line}: which parameter?");
                    of.extend(begins.iter().map(|&begin| behind(begin, offset)));
                } else if name.starts_with("mov") && from[0].ends_with("_param_0") {
                    place.insert(0);
                } else if !name.starts_with("ld.param") {
                    of = all_of(&pointers);
                    let begins = all_of(&places);
                    let known = name.starts_with("mov") || name.starts_with("selp");
                    place = match from.get(1).map(|word| word.parse::<isize>()) {
                        Some(Ok(more)) if name.starts_with("add") => {
                            begins.iter().map(|&begin| behind(begin, more)).collect()
                        }
                        _ if known || begins.is_empty() => begins,
                        _ => [SOMEWHERE].into(),
                    };
                }
                for register in to.iter().filter(|word| is_register(word)) {
                    pointers.entry(register).or_default().extend(&of);
                    places.entry(register).or_default().extend(&place);
                }
            }
            if sizes(&pointers) + sizes(&places) == before {
                return pointers;
            }
        }
    }
}

/// Forbidden actions of a kernel before its wait.
fn faults(entry: &str) -> Vec<String> {
    let (body, allowed) = (Body::of(entry), allowed());
    let pointers = body.pointers();
    let mut faults = Vec::new();
    for at in body.before_waiting() {
        let line = body.lines[at];
        let (name, operands) = parts(line);
        if name.starts_with("ld.global") {
            let address = operands.iter().find(|word| word.starts_with('[')).unwrap();
            let of: BTreeSet<usize> =
                registers(address).filter_map(|register| pointers.get(register)).flatten().copied().collect();
            if of.is_empty() || !of.is_subset(&allowed) {
                faults.push(format!("{line} reads through the parameters at {of:?}"));
            }
        } else if ["st.global", "st.", "atom", "red", "cp.", "ret", "exit", "ld.local", "ld.shared", "call"]
            .iter()
            .any(|other| name.starts_with(other))
        {
            faults.push(line.to_owned());
        }
    }
    faults
}

#[test]
fn machine_made_text_reads_nothing_early_but_weights() {
    let module = text_for(EARLY_MIN, &String::from_utf8(ptx()).unwrap());
    let (mut own, mut waits) = (Vec::new(), 0);
    for entry in module.split(".visible .entry ").skip(1) {
        let name = entry.split_once('(').unwrap().0;
        if entry.contains(&format!("{BEGINS}\n{WAITS}\n")) {
            waits += 1;
            continue;
        }
        own.push(name);
        assert_eq!(faults(entry), [""; 0], "{name}");
    }
    assert_eq!(own.len(), 7, "{own:?}");
    assert!(waits > 30, "{waits} kernels wait when they begin");

    // Without its waits, a kernel is found to read pieces that others have written.
    let few =
        module.split(".visible .entry ").find(|entry| entry.starts_with("kernel_product_few(")).unwrap();
    let found = faults(&few.replace(WAITS, ""));
    assert!(
        found.iter().any(|fault| fault.contains("reads through"))
            && found.iter().any(|fault| fault.starts_with("st.")),
        "{found:?}"
    );
}

#[test]
fn older_cards_are_given_none_of_it() {
    let module = ".version 8.0\n.target sm_80\n{\ngriddepcontrol.wait;\nld.global.nc.u32 %r1, [%rd1];\n}\n";
    assert_eq!(
        text_for(ComputeCapability { major: 8, minor: 9 }, module),
        ".version 8.0\n.target sm_80\n{\nld.global.nc.u32 %r1, [%rd1];\n}\n"
    );
    let newer = ".version 8.0\n.target sm_90\n{\ngriddepcontrol.wait;\nld.global.u32 %r1, [%rd1];\n}\n";
    assert_eq!(text_for(ComputeCapability { major: 9, minor: 0 }, module), newer);
    assert_eq!(text_for(ComputeCapability { major: 12, minor: 0 }, module), newer);
}
