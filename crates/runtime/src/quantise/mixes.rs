//! Mixes of types under llama.cpp's names: the type of most matrices, and the file type.

use hanzo_engine_ops::DType;

/// Quantisation target of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Usual name.
    pub name: &'static str,
    /// `general.file_type`.
    pub file_type: u32,
    /// Type of most matrices.
    pub base: DType,
}

const fn mix(name: &'static str, file_type: u32, base: DType) -> Mix {
    Mix { name, file_type, base }
}

/// Every mix, smallest first.
pub const MIXES: [Mix; 22] = [
    mix("TQ1_0", 36, DType::TQ1_0),
    mix("TQ2_0", 37, DType::TQ2_0),
    mix("Q2_K", 10, DType::Q2_K),
    mix("Q3_K_S", 11, DType::Q3_K),
    mix("Q3_K_M", 12, DType::Q3_K),
    mix("Q3_K_L", 13, DType::Q3_K),
    mix("IQ4_XS", 30, DType::IQ4_XS),
    mix("MXFP4_MOE", 38, DType::MXFP4),
    mix("IQ4_NL", 25, DType::IQ4_NL),
    mix("Q4_0", 2, DType::Q4_0),
    mix("Q4_K_S", 14, DType::Q4_K),
    mix("Q4_K_M", 15, DType::Q4_K),
    mix("Q4_1", 3, DType::Q4_1),
    mix("Q5_0", 8, DType::Q5_0),
    mix("Q5_K_S", 16, DType::Q5_K),
    mix("Q5_K_M", 17, DType::Q5_K),
    mix("Q5_1", 9, DType::Q5_1),
    mix("Q6_K", 18, DType::Q6_K),
    mix("Q8_0", 7, DType::Q8_0),
    mix("F16", 1, DType::F16),
    mix("BF16", 32, DType::BF16),
    mix("F32", 0, DType::F32),
];

impl Mix {
    /// Mix of this name, in any case. `Q3_K`, `Q4_K` and `Q5_K` mean those with `_M`.
    pub fn named(name: &str) -> Option<Mix> {
        let long = if ["Q3_K", "Q4_K", "Q5_K"].iter().any(|short| short.eq_ignore_ascii_case(name)) {
            format!("{name}_M")
        } else {
            name.to_owned()
        };
        MIXES.into_iter().find(|mix| mix.name.eq_ignore_ascii_case(&long))
    }
}
