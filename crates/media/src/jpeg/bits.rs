//! Bit reader for entropy-coded data. It removes stuffed bytes and stops before a marker. After a marker it
//! supplies zeros, as libjpeg does, so that a damaged scan still gives a picture.

use super::segments::next_marker;

/// Bit reader. Supplies zeros at a marker and at the end of the file, and remembers a truncated file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// Next bits, from the highest.
    buffer: u64,
    /// Number of bits in the buffer.
    count: u32,
    /// Number of zero bits added after the segment's data.
    padding: u32,
    /// Marker that ended the data.
    marker: Option<u8>,
    /// True if the file ended within the data.
    pub(super) is_cut: bool,
}

impl<'a> Bits<'a> {
    /// Reads from an offset in a file.
    pub(super) fn new(data: &'a [u8], at: usize) -> Bits<'a> {
        Bits { data, at, buffer: 0, count: 0, padding: 0, marker: None, is_cut: false }
    }

    /// Offset after the data that was read, and the marker before it.
    pub(super) fn place(&self) -> (usize, Option<u8>) {
        (self.at, self.marker)
    }

    /// Returns true if more bits were taken than the segment has.
    pub(super) fn is_dry(&self) -> bool {
        self.count < self.padding
    }

    /// Makes at least 32 bits available.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        if self.count >= 32 {
            return;
        }
        if let Some(&bytes) = self.data.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            let word = u64::from_be_bytes(bytes);
            let has_marker_byte = (!word).wrapping_sub(0x0101_0101_0101_0101) & word & 0x8080_8080_8080_8080;
            if has_marker_byte == 0 && self.marker.is_none() {
                self.buffer |= word >> self.count;
                let bytes = (63 - self.count) / 8;
                self.at += bytes as usize;
                self.count += bytes * 8;
                return;
            }
        }
        self.refill_slowly();
    }

    #[cold]
    #[inline(never)]
    fn refill_slowly(&mut self) {
        while self.count <= 56 {
            let byte = self.byte();
            self.buffer |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    /// Next byte of data, or 0 if there is none.
    pub(super) fn byte(&mut self) -> u8 {
        if self.marker.is_none() && !self.is_cut {
            match self.data.get(self.at) {
                Some(0xff) => {
                    let fill = self.data[self.at..].iter().position(|&byte| byte != 0xff);
                    match fill.map(|fill| self.at + fill) {
                        Some(end) => {
                            self.at = end + 1;
                            match self.data[end] {
                                0 => return 0xff,
                                marker => self.marker = Some(marker),
                            }
                        }
                        None => self.is_cut = true,
                    }
                }
                Some(&byte) => {
                    self.at += 1;
                    return byte;
                }
                None => self.is_cut = true,
            }
        }
        self.padding = (self.padding + 8).min(1 << 16);
        0
    }

    /// Returns the next 1 to 17 bits without taking them. [`Bits::refill`] must have made them available.
    #[inline(always)]
    pub(super) fn peek(&self, bits: u32) -> usize {
        (self.buffer >> (64 - bits)) as usize
    }

    /// Skips bits.
    #[inline(always)]
    pub(super) fn skip(&mut self, bits: u32) {
        self.buffer <<= bits;
        self.count -= bits;
    }

    /// Takes the next 0 to 16 bits as a number.
    #[inline(always)]
    pub(super) fn take(&mut self, bits: u32) -> i32 {
        // Shift in two steps, because a shift by 64 is undefined.
        let value = ((self.buffer >> 1) >> (63 - bits)) as i32;
        self.skip(bits);
        value
    }

    /// Drops the rest of the segment, and continues after the expected restart marker, or resynchronises as
    /// libjpeg does.
    pub(super) fn restart(&mut self, expected: u8) {
        (self.buffer, self.count) = (0, 0);
        if self.marker.is_none() {
            self.find_marker();
        }
        while let Some(marker) = self.marker {
            let ahead = marker.wrapping_sub(0xd0 + expected) & 7;
            match marker {
                0xd0..=0xd7 => match ahead {
                    0 => self.marker = None,
                    // A later marker: this segment is lost.
                    1 | 2 => break,
                    // An earlier marker.
                    6 | 7 => self.find_marker(),
                    _ => self.marker = None,
                },
                0x00..=0xbf => self.find_marker(),
                _ => break,
            }
        }
        self.padding = 0;
    }

    fn find_marker(&mut self) {
        self.marker = next_marker(self.data, &mut self.at);
        self.is_cut |= self.marker.is_none();
    }
}
