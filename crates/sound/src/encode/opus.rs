//! Opus (RFC 6716, by the crate `opus-rs`) in Ogg (RFC 3533, RFC 7845), mono. A page ends wherever the samples
//! given so far end, so that they can be played at once.

use opus_rs::{Application, OpusEncoder};

use super::{CannotEncode, to_i16};
use crate::Resampler;

/// Bit rate at which mono speech sounds like the original.
const BIT_PER_S: i32 = 48_000;
/// Units of time in a second, for any sample rate.
const GRANULES_PER_S: u32 = 48_000;
/// Supported sample rates, and the one used instead of all others.
const RATES: [u32; 5] = [8_000, 12_000, 16_000, 24_000, 48_000];
const OTHER_RATE: u32 = 24_000;
/// Packets in a second.
const PACKETS_PER_S: usize = 50;
/// Maximum packets of a page: a second.
const PAGE_PACKETS: usize = PACKETS_PER_S;
/// Maximum number of length entries in a page, each of at most 255 bytes.
const PAGE_LENGTHS_MAX: usize = 255;
/// Maximum bytes of a packet.
const PACKET_BYTES_MAX: usize = 1_275;
/// Serial number of the file's only stream.
const SERIAL: u32 = 1;

const BEGINS: u8 = 2;
const ENDS: u8 = 4;

pub(super) struct Opus {
    encoder: OpusEncoder,
    resampler: Resampler,
    rate: u32,  // rate of the encoder
    given: u32, // rate of the input
    waiting: Vec<i16>,
    taken: u64, // input samples so far
    page: Page,
    made: u64, // packets so far
}

impl Opus {
    pub(super) fn new(given: u32) -> Result<Opus, CannotEncode> {
        let rate = if RATES.contains(&given) { given } else { OTHER_RATE };
        let cannot = |error: &str| CannotEncode(format!("no opus of {rate} Hz: {error}"));
        let mut encoder = OpusEncoder::new(rate as i32, 1, Application::Audio).map_err(cannot)?;
        encoder.bitrate_bps = BIT_PER_S;
        let resampler = Resampler::new(given, rate);
        let page = Page::default();
        Ok(Opus { encoder, resampler, rate, given, waiting: Vec::new(), taken: 0, page, made: 0 })
    }

    /// Pre-skip in granules: decoded samples before the first given one. The encoder looks ahead by 2.5 ms, and
    /// by 4 ms more.
    fn before() -> u64 {
        u64::from(GRANULES_PER_S / 400 + GRANULES_PER_S / 250)
    }

    pub(super) fn push(&mut self, samples: &[f32]) -> Vec<u8> {
        let mut bytes = self.head();
        self.taken += samples.len() as u64;
        let mut resampled = Vec::new();
        self.resampler.push(samples, &mut resampled);
        self.take(&resampled, &mut bytes);
        if self.page.packets > 0 {
            self.page.end(0, self.granule(), &mut bytes);
        }
        bytes
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let mut bytes = self.head();
        let mut resampled = Vec::new();
        self.resampler.finish(&mut resampled);
        self.take(&resampled, &mut bytes);
        // The encoder returns the look-ahead after all samples.
        let end = Self::before() + self.taken * u64::from(GRANULES_PER_S) / u64::from(self.given);
        while self.granule() < end {
            let missing = self.packet() - self.waiting.len();
            self.take(&vec![0.0; missing], &mut bytes);
        }
        // The end is marked at the last packet. Its granule position cuts off the padding.
        self.page.end(ENDS, end, &mut bytes);
        bytes
    }

    /// Two header pages before the sound.
    fn head(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.page.number > 0 {
            return bytes;
        }
        let mut head = b"OpusHead\x01\x01".to_vec();
        head.extend((Self::before() as u16).to_le_bytes());
        head.extend(self.given.to_le_bytes());
        head.extend([0, 0, 0]); // gain 0; channel mapping family 0
        self.page.add(&head);
        self.page.end(BEGINS, 0, &mut bytes);
        let maker = b"hanzo-engine";
        let mut tags = b"OpusTags".to_vec();
        tags.extend((maker.len() as u32).to_le_bytes());
        tags.extend(maker);
        tags.extend(0_u32.to_le_bytes()); // number of comments
        self.page.add(&tags);
        self.page.end(0, 0, &mut bytes);
        bytes
    }

    /// Samples of a packet.
    fn packet(&self) -> usize {
        self.rate as usize / PACKETS_PER_S
    }

    /// Granule position at the end of the last packet.
    fn granule(&self) -> u64 {
        self.made * u64::from(GRANULES_PER_S) / PACKETS_PER_S as u64
    }

    fn take(&mut self, samples: &[f32], bytes: &mut Vec<u8>) {
        self.waiting.extend(samples.iter().map(|&sample| to_i16(sample)));
        let packet = self.packet();
        let whole = self.waiting.len() / packet * packet;
        let rest = self.waiting.split_off(whole);
        let mut room = [0; PACKET_BYTES_MAX];
        for samples in std::mem::replace(&mut self.waiting, rest).chunks(packet) {
            // The sizes are those that the encoder requires. The decoder conceals a failed packet.
            let length = self.encoder.encode_i16(samples, packet, &mut room).unwrap_or(0);
            if self.page.packets == PAGE_PACKETS || !self.page.has_room(length) {
                self.page.end(0, self.granule(), bytes);
            }
            self.page.add(&room[..length]);
            self.made += 1;
        }
    }
}

/// Ogg page that is being filled.
#[derive(Default)]
struct Page {
    number: u32,
    packets: usize,
    lengths: Vec<u8>,
    body: Vec<u8>,
}

impl Page {
    fn has_room(&self, packet: usize) -> bool {
        self.lengths.len() + packet / 255 < PAGE_LENGTHS_MAX
    }

    fn add(&mut self, packet: &[u8]) {
        self.lengths.extend(std::iter::repeat_n(255, packet.len() / 255));
        self.lengths.push((packet.len() % 255) as u8);
        self.body.extend(packet);
        self.packets += 1;
    }

    fn end(&mut self, flags: u8, granule: u64, bytes: &mut Vec<u8>) {
        let mut page = b"OggS\0".to_vec();
        page.push(flags);
        page.extend(granule.to_le_bytes());
        page.extend(SERIAL.to_le_bytes());
        page.extend(self.number.to_le_bytes());
        page.extend([0; 4]); // the checksum
        page.push(self.lengths.len() as u8);
        page.append(&mut self.lengths);
        page.append(&mut self.body);
        let checksum = crc32(&page);
        page[22..26].copy_from_slice(&checksum.to_le_bytes());
        bytes.extend(page);
        self.number += 1;
        self.packets = 0;
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    let shift = |crc: u32| if crc >> 31 == 0 { crc << 1 } else { crc << 1 ^ 0x04c1_1db7 };
    bytes.iter().fold(0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| shift(crc)))
}
