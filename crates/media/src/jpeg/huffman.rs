//! Huffman decoding of coefficients (T.81, annexes F.2 and G.2): codes, and decoders of sequential and
//! progressive blocks.

use super::bits::Bits;
use super::scan::Coder;
use super::segments::{Scan, Tables};
use super::{Block, JpegFailure, ZIGZAG};

/// Bits looked up at once.
const LOOKUP: u32 = 10;
/// Flag in [`Lookup::whole`] for the end of a block.
const END: u32 = 0x8000;

/// Huffman code as defined in a file.
#[derive(Clone, Debug)]
pub(super) struct Code {
    /// Number of codes of each length, 1 to 16 bits.
    lengths: [u8; 16],
    values: [u8; 256],
}

impl Code {
    /// Creates a code from the counts by length, and at most 256 values.
    pub(super) fn new(lengths: &[u8; 16], values: &[u8]) -> Code {
        let mut own = [0; 256];
        own[..values.len()].copy_from_slice(values);
        Code { lengths: *lengths, values: own }
    }

    /// Default tables (annex K.3), which motion JPEG files leave out.
    fn usual(index: usize, is_dc: bool) -> Option<Code> {
        const DC: [[u8; 16]; 2] = [
            [0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
            [0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
        ];
        const AC: [[u8; 16]; 2] = [
            [0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7d],
            [0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 0x77],
        ];
        let values = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
        match is_dc {
            true => DC.get(index).map(|lengths| Code::new(lengths, &values)),
            false => AC.get(index).map(|lengths| Code::new(lengths, &USUAL_AC[index])),
        }
    }
}

/// Values of the default AC tables, for luminance and chrominance.
const USUAL_AC: [[u8; 162]; 2] = [
    [
        0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07, 0x22,
        0x71, 0x14, 0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1, 0xf0, 0x24, 0x33,
        0x62, 0x72, 0x82, 0x09, 0x0a, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x34,
        0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55,
        0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76,
        0x77, 0x78, 0x79, 0x7a, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96,
        0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5,
        0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4,
        0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf1,
        0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
    ],
    [
        0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71, 0x13,
        0x22, 0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33, 0x52, 0xf0, 0x15, 0x62,
        0x72, 0xd1, 0x0a, 0x16, 0x24, 0x34, 0xe1, 0x25, 0xf1, 0x17, 0x18, 0x19, 0x1a, 0x26, 0x27, 0x28, 0x29,
        0x2a, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54,
        0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75,
        0x76, 0x77, 0x78, 0x79, 0x7a, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94,
        0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3,
        0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2,
        0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea,
        0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
    ],
];

/// Huffman code prepared for decoding.
#[derive(Clone, Debug)]
struct Lookup {
    /// Length and value of a code, by the next bits; 0 if the code is longer.
    codes: Box<[u16; 1 << LOOKUP]>,
    /// Coefficient, its zero run and its total bits, by the next bits; 0 if it needs more bits.
    whole: Box<[u32; 1 << LOOKUP]>,
    /// Largest code of each length; negative if there is none.
    largest: [i32; 18],
    /// Index of a code's value less the code, by length.
    offsets: [i32; 18],
    values: [u8; 256],
}

impl Lookup {
    fn new(code: &Code, is_dc: bool) -> Result<Lookup, JpegFailure> {
        const BAD: JpegFailure = JpegFailure::Broken("a Huffman table is damaged");
        let mut lookup = Lookup {
            codes: Box::new([0; 1 << LOOKUP]),
            whole: Box::new([0; 1 << LOOKUP]),
            largest: [-1; 18],
            offsets: [0; 18],
            values: code.values,
        };
        let (mut next, mut place) = (0i32, 0usize);
        for (length, &count) in (1u32..).zip(&code.lengths) {
            lookup.offsets[length as usize] = place as i32 - next;
            for _ in 0..count {
                if length <= LOOKUP {
                    let first = (next as usize) << (LOOKUP - length);
                    let entries = lookup.codes.get_mut(first..first + (1 << (LOOKUP - length)));
                    entries.ok_or(BAD)?.fill((length as u16) << 8 | u16::from(code.values[place]));
                }
                (next, place) = (next + 1, place + 1);
            }
            if count > 0 {
                lookup.largest[length as usize] = next - 1;
            }
            // A code of all ones is not allowed.
            if place > 0 && next >= 1 << length {
                return Err(BAD);
            }
            next <<= 1;
        }
        if is_dc && code.values[..place].iter().any(|&size| size > 15) {
            return Err(BAD);
        }
        for (index, (whole, &entry)) in lookup.whole.iter_mut().zip(lookup.codes.iter()).enumerate() {
            let (length, run, size) =
                (u32::from(entry >> 8), u32::from(entry >> 4 & 15), u32::from(entry & 15));
            if entry != 0 && size == 0 && run < 15 {
                *whole = END | length;
            } else if entry != 0 && size > 0 && length + size <= LOOKUP {
                let bits = index as i32 >> (LOOKUP - length - size) & ((1 << size) - 1);
                *whole = (extend(bits, size) as u32) << 16 | run << 8 | (length + size);
            }
        }
        Ok(lookup)
    }

    /// Decodes the next value. Invalid bits give 0, as in libjpeg.
    #[inline(always)]
    fn value(&self, bits: &mut Bits) -> u32 {
        let entry = self.codes[bits.peek(LOOKUP)];
        if entry != 0 {
            bits.skip(u32::from(entry >> 8));
            return u32::from(entry & 255);
        }
        self.long_value(bits)
    }

    #[cold]
    #[inline(never)]
    fn long_value(&self, bits: &mut Bits) -> u32 {
        for length in LOOKUP + 1..=16 {
            let code = bits.peek(length) as i32;
            if code <= self.largest[length as usize] {
                bits.skip(length);
                let place = code + self.offsets[length as usize];
                return u32::from(self.values[place as usize & 255]);
            }
        }
        bits.skip(17);
        0
    }
}

/// Extends the sign of a number of `size` bits (T.81, figure F.12).
#[inline(always)]
fn extend(bits: i32, size: u32) -> i32 {
    if bits < 1 << size >> 1 { bits + 1 - (1 << size) } else { bits }
}

/// Returns the table that a scan names, or the default one.
fn lookup(codes: &[Option<Code>; 4], index: usize, is_dc: bool, usual: bool) -> Result<Lookup, JpegFailure> {
    let usual = || Code::usual(index, is_dc).filter(|_| usual);
    let code = codes.get(index).cloned().flatten().or_else(usual);
    Lookup::new(&code.ok_or(JpegFailure::Broken("a Huffman table is missing"))?, is_dc)
}

/// State shared by the Huffman decoders.
#[derive(Debug)]
struct Data<'a> {
    bits: Bits<'a>,
    /// Last DC coefficient of each component.
    last: [i32; 4],
    /// Number of the next restart marker.
    restarts: u8,
    /// True if the segment has no more data.
    is_dry: bool,
}

impl<'a> Data<'a> {
    fn new(bits: Bits<'a>) -> Data<'a> {
        Data { bits, last: [0; 4], restarts: 0, is_dry: false }
    }

    fn restart(&mut self) {
        self.bits.restart(self.restarts);
        self.restarts = (self.restarts + 1) & 7;
        self.last = [0; 4];
        self.is_dry &= self.bits.place().1.is_some();
    }

    fn end_unit(&mut self) {
        self.is_dry |= self.bits.is_dry();
    }
}

/// Decoder of sequential scans.
#[derive(Debug)]
pub(super) struct Sequential<'a> {
    data: Data<'a>,
    codes: Vec<[Lookup; 2]>,
}

impl<'a> Sequential<'a> {
    /// Creates a decoder. Fails if a table is missing or invalid.
    pub(super) fn new(bits: Bits<'a>, tables: &Tables, scan: &Scan) -> Result<Sequential<'a>, JpegFailure> {
        let both = scan.parts.iter().map(|part| {
            Ok([lookup(&tables.dc, part.dc, true, true)?, lookup(&tables.ac, part.ac, false, true)?])
        });
        Ok(Sequential { data: Data::new(bits), codes: both.collect::<Result<_, JpegFailure>>()? })
    }
}

impl<'a> Coder<'a> for Sequential<'a> {
    fn block(&mut self, part: usize, block: &mut Block) -> usize {
        if self.data.is_dry {
            return 0;
        }
        let [dc, ac] = &self.codes[part];
        let mut bits = self.data.bits;
        bits.refill();
        let size = dc.value(&mut bits);
        let difference = extend(bits.take(size), size);
        let last = self.data.last[part].wrapping_add(difference);
        self.data.last[part] = last;
        block[0] = last as i16;
        let mut at = 1;
        while at < 64 {
            bits.refill();
            let whole = ac.whole[bits.peek(LOOKUP)];
            bits.skip(whole & 255);
            if whole & END != 0 {
                break;
            }
            let value = if whole != 0 {
                at += (whole >> 8 & 15) as usize;
                (whole as i32 >> 16) as i16
            } else {
                let symbol = ac.value(&mut bits);
                let size = symbol & 15;
                at += (symbol >> 4) as usize;
                if size == 0 {
                    if symbol >> 4 != 15 {
                        break;
                    }
                    at += 1;
                    continue;
                }
                extend(bits.take(size), size) as i16
            };
            // A run beyond the block ends at its last position, as in libjpeg.
            block[usize::from(ZIGZAG[at])] = value;
            at += 1;
        }
        self.data.bits = bits;
        at - 1
    }

    fn restart(&mut self) {
        self.data.restart();
    }

    fn end_unit(&mut self) {
        self.data.end_unit();
    }

    fn is_dry(&self) -> bool {
        self.data.is_dry
    }

    fn bits(&self) -> &Bits<'a> {
        &self.data.bits
    }
}

/// Decoder of progressive scans.
#[derive(Debug)]
pub(super) struct Progressive<'a> {
    data: Data<'a>,
    /// For a DC scan, one table for each component. For an AC scan, the table of its only component.
    codes: Vec<Lookup>,
    band: [usize; 2],
    low: u32,
    refines: bool,
    /// Remaining blocks whose band has no more new coefficients.
    blocks_ended: u32,
}

impl<'a> Progressive<'a> {
    /// Creates a decoder. Fails if a table is missing or invalid.
    pub(super) fn new(bits: Bits<'a>, tables: &Tables, scan: &Scan) -> Result<Progressive<'a>, JpegFailure> {
        let (is_dc, refines) = (scan.band[0] == 0, scan.high > 0);
        let code = |index, is_dc| match is_dc {
            true => lookup(&tables.dc, index, true, false),
            false => lookup(&tables.ac, index, false, false),
        };
        let codes = match (is_dc, refines) {
            (true, true) => Vec::new(),
            (true, false) => scan.parts.iter().map(|part| code(part.dc, true)).collect::<Result<_, _>>()?,
            (false, _) => vec![code(scan.parts[0].ac, false)?],
        };
        Ok(Progressive {
            data: Data::new(bits),
            codes,
            band: scan.band,
            low: scan.low,
            refines,
            blocks_ended: 0,
        })
    }

    fn first_dc(&mut self, part: usize, block: &mut Block) {
        let bits = &mut self.data.bits;
        bits.refill();
        let size = self.codes[part].value(bits);
        let difference = extend(bits.take(size), size);
        self.data.last[part] = self.data.last[part].wrapping_add(difference);
        block[0] = (self.data.last[part] << self.low) as i16;
    }

    fn first_ac(&mut self, block: &mut Block) {
        if self.blocks_ended > 0 {
            self.blocks_ended -= 1;
            return;
        }
        let (code, mut bits) = (&self.codes[0], self.data.bits);
        let [mut at, last] = self.band;
        while at <= last {
            bits.refill();
            let whole = code.whole[bits.peek(LOOKUP)];
            let value = if whole != 0 && whole & END == 0 {
                bits.skip(whole & 255);
                at += (whole >> 8 & 15) as usize;
                whole as i32 >> 16
            } else {
                let symbol = code.value(&mut bits);
                let (run, size) = (symbol >> 4, symbol & 15);
                if size == 0 && run < 15 {
                    self.blocks_ended = (1 << run) + bits.take(run) as u32 - 1;
                    break;
                }
                at += run as usize;
                if size == 0 {
                    at += 1;
                    continue;
                }
                extend(bits.take(size), size)
            };
            block[usize::from(ZIGZAG[at])] = (value << self.low) as i16;
            at += 1;
        }
        self.data.bits = bits;
    }

    fn refine_ac(&mut self, block: &mut Block) {
        let (code, mut bits) = (&self.codes[0], self.data.bits);
        let step = 1i16 << self.low;
        let [mut at, last] = self.band;
        if self.blocks_ended == 0 {
            while at <= last {
                bits.refill();
                let symbol = code.value(&mut bits);
                let (mut run, size) = (symbol >> 4, symbol & 15);
                let mut new = 0;
                if size > 0 {
                    new = if bits.take(1) == 1 { step } else { -step };
                } else if run < 15 {
                    self.blocks_ended = (1 << run) + bits.take(run) as u32;
                    break;
                }
                while at <= last {
                    let place = &mut block[usize::from(ZIGZAG[at])];
                    if *place != 0 {
                        correct(&mut bits, place, step);
                    } else if run == 0 {
                        break;
                    } else {
                        run -= 1;
                    }
                    at += 1;
                }
                if new != 0 {
                    block[usize::from(ZIGZAG[at])] = new;
                }
                at += 1;
            }
        }
        if self.blocks_ended > 0 {
            for &place in ZIGZAG.get(at..=last).unwrap_or_default() {
                let place = &mut block[usize::from(place)];
                if *place != 0 {
                    correct(&mut bits, place, step);
                }
            }
            self.blocks_ended -= 1;
        }
        self.data.bits = bits;
    }
}

/// Refines a non-zero coefficient by one bit.
#[inline(always)]
fn correct(bits: &mut Bits, value: &mut i16, step: i16) {
    bits.refill();
    if bits.take(1) == 1 && *value & step == 0 {
        *value = value.wrapping_add(if *value >= 0 { step } else { -step });
    }
}

impl<'a> Coder<'a> for Progressive<'a> {
    fn block(&mut self, part: usize, block: &mut Block) -> usize {
        if self.data.is_dry {
            return 63;
        }
        match (self.band[0], self.refines) {
            (0, false) => self.first_dc(part, block),
            (0, true) => {
                self.data.bits.refill();
                if self.data.bits.take(1) == 1 {
                    block[0] |= 1 << self.low;
                }
            }
            (_, false) => self.first_ac(block),
            (_, true) => self.refine_ac(block),
        }
        63
    }

    fn restart(&mut self) {
        self.data.restart();
        self.blocks_ended = 0;
    }

    fn end_unit(&mut self) {
        self.data.end_unit();
    }

    fn is_dry(&self) -> bool {
        self.data.is_dry
    }

    fn bits(&self) -> &Bits<'a> {
        &self.data.bits
    }
}
