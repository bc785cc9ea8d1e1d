//! Arithmetic decoding of coefficients (T.81, annexes D, F.1.4 and G.1.3).

use super::bits::Bits;
use super::scan::Coder;
use super::segments::{Scan, Tables};
use super::{Block, JpegFailure, ZIGZAG};

/// States of the probability estimator (table D.3): size of the less probable sub-interval, next state after
/// the less probable symbol (bit 7 set if the symbols swap), and next state after the more probable one. The
/// last state is fixed.
#[rustfmt::skip]
static STATES: [[u16; 3]; 114] = [
    [0x5a1d, 129, 1], [0x2586, 14, 2], [0x1114, 16, 3], [0x080b, 18, 4], [0x03d8, 20, 5], [0x01da, 23, 6],
    [0x00e5, 25, 7], [0x006f, 28, 8], [0x0036, 30, 9], [0x001a, 33, 10], [0x000d, 35, 11], [0x0006, 9, 12],
    [0x0003, 10, 13], [0x0001, 12, 13], [0x5a7f, 143, 15], [0x3f25, 36, 16], [0x2cf2, 38, 17],
    [0x207c, 39, 18], [0x17b9, 40, 19], [0x1182, 42, 20], [0x0cef, 43, 21], [0x09a1, 45, 22],
    [0x072f, 46, 23], [0x055c, 48, 24], [0x0406, 49, 25], [0x0303, 51, 26], [0x0240, 52, 27],
    [0x01b1, 54, 28], [0x0144, 56, 29], [0x00f5, 57, 30], [0x00b7, 59, 31], [0x008a, 60, 32],
    [0x0068, 62, 33], [0x004e, 63, 34], [0x003b, 32, 35], [0x002c, 33, 9], [0x5ae1, 165, 37],
    [0x484c, 64, 38], [0x3a0d, 65, 39], [0x2ef1, 67, 40], [0x261f, 68, 41], [0x1f33, 69, 42],
    [0x19a8, 70, 43], [0x1518, 72, 44], [0x1177, 73, 45], [0x0e74, 74, 46], [0x0bfb, 75, 47],
    [0x09f8, 77, 48], [0x0861, 78, 49], [0x0706, 79, 50], [0x05cd, 48, 51], [0x04de, 50, 52],
    [0x040f, 50, 53], [0x0363, 51, 54], [0x02d4, 52, 55], [0x025c, 53, 56], [0x01f8, 54, 57],
    [0x01a4, 55, 58], [0x0160, 56, 59], [0x0125, 57, 60], [0x00f6, 58, 61], [0x00cb, 59, 62],
    [0x00ab, 61, 63], [0x008f, 61, 32], [0x5b12, 193, 65], [0x4d04, 80, 66], [0x412c, 81, 67],
    [0x37d8, 82, 68], [0x2fe8, 83, 69], [0x293c, 84, 70], [0x2379, 86, 71], [0x1edf, 87, 72],
    [0x1aa9, 87, 73], [0x174e, 72, 74], [0x1424, 72, 75], [0x119c, 74, 76], [0x0f6b, 74, 77],
    [0x0d51, 75, 78], [0x0bb6, 77, 79], [0x0a40, 77, 48], [0x5832, 208, 81], [0x4d1c, 88, 82],
    [0x438e, 89, 83], [0x3bdd, 90, 84], [0x34ee, 91, 85], [0x2eae, 92, 86], [0x299a, 93, 87],
    [0x2516, 86, 71], [0x5570, 216, 89], [0x4ca9, 95, 90], [0x44d9, 96, 91], [0x3e22, 97, 92],
    [0x3824, 99, 93], [0x32b4, 99, 94], [0x2e17, 93, 86], [0x56a8, 223, 96], [0x4f46, 101, 97],
    [0x47e5, 102, 98], [0x41cf, 103, 99], [0x3c3d, 104, 100], [0x375e, 99, 93], [0x5231, 105, 102],
    [0x4c0f, 106, 103], [0x4639, 107, 104], [0x415e, 103, 99], [0x5627, 233, 106], [0x50e7, 108, 107],
    [0x4b85, 109, 103], [0x5597, 110, 109], [0x504f, 111, 107], [0x5a10, 238, 111], [0x5522, 112, 109],
    [0x59eb, 240, 111], [0x5a1d, 113, 113],
];

/// Statistics bins of a DC table.
const DC_BINS: usize = 64;
/// Statistics bins of an AC table.
const AC_BINS: usize = 256;
/// First bin of the AC tables.
const AC_FIRST: usize = 16 * DC_BINS;
/// Bin with fixed even probability.
const EVEN: usize = AC_FIRST + 16 * AC_BINS;

/// Offsets of the magnitude bins beyond the first two: for DC, low AC and high AC coefficients.
const MAGNITUDES: [usize; 3] = [20, 189, 217];

/// Invalid data. Nothing is decoded up to the next restart.
#[derive(Debug)]
struct Garbage;

/// Decoder of sequential and progressive scans.
#[derive(Debug)]
pub(super) struct Arithmetic<'a> {
    bits: Bits<'a>,
    restarts: u8,
    /// Base of the interval, followed by bits of data.
    base: u64,
    interval: u64,
    /// Bits of data in `base`. Negative while there are too few.
    count: i32,
    is_garbage: bool,
    decisions: Vec<u8>,
    scan: Scan,
    is_progressive: bool,
    /// Last DC coefficient of each component.
    last: [i32; 4],
    /// Category of the last DC difference of each component.
    context: [usize; 4],
    /// Conditioning bounds of each component: for small DC differences, and for low AC coefficients.
    bounds: [[u8; 2]; 4],
}

impl<'a> Arithmetic<'a> {
    /// Creates a decoder. Fails if the scan's data cannot be decoded.
    pub(super) fn new(
        bits: Bits<'a>,
        tables: &Tables,
        scan: &Scan,
        is_progressive: bool,
    ) -> Result<Arithmetic<'a>, JpegFailure> {
        let mut bounds = [[0; 2]; 4];
        for (bounds, part) in bounds.iter_mut().zip(&scan.parts) {
            *bounds =
                [tables.dc_bounds[part.dc & 15].unwrap_or(0x10), tables.ac_bounds[part.ac & 15].unwrap_or(5)];
        }
        let mut decisions = vec![0; EVEN + 1];
        decisions[EVEN] = 113;
        Ok(Arithmetic {
            bits,
            restarts: 0,
            base: 0,
            interval: 0,
            count: -16,
            is_garbage: false,
            decisions,
            scan: scan.clone(),
            is_progressive,
            last: [0; 4],
            context: [0; 4],
            bounds,
        })
    }

    /// Decodes one binary decision.
    fn decide(&mut self, bin: usize) -> bool {
        while self.interval < 0x8000 {
            self.count -= 1;
            if self.count < 0 {
                self.base = self.base << 8 | u64::from(self.bits.byte());
                self.count += 8;
                if self.count < 0 {
                    self.count += 1;
                    if self.count == 0 {
                        self.interval = 0x8000;
                    }
                }
            }
            self.interval <<= 1;
        }
        let state = self.decisions[bin];
        let [part, less_likely, likelier] = STATES[usize::from(state & 0x7f)];
        let part = u64::from(part);
        let mut outcome = state & 0x80;
        self.interval -= part;
        let middle = self.interval << self.count;
        let is_above = self.base >= middle;
        if is_above || self.interval < 0x8000 {
            // If the larger sub-interval belongs to the less probable symbol, the symbols are exchanged.
            let is_likelier = is_above == (self.interval < part);
            self.decisions[bin] = (state & 0x80) ^ if is_likelier { likelier } else { less_likely } as u8;
            if !is_likelier {
                outcome ^= 0x80;
            }
        }
        if is_above {
            self.base -= middle;
            self.interval = part;
        }
        outcome != 0
    }

    /// Decodes a magnitude less 1. Returns its highest bit and its value. The first decision uses `bin`, those
    /// for more bits use bins from `beyond` on.
    fn magnitude(&mut self, bin: usize, beyond: usize, is_ac: bool) -> Result<(i32, i32), Garbage> {
        let (mut bin, mut high) = (bin, i32::from(self.decide(bin)));
        // AC coefficients have one more decision before the shared ones.
        if high != 0 && (!is_ac || self.decide(bin)) {
            high <<= u32::from(is_ac);
            bin = beyond;
            while self.decide(bin) {
                high <<= 1;
                if high == 0x8000 {
                    return Err(Garbage);
                }
                bin += 1;
            }
        }
        let (mut value, mut bit) = (high, high >> 1);
        while bit != 0 {
            if self.decide(bin + 14) {
                value |= bit;
            }
            bit >>= 1;
        }
        Ok((high, value))
    }

    fn dc(&mut self, part: usize) -> Result<i32, Garbage> {
        let first = (self.scan.parts[part].dc & 15) * DC_BINS;
        let bin = first + self.context[part];
        if !self.decide(bin) {
            self.context[part] = 0;
            return Ok(self.last[part]);
        }
        let is_negative = self.decide(bin + 1);
        let bin = bin + 2 + usize::from(is_negative);
        let (high, value) = self.magnitude(bin, first + MAGNITUDES[0], false)?;
        let value = if is_negative { -value - 1 } else { value + 1 };
        let [lower, upper] =
            [self.bounds[part][0] & 15, self.bounds[part][0] >> 4].map(|bits| 1 << bits >> 1);
        let sign = usize::from(is_negative) * 4;
        self.context[part] = match high {
            high if high < lower => 0,
            high if high > upper => 12 + sign,
            _ => 4 + sign,
        };
        self.last[part] = self.last[part].wrapping_add(value) & 0xffff;
        Ok(self.last[part])
    }
}

impl Arithmetic<'_> {
    /// Decodes the first values of a block's band.
    fn ac(
        &mut self,
        part: usize,
        [first, last]: [usize; 2],
        low: u32,
        block: &mut Block,
    ) -> Result<(), Garbage> {
        let bins = AC_FIRST + (self.scan.parts[part].ac & 15) * AC_BINS;
        let mut at = first;
        while at <= last {
            if self.decide(bins + 3 * (at - 1)) {
                break;
            }
            while !self.decide(bins + 3 * (at - 1) + 1) {
                at += 1;
                if at > last {
                    return Err(Garbage);
                }
            }
            let is_negative = self.decide(EVEN);
            let beyond = MAGNITUDES[if at <= usize::from(self.bounds[part][1]) { 1 } else { 2 }];
            let (_, value) = self.magnitude(bins + 3 * (at - 1) + 2, bins + beyond, true)?;
            let value = if is_negative { -value - 1 } else { value + 1 };
            block[usize::from(ZIGZAG[at])] = (value << low) as i16;
            at += 1;
        }
        Ok(())
    }

    /// Refines a band's values by one bit.
    fn refine_ac(&mut self, block: &mut Block) -> Result<(), Garbage> {
        let [first, last] = self.scan.band;
        let bins = AC_FIRST + (self.scan.parts[0].ac & 15) * AC_BINS;
        let step = 1i16 << self.scan.low;
        let end = (1..=last).rev().find(|&at| block[usize::from(ZIGZAG[at])] != 0).unwrap_or(0);
        let mut at = first;
        while at <= last {
            if at > end && self.decide(bins + 3 * (at - 1)) {
                break;
            }
            loop {
                let (bin, place) = (bins + 3 * (at - 1), usize::from(ZIGZAG[at]));
                if block[place] != 0 {
                    if self.decide(bin + 2) {
                        block[place] = block[place].wrapping_add(if block[place] < 0 { -step } else { step });
                    }
                    break;
                }
                if self.decide(bin + 1) {
                    block[place] = if self.decide(EVEN) { -step } else { step };
                    break;
                }
                at += 1;
                if at > last {
                    return Err(Garbage);
                }
            }
            at += 1;
        }
        Ok(())
    }

    fn decode(&mut self, part: usize, block: &mut Block) -> Result<(), Garbage> {
        let (band, low) = (self.scan.band, self.scan.low);
        match (self.is_progressive, band[0], self.scan.high) {
            (false, ..) => {
                block[0] = self.dc(part)? as i16;
                self.ac(part, [1, 63], 0, block)
            }
            (true, 0, 0) => {
                block[0] = (self.dc(part)? << low) as i16;
                Ok(())
            }
            (true, 0, _) => {
                if self.decide(EVEN) {
                    block[0] |= 1 << low;
                }
                Ok(())
            }
            (true, _, 0) => self.ac(part, band, low, block),
            (true, ..) => self.refine_ac(block),
        }
    }
}

impl<'a> Coder<'a> for Arithmetic<'a> {
    fn block(&mut self, part: usize, block: &mut Block) -> usize {
        // After invalid data, libjpeg still refines DC coefficients.
        let refines_dc = self.is_progressive && self.scan.band[0] == 0 && self.scan.high > 0;
        if !self.is_garbage || refines_dc {
            self.is_garbage |= self.decode(part, block).is_err();
        }
        63
    }

    fn restart(&mut self) {
        self.bits.restart(self.restarts);
        self.restarts = (self.restarts + 1) & 7;
        self.decisions[..EVEN].fill(0);
        (self.last, self.context) = ([0; 4], [0; 4]);
        (self.base, self.interval, self.count, self.is_garbage) = (0, 0, -16, false);
    }

    fn end_unit(&mut self) {}

    fn is_dry(&self) -> bool {
        false
    }

    fn bits(&self) -> &Bits<'a> {
        &self.bits
    }
}
