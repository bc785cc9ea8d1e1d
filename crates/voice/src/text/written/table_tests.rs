//! Tables of written forms and their words: `testdata/spoken.tsv`, which people checked, and `testdata/spoken_numbers.tsv`, which
//! `testdata/make_spoken.py` writes with num2words.

use std::collections::BTreeMap;

use super::super::english::Dialect;
use super::normalize;

const CHECKED: &str = include_str!("../../../testdata/spoken.tsv");
const GENERATED: &str = include_str!("../../../testdata/spoken_numbers.tsv");

struct Pair<'a> {
    class: &'a str,
    dialect: Dialect,
    written: &'a str,
    spoken: &'a str,
}

fn pairs(table: &str) -> Vec<Pair<'_>> {
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with("# "));
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [class, dialect, written, spoken] = fields[..] else { panic!("four fields: {line}") };
            let dialect = match dialect {
                "us" => Dialect::American,
                "gb" => Dialect::British,
                _ => panic!("us or gb: {line}"),
            };
            Pair { class, dialect, written, spoken }
        })
        .collect()
}

#[test]
fn written_forms_are_said_as_the_tables_have_them() {
    let all: Vec<Pair<'_>> = [CHECKED, GENERATED].into_iter().flat_map(pairs).collect();
    let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for Pair { class, dialect, written, spoken } in &all {
        *classes.entry(class).or_default() += 1;
        let said = normalize(written, *dialect);
        if said != *spoken {
            wrong.push(format!("{class}\t{written}\n  want {spoken}\n  said {said}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    assert!(pairs(CHECKED).len() >= 500 && classes.len() >= 20, "{} pairs, {classes:?}", all.len());
}
