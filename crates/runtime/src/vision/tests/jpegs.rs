//! JPEG files of real encoders through the preprocessing of every family with vision. Results equal those of
//! Pillow's decoding (as PNG files) bit for bit, and those of transformers' processors on these pixels
//! (make_jpegs.py in tests/data/vision).

use std::collections::BTreeMap;

use hanzo_engine_media::{Frame, Limits, PictureError, decode};
use sha2::{Digest, Sha256};

use super::*;

/// JPEG file with the results of Pillow and transformers.
struct JpegCase {
    kind: String,
    jpeg: &'static [u8],
    /// Pixels as decoded and rotated by Pillow; `None` if the file must be refused.
    png: Option<&'static [u8]>,
    /// First bytes of the digest of the library's frames, by model.
    digests: BTreeMap<String, String>,
}

fn cases() -> Vec<JpegCase> {
    let entries: Vec<Value> =
        serde_json::from_str(include_str!("../../../../../tests/data/vision/jpegs.json")).unwrap();
    let mut rest: &'static [u8] = include_bytes!("../../../../../tests/data/vision/jpegs.bin");
    let mut take = |length: &Value| {
        let (file, behind) = rest.split_at(length.as_u64().unwrap() as usize);
        rest = behind;
        file
    };
    let mut found = Vec::new();
    for entry in entries {
        let jpeg = take(&entry["jpeg"]);
        let png = entry.get("png").map(&mut take);
        let digests = entry.get("frames").map(|of| serde_json::from_value(of.clone()).unwrap());
        let kind = entry["kind"].as_str().unwrap().to_owned();
        found.push(JpegCase { kind, jpeg, png, digests: digests.unwrap_or_default() });
    }
    assert!(rest.is_empty());
    found
}

/// A model's frames of a file; an error if it refuses pictures of this shape.
fn frames(text: &TextModel, file: &[u8]) -> Result<Vec<Frame>, PictureError> {
    let picture = decode(file, &Limits::default())?;
    let sight = text.sight.as_ref().expect("it sees");
    Ok(sight.prepare(picture, PictureOptions::default())?.frames)
}

fn most_apart(ours: &[Frame], known: &[Frame]) -> u8 {
    assert_eq!(ours.len(), known.len());
    let apart = ours.iter().zip(known).flat_map(|(ours, known)| {
        assert_eq!((ours.width, ours.height), (known.width, known.height));
        ours.rgb.iter().zip(&known.rgb).map(|(a, b)| a.abs_diff(*b))
    });
    apart.max().unwrap()
}

fn digest(frames: &[Frame]) -> String {
    let mut sum = Sha256::new();
    frames.iter().for_each(|frame| sum.update(&frame.rgb));
    sum.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_family_sees_every_jpeg_as_pillow_decodes_it() {
    let all = cases();
    let mut models: Vec<String> =
        CASES.iter().chain(&["clip", "siglip", "siglip2"]).map(ToString::to_string).collect();
    models.sort();
    let known: Vec<&String> = all[0].digests.keys().collect();
    assert_eq!(models.iter().collect::<Vec<_>>(), known, "every model of the folder");
    let mut table = format!("| kind of JPEG | {} |\n", models.join(" | "));
    let mut wrong = Vec::new();
    let texts: Vec<_> = models.iter().map(|model| open(model).1).collect();
    for JpegCase { kind, jpeg, png, digests } in &all {
        let Some(png) = png else {
            let refused = texts.iter().all(|text| frames(text, jpeg).is_err());
            table += &format!("| {kind} |{}\n", " refused |".repeat(models.len()));
            wrong.extend((!refused).then(|| format!("{kind} is taken")));
            continue;
        };
        table += &format!("| {kind} |");
        for (model, text) in models.iter().zip(&texts) {
            let (ours, same) = (frames(text, jpeg), frames(text, png));
            let (Ok(ours), Ok(same)) = (&ours, &same) else {
                table += " no such shape |";
                if ours != same || digests.contains_key(model) {
                    wrong.push(format!("{model}, {kind}: {:?}, {:?}", ours.err(), same.err()));
                }
                continue;
            };
            let apart = most_apart(ours, same);
            table += &format!(" {apart} |");
            if apart != 0 || digests.get(model) != Some(&digest(ours)) {
                wrong.push(format!("{model}, {kind}: {apart} from the PNG, {:?}", digests.get(model)));
            }
        }
        table.push('\n');
    }
    println!("{table}");
    assert!(wrong.is_empty(), "{table}\n{}", wrong.join("\n"));
}

#[test]
fn refused_jpegs_say_why() {
    let (_, text) = open("qwen2_vl");
    for (kind, says) in [
        ("12 bits", "12 bits"),
        ("cut to two thirds", "cut short"),
        ("progressive, cut to two thirds", "cut short"),
    ] {
        let case = cases().into_iter().find(|case| case.kind == kind).unwrap();
        let reason = frames(&text, case.jpeg).unwrap_err().to_string();
        assert!(reason.contains(says), "{kind}: {reason}");
    }
}
