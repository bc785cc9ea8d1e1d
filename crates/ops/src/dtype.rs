//! Element types of tensors in model files. Plain floats and GGML's quantised blocks have their numbers in the GGUF
//! format (github.com/ggml-org/ggml/blob/master/docs/gguf.md). Additional blocks, into which the formats of
//! safetensors checkpoints are converted at load time, have numbers that no GGUF file uses.

use std::fmt;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $label:literal, $weights:literal, $bytes:literal;)*) => {
        /// Storage format of a tensor's numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)]
        pub enum DType {
            $($(#[$doc])* $name = $id,)*
        }
        impl DType {
            /// Every type, in the order of numbers: GGUF's, then the additional ones.
            pub const ALL: &[DType] = &[$(DType::$name,)*];

            /// The type with this number in a GGUF file.
            pub fn from_ggml(id: u32) -> Option<DType> {
                match id {
                    $($id if id < OWN_IDS => Some(DType::$name),)*
                    _ => None,
                }
            }

            /// Weights in one block; 1 for plain types.
            #[inline]
            pub const fn block_weights(self) -> usize {
                match self { $(DType::$name => $weights,)* }
            }

            /// Bytes of one block.
            #[inline]
            pub const fn block_bytes(self) -> usize {
                match self { $(DType::$name => $bytes,)* }
            }

            /// The name users know, such as `Q4_K`.
            pub const fn label(self) -> &'static str {
                match self { $(DType::$name => $label,)* }
            }
        }
    };
}

dtypes! {
    /// 32-bit float.
    F32 = 0, "F32", 1, 4;
    /// IEEE half.
    F16 = 1, "F16", 1, 2;
    /// 4 bits, scale.
    Q4_0 = 2, "Q4_0", 32, 18;
    /// 4 bits, scale and minimum.
    Q4_1 = 3, "Q4_1", 32, 20;
    /// 5 bits, scale.
    Q5_0 = 6, "Q5_0", 32, 22;
    /// 5 bits, scale and minimum.
    Q5_1 = 7, "Q5_1", 32, 24;
    /// 8 bits, scale.
    Q8_0 = 8, "Q8_0", 32, 34;
    /// 8 bits, scale and sum.
    Q8_1 = 9, "Q8_1", 32, 36;
    /// K-quant, 2 bits.
    Q2_K = 10, "Q2_K", 256, 84;
    /// K-quant, 3 bits.
    Q3_K = 11, "Q3_K", 256, 110;
    /// K-quant, 4 bits.
    Q4_K = 12, "Q4_K", 256, 144;
    /// K-quant, 5 bits.
    Q5_K = 13, "Q5_K", 256, 176;
    /// K-quant, 6 bits.
    Q6_K = 14, "Q6_K", 256, 210;
    /// K-quant, 8 bits, activations only.
    Q8_K = 15, "Q8_K", 256, 292;
    /// Codebook, 2.06 bits.
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    /// Codebook, 2.31 bits.
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    /// Codebook, 3.06 bits.
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    /// Codebook, 1.56 bits.
    IQ1_S = 19, "IQ1_S", 256, 50;
    /// 4 bits, non-linear.
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    /// Codebook, 3.44 bits.
    IQ3_S = 21, "IQ3_S", 256, 110;
    /// Codebook, 2.5 bits.
    IQ2_S = 22, "IQ2_S", 256, 82;
    /// 4.25 bits, non-linear.
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    /// 8-bit integer.
    I8 = 24, "I8", 1, 1;
    /// 16-bit integer.
    I16 = 25, "I16", 1, 2;
    /// 32-bit integer.
    I32 = 26, "I32", 1, 4;
    /// 64-bit integer.
    I64 = 27, "I64", 1, 8;
    /// 64-bit float.
    F64 = 28, "F64", 1, 8;
    /// Codebook, 1.75 bits.
    IQ1_M = 29, "IQ1_M", 256, 56;
    /// bfloat16.
    BF16 = 30, "BF16", 1, 2;
    /// Ternary, 1.69 bits.
    TQ1_0 = 34, "TQ1_0", 256, 54;
    /// Ternary, 2.06 bits.
    TQ2_0 = 35, "TQ2_0", 256, 66;
    /// Microscaling float, 4.25 bits.
    MXFP4 = 39, "MXFP4", 32, 17;
    /// 4-bit floats with an 8-bit float for each 16, 4.5 bits.
    NVFP4 = 40, "NVFP4", 64, 36;
    /// Signs and a scale, 1.125 bits.
    Q1_0 = 41, "Q1_0", 128, 18;
    /// 2 bits, scale, 2.25 bits.
    Q2_0 = 42, "Q2_0", 64, 18;
    /// Affine, 2 bits, groups of 32: see [`DType::affine`].
    AFQ2_G32 = 1025, "AFQ2_G32", 32, 16;
    /// Affine, 2 bits, groups of 64: see [`DType::affine`].
    AFQ2_G64 = 1026, "AFQ2", 64, 24;
    /// Affine, 2 bits, groups of 128: see [`DType::affine`].
    AFQ2_G128 = 1027, "AFQ2_G128", 128, 40;
    /// Affine, 3 bits, groups of 32: see [`DType::affine`].
    AFQ3_G32 = 1035, "AFQ3_G32", 32, 20;
    /// Affine, 3 bits, groups of 64: see [`DType::affine`].
    AFQ3_G64 = 1036, "AFQ3", 64, 32;
    /// Affine, 3 bits, groups of 128: see [`DType::affine`].
    AFQ3_G128 = 1037, "AFQ3_G128", 128, 56;
    /// Affine, 4 bits, groups of 32: see [`DType::affine`].
    AFQ4_G32 = 1045, "AFQ4_G32", 32, 24;
    /// Affine, 4 bits, groups of 64: see [`DType::affine`].
    AFQ4_G64 = 1046, "AFQ4", 64, 40;
    /// Affine, 4 bits, groups of 128: see [`DType::affine`].
    AFQ4_G128 = 1047, "AFQ4_G128", 128, 72;
    /// Affine, 5 bits, groups of 32: see [`DType::affine`].
    AFQ5_G32 = 1055, "AFQ5_G32", 32, 28;
    /// Affine, 5 bits, groups of 64: see [`DType::affine`].
    AFQ5_G64 = 1056, "AFQ5", 64, 48;
    /// Affine, 5 bits, groups of 128: see [`DType::affine`].
    AFQ5_G128 = 1057, "AFQ5_G128", 128, 88;
    /// Affine, 6 bits, groups of 32: see [`DType::affine`].
    AFQ6_G32 = 1065, "AFQ6_G32", 32, 32;
    /// Affine, 6 bits, groups of 64: see [`DType::affine`].
    AFQ6_G64 = 1066, "AFQ6", 64, 56;
    /// Affine, 6 bits, groups of 128: see [`DType::affine`].
    AFQ6_G128 = 1067, "AFQ6_G128", 128, 104;
    /// Affine, 8 bits, groups of 32: see [`DType::affine`].
    AFQ8_G32 = 1085, "AFQ8_G32", 32, 40;
    /// Affine, 8 bits, groups of 64: see [`DType::affine`].
    AFQ8_G64 = 1086, "AFQ8", 64, 72;
    /// Affine, 8 bits, groups of 128: see [`DType::affine`].
    AFQ8_G128 = 1087, "AFQ8_G128", 128, 136;
    /// 8-bit unsigned integer, of safetensors.
    U8 = 1101, "U8", 1, 1;
    /// 32-bit unsigned integer, of safetensors.
    U32 = 1102, "U32", 1, 4;
    /// 8-bit float with 4 bits of exponent, of safetensors.
    F8_E4M3 = 1103, "F8_E4M3", 1, 1;
    /// 8-bit float with 5 bits of exponent, of safetensors.
    F8_E5M2 = 1104, "F8_E5M2", 1, 1;
    /// A power of two in 8 bits, of safetensors.
    F8_E8M0 = 1105, "F8_E8M0", 1, 1;
    /// 8-bit floats, a scale for each 128: see [`DType::is_fp8`].
    FP8 = 1106, "FP8", 128, 132;
    /// 8-bit floats, a scale for each 32: see [`DType::is_fp8`].
    FP8_G32 = 1107, "FP8_G32", 32, 36;
}

/// First number that GGUF does not use.
const OWN_IDS: u32 = 1000;

/// The affine types by bits, with groups of 32, 64 and 128.
const AFFINE: [(u32, [DType; 3]); 6] = [
    (2, [DType::AFQ2_G32, DType::AFQ2_G64, DType::AFQ2_G128]),
    (3, [DType::AFQ3_G32, DType::AFQ3_G64, DType::AFQ3_G128]),
    (4, [DType::AFQ4_G32, DType::AFQ4_G64, DType::AFQ4_G128]),
    (5, [DType::AFQ5_G32, DType::AFQ5_G64, DType::AFQ5_G128]),
    (6, [DType::AFQ6_G32, DType::AFQ6_G64, DType::AFQ6_G128]),
    (8, [DType::AFQ8_G32, DType::AFQ8_G64, DType::AFQ8_G128]),
];

impl DType {
    /// Bits of a code and weights of a group, for the affine types (AFQ): `w = scale * q + bias`, q from 0 to 2^bits
    /// - 1.
    ///
    /// A block is a group: `scale f32, bias f32`, then the codes as one string of bits, lowest first, with the first
    /// code in the lowest bits of the first byte. This is the order of MLX's packed words, so a group's codes are the
    /// bytes that MLX stores. Scales and biases are f32 because that holds every format of the kind without loss: f16
    /// and bfloat16 of MLX, and the products of an f16 scale and a zero point of GPTQ and AWQ.
    #[inline]
    pub const fn affine(self) -> Option<(u32, usize)> {
        let id = self as u32;
        if id < OWN_IDS || id > DType::AFQ8_G128 as u32 {
            return None;
        }
        Some(((id - OWN_IDS) / 10, self.block_weights()))
    }

    /// The affine type with codes of so many bits and groups of so many weights.
    pub fn of_affine(bits: u32, group: usize) -> Option<DType> {
        let (_, of_groups) = AFFINE.iter().find(|(of_bits, _)| *of_bits == bits)?;
        of_groups.iter().copied().find(|dtype| dtype.block_weights() == group)
    }

    /// Whether this is a type of 8-bit float blocks: `w = scale * float`.
    ///
    /// A block is `scale f32`, then one byte for each weight: a float with 4 bits of exponent and 3 of mantissa
    /// (E4M3, no infinities). Checkpoints with one scale for each matrix, row or block of 128 by 128 convert to such
    /// blocks without loss, because each byte and each scale stays as it is.
    #[inline]
    pub const fn is_fp8(self) -> bool {
        matches!(self, DType::FP8 | DType::FP8_G32)
    }

    /// The 8-bit float type whose block size divides both the row length `cols` and the number of weights in a row
    /// that share a scale.
    pub fn of_fp8(cols: usize, shared: usize) -> Option<DType> {
        let whole = |dtype: &DType| {
            cols.is_multiple_of(dtype.block_weights()) && shared.is_multiple_of(dtype.block_weights())
        };
        [DType::FP8, DType::FP8_G32].into_iter().find(whole)
    }

    /// Bytes of `weights` numbers, or `None` if they are not whole blocks or the size overflows.
    #[inline]
    pub fn bytes_of(self, weights: usize) -> Option<usize> {
        if !weights.is_multiple_of(self.block_weights()) {
            return None;
        }
        (weights / self.block_weights()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}
