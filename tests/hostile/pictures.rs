//! Pictures that are meant to end, stall or bloat an engine, over HTTP to a model that sees: mutations of every format and bombs of each. Every
//! one is answered or refused with 400, within a bound of memory, while another client chats. `pictures.py` beside this does it with a
//! thousand of each, at full size and with a release build.
#![cfg(target_os = "linux")]

use std::{
    env, fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use hanzo_engine_tests::fuzz::{Mutator, corpus};

use crate::{
    files::{MIB, data},
    memory::{CHAT, ROLE, forget_peak, memory, post, serve, served_apart},
};

const NAME: &str = "pictures::mutations_and_bombs_are_answered_or_refused";
/// Mutations of each format.
const MUTATIONS: usize = 10;
/// Beside what the server has when it is ready: pixels of the largest picture here are 12 MB.
const SPARE_BYTES: u64 = 128 * MIB;

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let four = |three: &[u8]| {
        let number = (0..3).fold(0, |sum, at| sum << 8 | usize::from(three.get(at).copied().unwrap_or(0)));
        let letter = |at: usize| {
            if at > three.len() { '=' } else { char::from(LETTERS[number >> (18 - 6 * at) & 63]) }
        };
        [0, 1, 2, 3].map(letter)
    };
    bytes.chunks(3).flat_map(four).collect()
}

/// What a picture is answered with, and in how many seconds.
fn shown(address: std::net::SocketAddr, picture: &[u8]) -> (String, f32) {
    let began = Instant::now();
    let url = format!("data:image/png;base64,{}", base64(picture));
    let body = format!(
        "{{\"model\":\"smolvlm\",\"max_tokens\":1,\"messages\":[{{\"role\":\"user\",\"content\":[{{\"type\":\"image_url\",\"image_url\":\
         {{\"url\":\"{url}\"}}}}]}}]}}"
    );
    let answer = post(address, CHAT, &body);
    (answer, began.elapsed().as_secs_f32())
}

fn png_chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    let sum = |crc: u32, &byte: &u8| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| match crc & 1 {
            1 => crc >> 1 ^ 0xedb8_8320,
            _ => crc >> 1,
        })
    };
    let crc = !kind.iter().chain(data).fold(!0, sum);
    [&length[..], kind, data, &crc.to_be_bytes()].concat()
}

/// A grey picture that says these sides.
fn png(width: u32, height: u32, chunks: &[Vec<u8>]) -> Vec<u8> {
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 0, 0, 0, 0]].concat();
    let start = b"\x89PNG\r\n\x1a\n".to_vec();
    [start, png_chunk(b"IHDR", &header), chunks.concat(), png_chunk(b"IEND", &[])].concat()
}

/// What inflates to so many zeros, at a thousandth of their size: stored as one code of 258 zeros again and again (RFC 1951, 3.2.6).
fn zeros(count: usize) -> Vec<u8> {
    let (mut out, mut held, mut width) = (vec![0x78, 0x9c], 0_u64, 0);
    let mut put = |out: &mut Vec<u8>, value: u64, bits: u32| {
        held |= value << width;
        width += bits;
        while width >= 8 {
            out.push(held as u8);
            held >>= 8;
            width -= 8;
        }
    };
    // The last block, with the fixed codes; a zero; then 258 of what was one byte before; codes are written from their highest bit.
    put(&mut out, 0b011, 3);
    put(&mut out, 0b0000_1100, 8);
    for _ in 0..(count - 1).div_ceil(258) {
        put(&mut out, 0b1010_0011, 8); // length 258: 11000101
        put(&mut out, 0, 5); // from one byte before
    }
    put(&mut out, 0, 7);
    put(&mut out, 0, 7);
    out
}

/// A lossless WebP of one colour: its pixels take no bits.
fn webp(width: u64, height: u64) -> Vec<u8> {
    let (mut bits, mut at) = (0_u128, 0);
    let one = [(1, 1), (0, 1), (1, 1), (7, 8)];
    let head = [(0x2f, 8), (width - 1, 14), (height - 1, 14), (0, 1), (0, 3), (0, 1), (0, 1), (0, 1)];
    let codes = [one, one, one, one].concat();
    for (value, count) in head.into_iter().chain(codes).chain([(1, 1), (0, 1), (0, 1), (0, 1)]) {
        bits |= u128::from(value) << at;
        at += count;
    }
    let data = &bits.to_le_bytes()[..(at as usize).div_ceil(16) * 2];
    let length = |bytes: usize| (bytes as u32).to_le_bytes();
    [&b"RIFF"[..], &length(data.len() + 12), b"WEBPVP8L", &length(data.len()), data].concat()
}

/// Bombs by what each is, and whether one may be answered.
fn bombs() -> Vec<(&'static str, Vec<u8>, bool)> {
    let file = |name: &str| fs::read(corpus("picture").join(name)).expect("a picture");
    let idat = |count| png_chunk(b"IDAT", &zeros(count));
    let mut gif = file("still.gif");
    gif[6..10].copy_from_slice(&[0xff; 4]);
    let mut jpeg = file("rgb.jpg");
    let frame = jpeg.windows(2).position(|two| two == [0xff, 0xc0]).expect("a frame");
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
    let progressive = file("progressive.jpg");
    let first = progressive.windows(2).position(|two| two == [0xff, 0xda]).expect("a scan");
    let scans = progressive[first..progressive.len() - 2].repeat(100);
    vec![
        ("a PNG of 2^62 pixels", png(i32::MAX as u32, i32::MAX as u32, &[idat(64)]), false),
        ("a PNG of a line", png(1, 50_000_000, &[idat(100_000_000)]), false),
        ("a PNG of 4 million pixels", png(2000, 2000, &[idat(2001 * 2000)]), true),
        ("a PNG with 80 MB behind its pixel", png(1, 1, &[idat(80_000_000)]), true),
        (
            "a PNG with a profile of 80 MB",
            {
                let profile = [&b"a\0\0"[..], &zeros(80_000_000)].concat();
                png(1, 1, &[png_chunk(b"iCCP", &profile), idat(2)])
            },
            true,
        ),
        ("a PNG with 50,000 texts", png(1, 1, &[png_chunk(b"tEXt", b"a\0b").repeat(50_000), idat(2)]), true),
        ("a WebP of 2^28 pixels", webp(16_384, 16_384), false),
        ("a WebP of 4 million pixels", webp(2000, 2000), true),
        ("a GIF of 2^32 pixels", gif, false),
        ("a JPEG of 2^32 pixels", jpeg, false),
        (
            "a JPEG that is passed over again and again",
            [&progressive[..first], &scans, &[0xff, 0xd9]].concat(),
            false,
        ),
        ("nothing", Vec::new(), false),
        ("zeros", vec![0; 1_000_000], false),
        ("a BMP", [b"BM".to_vec(), vec![0xff; 100]].concat(), false),
    ]
}

#[test]
fn mutations_and_bombs_are_answered_or_refused() {
    let model = data("vision/smolvlm");
    if env::var_os(ROLE).is_some() {
        return serve(Some(&model));
    }
    let (mut server, address) = served_apart(NAME);
    let picture = fs::read(corpus("picture").join("rgb.png")).expect("a picture");
    assert!(shown(address, &picture).0.starts_with("HTTP/1.1 200"), "{}", shown(address, &picture).0);
    let before = memory(&server, "VmRSS:") as u64;
    forget_peak(&server);
    let over = AtomicBool::new(false);
    let chat =
        "{\"model\":\"hanzo-demo\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":2}";
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut chats = 0;
            while !over.load(Relaxed) {
                let answer = post(address, CHAT, chat);
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                chats += 1;
                thread::sleep(Duration::from_millis(5));
            }
            chats
        });
        let mut faults = Vec::new();
        for kind in ["png", "jpg", "gif", "webp"] {
            let named = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == kind);
            let mut files: Vec<_> = fs::read_dir(corpus("picture"))
                .expect("a corpus")
                .flatten()
                .map(|entry| entry.path())
                .collect();
            files.retain(named);
            files.sort();
            let files: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).expect("a picture")).collect();
            let mut mutator = Mutator::new(&files, 21);
            for number in 0..MUTATIONS {
                let (answer, _) = shown(address, &mutator.input());
                if !matches!(answer.get(9..12), Some("200" | "400")) {
                    faults.push(format!("{kind} {number}: {answer}"));
                }
            }
        }
        for (what, bomb, may) in bombs() {
            let (answer, seconds) = shown(address, &bomb);
            let refused = answer.starts_with("HTTP/1.1 400") && answer.contains("messages[0].content[0]");
            if !(refused || may && answer.starts_with("HTTP/1.1 200")) || seconds > 10.0 {
                faults.push(format!("{what}: {seconds} s, {answer}"));
            }
        }
        over.store(true, Relaxed);
        let chats = other.join().expect("another client's chats");
        assert!(chats > 3, "{chats} chats of another client");
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    });
    let took = (memory(&server, "VmHWM:") as u64).saturating_sub(before);
    assert!(took < SPARE_BYTES, "{} MiB", took / MIB);
    drop(server.stdin.take());
    assert!(server.wait().expect("it ends").success());
}
