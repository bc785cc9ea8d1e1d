//! Bits of a scan's entropy-coded data: stuffed bytes are removed, and reading stops before a marker. Behind a marker zeros are read,
//! as libjpeg does, so that a damaged scan still becomes a picture.

use super::segments::next_marker;

/// A reader of bits. At a marker it supplies zeros; at the end of the file it supplies zeros and remembers that the file is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The next bits, from the highest.
    buffer: u64,
    /// Bits in the buffer.
    count: u32,
    /// Zeros that were added behind the segment's data.
    padding: u32,
    /// The marker that ended the data.
    marker: Option<u8>,
    /// The file ended inside the data.
    pub(super) is_cut: bool,
}

impl<'a> Bits<'a> {
    /// Reads from a place in a file.
    pub(super) fn new(data: &'a [u8], at: usize) -> Bits<'a> {
        Bits { data, at, buffer: 0, count: 0, padding: 0, marker: None, is_cut: false }
    }

    /// The place behind what was read, and the marker before it.
    pub(super) fn place(&self) -> (usize, Option<u8>) {
        (self.at, self.marker)
    }

    /// More bits were taken than the segment has.
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

    /// The next byte of data, or 0 where there is none.
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

    /// The next bits without taking them: 1 to 17 of those that [`Bits::refill`] made available.
    #[inline(always)]
    pub(super) fn peek(&self, bits: u32) -> usize {
        (self.buffer >> (64 - bits)) as usize
    }

    /// Takes bits.
    #[inline(always)]
    pub(super) fn skip(&mut self, bits: u32) {
        self.buffer <<= bits;
        self.count -= bits;
    }

    /// The next bits as a number, of which there are 0 to 16.
    #[inline(always)]
    pub(super) fn take(&mut self, bits: u32) -> i32 {
        // Shifting in two steps takes none of 64 bits.
        let value = ((self.buffer >> 1) >> (63 - bits)) as i32;
        self.skip(bits);
        value
    }

    /// Drops the rest of the segment, and goes behind the restart marker that is expected, or as near as libjpeg goes.
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
                    // A later one: this segment is lost.
                    1 | 2 => break,
                    // An earlier one.
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
