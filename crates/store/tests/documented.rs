//! References in documents, the chart, compose files and checks: each is one that the program takes.

// A test that cannot go on has failed.
#![allow(clippy::unwrap_used)]

use hanzo_engine_store::Reference;
use std::fs;
use std::path::{Path, PathBuf};

/// Files that tell users what to write.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![root.join("README.md")];
    let mut folders: Vec<PathBuf> =
        ["docs", "helm", "deploy", "systemd", ".ci", ".github"].map(|name| root.join(name)).into();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let ends = |end: &str| path.extension().is_some_and(|other| other == end);
            if path.is_dir() {
                folders.push(path);
            } else if ["md", "yaml", "yml", "tpl", "txt", "toml", "py", "service"].iter().any(|end| ends(end))
            {
                found.push(path);
            }
        }
    }
    found
}

/// Words of a line that name a model's source, by their beginning or by the command before them.
fn references(line: &str) -> Vec<&str> {
    const BEGIN: [&str; 6] = ["hf:", "hf.co/", "huggingface.co/", "ollama://", "mlx://", "huggingface://"];
    let ends = |c: char| c.is_whitespace() || "`'\"(){}[]<>,;=|…".contains(c);
    let words: Vec<&str> = line.split(ends).filter(|word| !word.is_empty()).collect();
    let of_command = |at: usize| {
        at >= 2 && ["pull", "run"].contains(&words[at - 1]) && words[at - 2].ends_with("hanzo-engine")
    };
    let is = |(at, word): &(usize, &&str)| {
        BEGIN.iter().any(|begin| word.to_ascii_lowercase().starts_with(begin))
            || of_command(*at) && word.contains('/') && !word.starts_with(['.', '/', '~', '-'])
    };
    let found = words.iter().enumerate().filter(is).map(|(_, word)| word.trim_end_matches(['.', ':', '?']));
    // A scheme alone is what a sentence is about.
    found.filter(|word| !BEGIN.contains(&word.trim_end_matches("//")) && !word.ends_with("://")).collect()
}

#[test]
fn words_that_name_a_source_are_found() {
    let line =
        "`hanzo-engine pull hf:a/b:Q8_0` and {hf://c/d}, hf.co/e/f. See hf:// and `hanzo-engine run g/h`";
    assert_eq!(references(line), ["hf:a/b:Q8_0", "hf://c/d", "hf.co/e/f", "g/h"]);
}

#[test]
fn every_reference_that_a_document_names_is_one() {
    let mut count = 0;
    for path in documents() {
        for line in fs::read_to_string(&path).unwrap_or_default().lines() {
            for word in references(line) {
                let read = Reference::parse(word);
                let is_source = matches!(&read, Ok(reference) if !matches!(reference, Reference::Name(_)));
                assert!(is_source, "{}: {word:?}: {read:?}", path.display());
                count += 1;
            }
        }
    }
    assert!(count > 5, "{count} references are found");
}
