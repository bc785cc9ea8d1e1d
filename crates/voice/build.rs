//! Packs the English dictionaries of misaki-rs, which are JSON of 12 MB there, for `src/text/english/dictionary.rs`.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::{env, error::Error, fs};

use misaki_rs::data;
use misaki_rs::lexicon::PhonemeEntry;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for (name, entries) in [
        ("us_gold", data::load_us_gold()),
        ("us_silver", data::load_us_silver()),
        ("gb_gold", data::load_gb_gold()),
        ("gb_silver", data::load_gb_silver()),
    ] {
        // Sorted, so that neighbours begin alike and the same dictionary gives the same bytes.
        let entries: BTreeMap<String, PhonemeEntry> = entries.into_iter().collect();
        fs::write(out.join(name), miniz_oxide::deflate::compress_to_vec(&packed(&entries), 9))?;
    }
    Ok(())
}

/// One entry after another: in a byte, how many bytes a word has in common with the last one; the rest of it, a tab, what is
/// said, the end of the line. Where that depends on the part of speech, each is `\x01` and the part, and `\x02` and what is said
/// if anything is.
fn packed(entries: &BTreeMap<String, PhonemeEntry>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut last = "";
    for (word, entry) in entries {
        let alike = word.bytes().zip(last.bytes()).take(255).take_while(|(a, b)| a == b).count();
        bytes.push(alike as u8);
        bytes.extend(&plain(word).as_bytes()[alike..]);
        bytes.push(b'\t');
        match entry {
            PhonemeEntry::Simple(said) => bytes.extend(plain(said).bytes()),
            PhonemeEntry::Tagged(parts) => {
                for (part, said) in sorted(parts) {
                    bytes.push(1);
                    bytes.extend(plain(part).bytes());
                    if let Some(said) = said {
                        bytes.push(2);
                        bytes.extend(plain(said).bytes());
                    }
                }
            }
        }
        bytes.push(b'\n');
        last = word;
    }
    bytes
}

fn sorted(parts: &HashMap<String, Option<String>>) -> BTreeMap<&String, &Option<String>> {
    parts.iter().collect()
}

/// A text without the signs between texts.
fn plain(text: &str) -> &str {
    assert!(
        text.chars().all(|c| !c.is_control()),
        "{text:?} has a control character, which these files cannot say"
    );
    text
}
