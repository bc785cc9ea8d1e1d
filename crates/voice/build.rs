//! Packs the English dictionaries of misaki-rs, which are JSON of 12 MB there, for `src/text/english/dictionary.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::{env, error::Error, fs};

use misaki_rs::data;
use misaki_rs::lexicon::PhonemeEntry;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for (name, american, british) in [
        ("gold", data::load_us_gold(), data::load_gb_gold()),
        ("silver", data::load_us_silver(), data::load_gb_silver()),
    ] {
        let pair = packed(&values(&american), &values(&british));
        fs::write(out.join(name), miniz_oxide::deflate::compress_to_vec(&pair, 9))?;
    }
    Ok(())
}

/// Words in order with their phonemes. Neighbours begin alike, and the same dictionary gives the same bytes.
///
/// Phonemes that depend on the part of speech are a list. An entry is `\x01`, the part, and if the word has phonemes for
/// it, `\x02` and these.
fn values(entries: &HashMap<String, PhonemeEntry>) -> BTreeMap<&str, Vec<u8>> {
    let value = |entry: &PhonemeEntry| match entry {
        PhonemeEntry::Simple(said) => plain(said).as_bytes().to_vec(),
        PhonemeEntry::Tagged(parts) => {
            let mut value = Vec::new();
            for (part, said) in parts.iter().collect::<BTreeMap<_, _>>() {
                value.push(1);
                value.extend(plain(part).bytes());
                if let Some(said) = said {
                    value.push(2);
                    value.extend(plain(said).bytes());
                }
            }
            value
        }
    };
    entries.iter().map(|(word, entry)| (plain(word), value(entry))).collect()
}

/// Two dialects in one file, because they have most words in common and say many alike. One word after another: in a
/// byte, how many bytes it has in common with the last one; the rest of it, a tab, its American value if it has one, the
/// end of the line. After the American value, `\x03` says that the British one is the same. `\x04` begins another: how many
/// bytes of the American value it begins with, how many it ends with, both more by 32, and the bytes between.
fn packed(american: &BTreeMap<&str, Vec<u8>>, british: &BTreeMap<&str, Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut last = "";
    for word in american.keys().chain(british.keys()).collect::<BTreeSet<_>>() {
        let begins = alike(word.bytes(), last.bytes()).min(255);
        bytes.push(begins as u8);
        bytes.extend(&word.as_bytes()[begins..]);
        bytes.push(b'\t');
        let (first, second) = (american.get(word), british.get(word));
        assert!(first.is_none_or(|value| !value.is_empty()), "{word:?} is not said");
        bytes.extend(first.into_iter().flatten());
        match second {
            None => {}
            Some(_) if first == second => bytes.push(3),
            Some(value) => {
                let first = first.map_or(&[][..], |first| first);
                let begins = alike(first.iter(), value.iter()).min(200);
                let rest = (&first[begins..], &value[begins..]);
                let ends = alike(rest.0.iter().rev(), rest.1.iter().rev()).min(200);
                bytes.extend([4, 32 + begins as u8, 32 + ends as u8]);
                bytes.extend(&value[begins..value.len() - ends]);
            }
        }
        bytes.push(b'\n');
        last = word;
    }
    bytes
}

/// How many items two begin with alike.
fn alike<T: PartialEq>(first: impl Iterator<Item = T>, second: impl Iterator<Item = T>) -> usize {
    first.zip(second).take_while(|(first, second)| first == second).count()
}

/// A text without the signs between texts.
fn plain(text: &str) -> &str {
    assert!(
        text.chars().all(|c| !c.is_control()),
        "{text:?} has a control character, which these files cannot say"
    );
    text
}
