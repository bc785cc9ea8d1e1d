//! WAV header (RIFF) for 16-bit mono samples of unknown number. Both lengths are the maximum, as in files
//! written to pipes.

/// Header of 44 bytes.
pub(super) fn header(sample_rate: u32) -> Vec<u8> {
    const BYTES: u32 = 2;
    let mut header = Vec::with_capacity(44);
    header.extend_from_slice(b"RIFF");
    header.extend_from_slice(&u32::MAX.to_le_bytes());
    header.extend_from_slice(b"WAVEfmt ");
    header.extend_from_slice(&16u32.to_le_bytes());
    header.extend_from_slice(&1u16.to_le_bytes()); // PCM
    header.extend_from_slice(&1u16.to_le_bytes()); // channels
    header.extend_from_slice(&sample_rate.to_le_bytes());
    header.extend_from_slice(&(sample_rate * BYTES).to_le_bytes());
    header.extend_from_slice(&(BYTES as u16).to_le_bytes());
    header.extend_from_slice(&16u16.to_le_bytes());
    header.extend_from_slice(b"data");
    header.extend_from_slice(&u32::MAX.to_le_bytes());
    header
}
