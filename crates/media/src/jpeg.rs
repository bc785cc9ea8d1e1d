//! How often a JPEG's file goes over its picture. A few hundred bytes can ask for thousands of passes over millions of
//! pixels, so they are counted before anything is decoded.

/// Scans of a JPEG (ITU T.81, B.1), as far as its markers can be followed; at most `most + 1`.
pub(crate) fn scans(bytes: &[u8], most: usize) -> usize {
    let mut scans = 0;
    let mut at = 2;
    while let Some(marker) = next_marker(bytes, &mut at) {
        match marker {
            // End of image.
            0xd9 => break,
            // Without a length: restarts, start of image, and what has no meaning of its own.
            0xd0..=0xd8 | 0x01 => continue,
            0xda => {
                scans += 1;
                if scans > most {
                    break;
                }
            }
            _ => {}
        }
        let Some(&[high, low]) = bytes.get(at..at + 2) else { break };
        at += usize::from(u16::from_be_bytes([high, low])).max(2);
    }
    scans
}

/// Goes behind the next marker. Bytes of a scan's data are passed: after 0xff they have a 0.
fn next_marker(bytes: &[u8], at: &mut usize) -> Option<u8> {
    loop {
        let found = bytes.get(*at..)?.iter().position(|&byte| byte == 0xff)?;
        *at += found + 1;
        match *bytes.get(*at)? {
            0 => *at += 1,
            0xff => {}
            marker => {
                *at += 1;
                return Some(marker);
            }
        }
    }
}
