//! Streaming FLAC encoder (RFC 9639) for mono and 16 bits, with frames of one size. It chooses the fixed
//! predictor with the smallest residual, and a Rice parameter for each partition of a frame. The number of
//! samples and their digest are unknown when the header is written, and are left unset there, as the format
//! allows.

/// Samples of a frame. The last one may be shorter.
const FRAME: usize = 4096;
/// Maximum partition order: at most two to the power of this partitions, each with its own Rice parameter.
const PARTS_MAX: u32 = 6;
/// Maximum Rice parameter in 4 bits.
const RICE_MAX: u32 = 14;
/// Number of fixed predictors, by order.
const ORDERS: usize = 5;

pub(super) struct Flac {
    rate: u32,
    frames: u64,
    waiting: Vec<i16>,
    begun: bool,
}

impl Flac {
    pub(super) fn new(rate: u32) -> Flac {
        Flac { rate, frames: 0, waiting: Vec::new(), begun: false }
    }

    pub(super) fn push(&mut self, samples: impl Iterator<Item = i16>) -> Vec<u8> {
        let mut bytes = self.head();
        self.waiting.extend(samples);
        let whole = self.waiting.len() / FRAME * FRAME;
        let rest = self.waiting.split_off(whole);
        for frame in std::mem::replace(&mut self.waiting, rest).chunks(FRAME) {
            self.frame(frame, &mut bytes);
        }
        bytes
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let mut bytes = self.head();
        let last = std::mem::take(&mut self.waiting);
        if !last.is_empty() {
            self.frame(&last, &mut bytes);
        }
        bytes
    }

    /// Header before the first frame.
    fn head(&mut self) -> Vec<u8> {
        if std::mem::replace(&mut self.begun, true) {
            return Vec::new();
        }
        let mut head = Bits::default();
        head.bytes.extend(b"fLaC");
        head.put(0x80, 8); // last metadata block: stream info
        head.put(34, 24);
        head.put(FRAME as u32, 16);
        head.put(FRAME as u32, 16);
        head.put(0, 24); // minimum and maximum frame size: unknown
        head.put(0, 24);
        head.put(self.rate, 20);
        head.put(0, 3); // channels less 1
        head.put(15, 5); // bits less 1
        head.put(0, 4); // number of samples: unknown
        head.put(0, 32);
        head.bytes.extend([0; 16]); // MD5 of the samples: unknown
        head.bytes
    }

    fn frame(&mut self, samples: &[i16], bytes: &mut Vec<u8>) {
        let mut frame = Bits::default();
        frame.put(0b1111_1111_1111_1000, 16); // sync code, fixed block size
        frame.put(0b0111, 4); // block size follows in 16 bits
        frame.put(if u16::try_from(self.rate).is_ok() { 0b1101 } else { 0 }, 4); // rate follows, or as in the header
        frame.put(0b0000_1000, 8); // one channel, 16 bits
        frame.bytes.extend(number(self.frames));
        frame.put(samples.len() as u32 - 1, 16);
        if let Ok(rate) = u16::try_from(self.rate) {
            frame.put(u32::from(rate), 16);
        }
        frame.put(u32::from(crc8(&frame.bytes)), 8);
        subframe(samples, &mut frame);
        frame.align();
        let crc = crc16(&frame.bytes);
        frame.put(u32::from(crc), 16);
        bytes.extend(frame.bytes);
        self.frames += 1;
    }
}

fn subframe(samples: &[i16], frame: &mut Bits) {
    if samples.iter().all(|sample| *sample == samples[0]) {
        frame.put(0, 8); // constant
        frame.put(u32::from(samples[0] as u16), 16);
        return;
    }
    let best = (0..ORDERS.min(samples.len()))
        .map(|order| (order, coded(&residual(samples, order), order)))
        .min_by_key(|(_, coded)| coded.bits);
    let Some((order, coded)) = best.filter(|(_, coded)| coded.bits < 16 * samples.len() as u64) else {
        frame.put(0b10, 8); // verbatim
        samples.iter().for_each(|sample| frame.put(u32::from(*sample as u16), 16));
        return;
    };
    frame.put((0b1000 | order as u32) << 1, 8);
    samples[..order].iter().for_each(|sample| frame.put(u32::from(*sample as u16), 16));
    frame.put(0, 2); // Rice parameters of 4 bits
    frame.put(coded.parts, 4);
    let residual = residual(samples, order);
    for (part, &parameter) in parts(&residual, order, coded.parts).zip(&coded.parameters) {
        frame.put(parameter, 4);
        for &value in part {
            let code = folded(value);
            frame.zeros(code >> parameter);
            frame.put(1, 1);
            frame.put(code & ((1 << parameter) - 1), parameter);
        }
    }
}

/// Residual of the fixed predictor of an order: the samples differenced `order` times.
fn residual(samples: &[i16], order: usize) -> Vec<i32> {
    let mut left: Vec<i32> = samples.iter().map(|&sample| i32::from(sample)).collect();
    for _ in 0..order {
        left = left.windows(2).map(|two| two[1] - two[0]).collect();
    }
    left
}

/// Best coding of a residual.
struct ResidualCoding {
    bits: u64,
    parts: u32, // partition order
    parameters: Vec<u32>,
}

fn coded(residual: &[i32], order: usize) -> ResidualCoding {
    let samples = residual.len() + order;
    let possible =
        (0..=PARTS_MAX).take_while(|parts| samples.is_multiple_of(1 << parts) && samples >> parts > order);
    let codings = possible.map(|parts| {
        let (mut bits, mut parameters) = (0, Vec::new());
        for part in self::parts(residual, order, parts) {
            let (parameter, part) = parameter(part);
            bits += part + 4;
            parameters.push(parameter);
        }
        ResidualCoding { bits, parts, parameters }
    });
    // One partition is always possible.
    codings.min_by_key(|coded| coded.bits).unwrap_or(ResidualCoding {
        bits: u64::MAX,
        parts: 0,
        parameters: Vec::new(),
    })
}

/// Partitions of a residual. All have the same length, except that the first lacks the predictor's warm-up
/// samples.
fn parts(residual: &[i32], order: usize, parts: u32) -> impl Iterator<Item = &[i32]> {
    let length = (residual.len() + order) >> parts;
    let (first, rest) = residual.split_at(length - order);
    std::iter::once(first).chain(rest.chunks(length.max(1)))
}

/// Best Rice parameter for a partition, and the bits of its codes.
fn parameter(part: &[i32]) -> (u32, u64) {
    let sum: u64 = part.iter().map(|&value| u64::from(folded(value))).sum();
    let mean = sum / part.len().max(1) as u64;
    let near = mean.max(1).ilog2();
    let bits = |parameter: u32| {
        let high: u64 = part.iter().map(|&value| u64::from(folded(value) >> parameter)).sum();
        high + (u64::from(parameter) + 1) * part.len() as u64
    };
    let near = near.saturating_sub(1)..=(near + 1);
    let tried = near.map(|parameter| parameter.min(RICE_MAX)).map(|parameter| (parameter, bits(parameter)));
    tried.min_by_key(|(_, bits)| *bits).unwrap_or((RICE_MAX, u64::MAX))
}

/// Maps signed numbers to unsigned ones: 0, -1, 1, -2, …
fn folded(value: i32) -> u32 {
    ((value << 1) ^ (value >> 31)) as u32
}

/// Frame number in UTF-8 style coding.
fn number(number: u64) -> Vec<u8> {
    if number < 0x80 {
        return vec![number as u8];
    }
    // Each byte after the first has 6 bits. The first has the rest.
    let more = (1..=6).find(|more| number < 1 << (6 * more + 6 - more)).unwrap_or(6);
    let first = (0xff00u32 >> (more + 1)) as u8 | (number >> (6 * more)) as u8;
    let rest = (0..more).rev().map(|at| 0x80 | (number >> (6 * at)) as u8 & 0x3f);
    std::iter::once(first).chain(rest).collect()
}

/// Bit writer, most significant bit first.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    free: u32, // unused bits of the last byte
}

impl Bits {
    fn put(&mut self, value: u32, bits: u32) {
        for bit in (0..bits).rev() {
            self.one(value >> bit & 1);
        }
    }

    fn one(&mut self, bit: u32) {
        if self.free == 0 {
            self.bytes.push(0);
            self.free = 8;
        }
        self.free -= 1;
        if let Some(last) = self.bytes.last_mut() {
            *last |= (bit as u8) << self.free;
        }
    }

    fn zeros(&mut self, count: u32) {
        (0..count).for_each(|_| self.one(0));
    }

    fn align(&mut self) {
        self.free = 0;
    }
}

fn crc8(bytes: &[u8]) -> u8 {
    let shift = |crc: u8| if crc & 0x80 == 0 { crc << 1 } else { crc << 1 ^ 0x07 };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ byte, |crc, _| shift(crc)))
}

fn crc16(bytes: &[u8]) -> u16 {
    let shift = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x8005 };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| shift(crc)))
}
