//! Files of real encoders, compared with Pillow's pixels (`testdata/make_jpegs.py`), and files that are
//! refused.

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{Limits, PictureError, decode};

const FILES: &[u8] = include_bytes!("../../testdata/jpegs.bin");

/// Files by name, with their entries.
fn files() -> Vec<(String, &'static [u8], Value)> {
    let entries: Vec<Value> = serde_json::from_str(include_str!("../../testdata/jpegs.json")).unwrap();
    let mut rest = FILES;
    let files = entries.into_iter().map(|entry| {
        let (file, behind) = rest.split_at(entry["bytes"].as_u64().unwrap() as usize);
        rest = behind;
        (entry["name"].as_str().unwrap().to_owned(), file, entry)
    });
    let files = files.collect();
    assert!(rest.is_empty());
    files
}

fn file(name: &str) -> Vec<u8> {
    let found = files().into_iter().find(|(own, ..)| own == name);
    found.unwrap_or_else(|| panic!("{name}")).1.to_vec()
}

fn reason(file: &[u8]) -> String {
    decode(file, &Limits::default()).map(|picture| picture.width).unwrap_err().to_string()
}

#[test]
fn pixels_are_pillows_to_the_bit() {
    let files = files();
    assert!(files.len() > 90);
    for (name, file, entry) in files {
        let picture = decode(file, &Limits::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let size = [picture.width, picture.height].map(u64::from);
        assert_eq!(size.map(Some), ["width", "height"].map(|side| entry[side].as_u64()), "{name}");
        let digest: String = Sha256::digest(&picture.rgb).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, entry["sha256"].as_str().unwrap(), "{name}");
    }
}

#[test]
fn files_that_are_cut_short_are_refused() {
    for name in ["pillow 17x33 4:2:0", "pillow 17x33 progressive", "pillow restarts", "pillow 33x17 CMYK"] {
        let file = file(name);
        for length in (3..file.len()).rev().step_by(7).chain([file.len() * 2 / 3, file.len() - 1]) {
            let reason = reason(&file[..length]);
            assert!(reason.contains("cut short"), "{name}, {length} of {} bytes: {reason}", file.len());
        }
    }
}

/// Offset after a marker.
fn behind(file: &[u8], marker: u8) -> usize {
    file.windows(2).position(|two| two == [0xff, marker]).unwrap() + 2
}

#[test]
fn kinds_that_are_not_read_are_named() {
    let plain = file("pillow plain");
    let frame = behind(&plain, 0xc0);
    for (at, value, says) in [
        (frame - 1, 0xc3, "lossless"),
        (frame - 1, 0xc5, "hierarchical"),
        (frame + 2, 12, "12 bits"),
        (frame + 2, 16, "bits a sample"),
        (frame + 4, 0, "DNL"),
        (frame + 9, 0x53, "sampling factor"),
        (frame + 12, 0x32, "fraction"),
        (frame + 8, 9, "names a component"),
        (frame + 10, 7, "quantization table is missing"),
        (behind(&plain, 0xda) + 4, 0x33, "Huffman table is missing"),
    ] {
        let mut file = plain.clone();
        file[at] = value;
        assert!(reason(&file).contains(says), "{says}: {}", reason(&file));
    }
    let scans = [&plain[..plain.len() - 2], &plain[behind(&plain, 0xda) - 2..]].concat();
    assert!(reason(&scans).contains("more scans"), "{}", reason(&scans));
}

#[test]
fn a_file_passes_over_its_picture_a_few_times() {
    let file = file("pillow 17x33 progressive");
    let first = behind(&file, 0xda) - 2;
    let (head, scans) = (&file[..first], &file[first..file.len() - 2]);
    let own = scans.windows(2).filter(|two| *two == [0xff, 0xda]).count();
    let many = |times: usize| [head, &scans.repeat(times), &[0xff, 0xd9]].concat();
    assert!(decode(&many(64 / own), &Limits::default()).is_ok());
    let error = decode(&many(64 / own + 1), &Limits::default()).unwrap_err();
    assert_eq!(error, PictureError::TooManyScans { scans: 65, max: 64 });
}

/// Damage of every kind: the decoder only ever fails with an error, and takes no more memory than the header
/// implies.
#[test]
fn damaged_files_are_pictures_or_errors() {
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (files, mut pictures) = (files(), 0);
    let limits = Limits { pixels_max: 1 << 16, ..Limits::default() };
    for round in 0..6000 {
        let mut file = files[round % files.len()].1.to_vec();
        for _ in 0..1 + random(3) {
            let at = 2 + random(file.len() - 2);
            match random(4) {
                0 => file[at] ^= 1 << random(8),
                1 => file[at] = [0, 0xff, 0xd0, 0xd9][random(4)],
                2 => drop(file.drain(at..(at + 1 + random(5)).min(file.len()))),
                _ => file.insert(at, random(256) as u8),
            }
        }
        // Not the crate's `decode`, which turns panics into errors.
        let check = |width: u32, height: u32| match u64::from(width) * u64::from(height) <= limits.pixels_max
        {
            true => Ok(()),
            false => Err(PictureError::Empty),
        };
        if let Ok(picture) = super::decode(&file, 64, &|| false, check) {
            assert_eq!(picture.bytes.len(), picture.width * picture.height * picture.channels);
            pictures += 1;
        }
    }
    assert!(pictures > 1000, "{pictures}");
}
