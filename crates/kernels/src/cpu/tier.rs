//! Instruction set of the kernels, chosen when the process starts.

use std::fmt;

use hanzo_engine_ops::KernelError;

/// Environment variable that forces a tier.
pub const TIER_VARIABLE: &str = "HANZO_ENGINE_CPU_TIER";

/// Instruction set that the kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Plain Rust, any processor.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX2 and the int8 dot product of AVX-VNNI.
    AvxVnni,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with its int8 dot product.
    Avx512Vnni,
    /// AVX-512 with int8 dot product, and matrix products by AMX, on Linux only. Integer products of many rows have
    /// the same results. Float products of any number of rows, and attention inside sequences, have different results
    /// from other tiers.
    Amx,
    /// Arm NEON.
    Neon,
    /// NEON and its int8 dot product.
    NeonDot,
    /// NEON, its int8 dot product and, for products of many rows, its int8 matrix product; with the same results.
    NeonI8mm,
}

impl Tier {
    /// Every tier, slowest first.
    pub const ALL: &[Tier] = &[
        Tier::Portable,
        Tier::Neon,
        Tier::NeonDot,
        Tier::NeonI8mm,
        Tier::Avx2,
        Tier::AvxVnni,
        Tier::Avx512,
        Tier::Avx512Vnni,
        Tier::Amx,
    ];

    /// The name in `HANZO_ENGINE_CPU_TIER` and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Tier::Portable => "portable",
            Tier::Avx2 => "avx2",
            Tier::AvxVnni => "avxvnni",
            Tier::Avx512 => "avx512",
            Tier::Avx512Vnni => "avx512vnni",
            Tier::Amx => "amx",
            Tier::Neon => "neon",
            Tier::NeonDot => "neondot",
            Tier::NeonI8mm => "neoni8mm",
        }
    }

    /// Whether this processor has the instructions.
    pub fn is_available(self) -> bool {
        match self {
            Tier::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Tier::AvxVnni => Tier::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => {
                Tier::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512Vnni => Tier::Avx512.is_available() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Tier::Amx => Tier::Avx512Vnni.is_available() && super::amx::is_available(),
            #[cfg(target_arch = "aarch64")]
            Tier::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Tier::NeonDot => Tier::Neon.is_available() && std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Tier::NeonI8mm => Tier::NeonDot.is_available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// The tiers this processor has, slowest first.
    pub fn available() -> impl Iterator<Item = Tier> {
        Tier::ALL.iter().copied().filter(|tier| tier.is_available())
    }

    /// The fastest tier that this processor has, or the tier named by `HANZO_ENGINE_CPU_TIER`. An unknown or
    /// unavailable name is an error that lists the available tiers.
    pub fn detect() -> Result<Tier, KernelError> {
        match std::env::var(TIER_VARIABLE) {
            Ok(name) => Tier::named(&name),
            Err(std::env::VarError::NotPresent) => Ok(Tier::available().last().unwrap_or(Tier::Portable)),
            Err(std::env::VarError::NotUnicode(name)) => Tier::named(&name.to_string_lossy()),
        }
    }

    fn named(name: &str) -> Result<Tier, KernelError> {
        Tier::available().find(|tier| tier.name() == name).ok_or_else(|| {
            let available: Vec<&str> = Tier::available().map(Tier::name).collect();
            KernelError::Device {
                device: "cpu".into(),
                reason: format!(
                    "{TIER_VARIABLE} is {name:?}, which this processor does not have or nobody knows; available: {}",
                    available.join(", ")
                ),
            }
        })
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_available_are_errors_that_list_those_that_are() {
        for tier in Tier::available() {
            assert_eq!(Tier::named(tier.name()), Ok(tier));
        }
        for name in ["", "AVX2", "sse9", if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" }] {
            let message = Tier::named(name).expect_err("not a tier here").to_string();
            assert!(message.contains("portable") && message.contains(TIER_VARIABLE), "{message}");
        }
    }
}
