//! Element types of a KV cache.

use std::fmt;
use std::str::FromStr;

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KvType {
    /// IEEE half.
    #[default]
    F16,
    /// GGML's Q8_0: each 32 elements of a head are bytes that share one IEEE half as their scale. Heads must be whole
    /// groups of 32.
    Q8_0,
    /// 8-bit floats (E4M3, as `float8_e4m3fn`) without a scale: numbers beyond 448 become 448.
    Fp8,
}

impl KvType {
    /// Every type.
    pub const ALL: &[KvType] = &[KvType::F16, KvType::Q8_0, KvType::Fp8];

    /// The name in settings and reports.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::Q8_0 => "q8_0",
            KvType::Fp8 => "fp8",
        }
    }

    /// Elements of a head that are stored together; a head must be whole groups of them.
    #[inline]
    pub const fn group(self) -> usize {
        match self {
            KvType::F16 | KvType::Fp8 => 1,
            KvType::Q8_0 => 32,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvType {
    type Err = String;

    /// Parses a [`KvType::name`]; the error lists the valid names.
    fn from_str(name: &str) -> Result<KvType, String> {
        KvType::ALL.iter().copied().find(|kv_type| kv_type.name() == name).ok_or_else(|| {
            let names: Vec<&str> = KvType::ALL.iter().map(|kv_type| kv_type.name()).collect();
            format!("there is no KV cache type {name:?}; there are {}", names.join(", "))
        })
    }
}
