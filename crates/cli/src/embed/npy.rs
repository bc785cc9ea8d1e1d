//! NumPy's file format, version 1.0 (numpy.org/doc/stable/reference/generated/numpy.lib.format.html): a header,
//! then the rows of a C-ordered array of little-endian f32.

use super::partial::ItemOutcome;
use std::io::{self, Write};

/// Alignment of the start of the data.
const ALIGNMENT: usize = 64;

/// Header of an array with shape (rows, dimensions).
pub(crate) fn header(rows: u64, dimensions: u32) -> Vec<u8> {
    let dict = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {dimensions}), }}");
    // Magic, version and two bytes of length before it; the line feed after it.
    let unpadded = 10 + dict.len() + 1;
    let len = unpadded.next_multiple_of(ALIGNMENT) - 10;
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    // Two numbers of at most 20 and 10 digits: far below 65,536.
    header.extend_from_slice(&(len as u16).to_le_bytes());
    header.extend_from_slice(dict.as_bytes());
    header.resize(10 + len - 1, b' ');
    header.push(b'\n');
    header
}

/// Writes one row. An item without a vector becomes a row of NaN.
pub(crate) fn row(out: &mut impl Write, outcome: &ItemOutcome, dimensions: u32) -> io::Result<()> {
    match outcome {
        ItemOutcome::Vector(vector) => out.write_all(vector),
        ItemOutcome::Blank | ItemOutcome::Failed(_) => {
            (0..dimensions).try_for_each(|_| out.write_all(&f32::NAN.to_le_bytes()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_numpys_own() {
        let header = header(3, 2);
        assert_eq!(&header[..10], b"\x93NUMPY\x01\x00\x76\x00", "0x76 is 118: 128 bytes in all");
        let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }";
        assert_eq!(&header[10..], format!("{dict:117}\n").as_bytes());
        for (rows, dimensions) in [(0, 1), (u64::MAX, u32::MAX), (1_000_000, 4096)] {
            let header = super::header(rows, dimensions);
            assert_eq!(header.len() % 64, 0);
            assert_eq!(header.len(), 10 + usize::from(u16::from_le_bytes([header[8], header[9]])));
        }
    }

    #[test]
    fn what_has_no_vector_is_not_a_number() {
        let mut out = Vec::new();
        row(&mut out, &ItemOutcome::Vector(vec![0, 0, 128, 63, 0, 0, 0, 64]), 2).unwrap();
        row(&mut out, &ItemOutcome::Blank, 2).unwrap();
        let values: Vec<f32> =
            out.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(values[..2], [1.0, 2.0]);
        assert!(values[2..].iter().all(|value| value.is_nan()) && values.len() == 4);
    }
}
