//! Files of any size made from a seed, so that servers and checks need no disk and no memory for them.

use axum::body::Bytes;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::sync::Mutex;

type Digests = (String, String);
static KNOWN: Mutex<BTreeMap<(u64, u64), Digests>> = Mutex::new(BTreeMap::new());

/// A file.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// As many bytes as wanted; beginning as a GGUF file.
    Made { seed: u64, bytes: u64 },
    /// These bytes.
    Given(Bytes),
}

impl Content {
    pub(crate) fn made(seed: u64, bytes: u64) -> Self {
        Self::Made { seed, bytes }
    }

    pub(crate) fn given(bytes: impl Into<Bytes>) -> Self {
        Self::Given(bytes.into())
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Made { bytes, .. } => *bytes,
            Self::Given(bytes) => bytes.len() as u64,
        }
    }

    /// The bytes from `from`, `length` of them or as many as there are.
    pub(crate) fn read(&self, from: u64, length: u64) -> Bytes {
        let to = (from + length).min(self.len());
        match self {
            Self::Given(bytes) => bytes.slice(from as usize..to as usize),
            Self::Made { seed, .. } => {
                let mut made = Vec::with_capacity((to - from + 8) as usize);
                for word in from / 8..to.div_ceil(8) {
                    made.extend_from_slice(&mix(seed ^ (word << 8)).to_le_bytes());
                }
                let skip = (from % 8) as usize;
                let mut made = Bytes::from(made).slice(skip..skip + (to - from) as usize);
                if from < 4 {
                    let mut begin = made.to_vec();
                    for (at, byte) in b"GGUF".iter().enumerate().skip(from as usize) {
                        if let Some(slot) = begin.get_mut(at - from as usize) {
                            *slot = *byte;
                        }
                    }
                    made = begin.into();
                }
                made
            }
        }
    }

    pub(crate) fn sha256(&self) -> String {
        self.digests().0
    }

    /// Git's digest of it.
    pub(crate) fn git(&self) -> String {
        self.digests().1
    }

    /// SHA-256 and git's digest, computed once for each made file.
    fn digests(&self) -> Digests {
        let key = match self {
            Self::Made { seed, bytes } => Some((*seed, *bytes)),
            Self::Given(_) => None,
        };
        if let Some(known) = key.and_then(|key| KNOWN.lock().unwrap().get(&key).cloned()) {
            return known;
        }
        let mut sha256 = Sha256::new();
        let mut git = sha1::Sha1::new_with_prefix(format!("blob {}\0", self.len()));
        self.pieces(|piece| {
            sha256.update(piece);
            git.update(piece);
        });
        let digests = (hex(&sha256.finalize()), hex(&git.finalize()));
        if let Some(key) = key {
            KNOWN.lock().unwrap().insert(key, digests.clone());
        }
        digests
    }

    fn pieces(&self, mut each: impl FnMut(&[u8])) {
        let mut at = 0;
        while at < self.len() {
            let piece = self.read(at, 1 << 20);
            each(&piece);
            at += piece.len() as u64;
        }
    }
}

/// splitmix64.
pub(crate) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
