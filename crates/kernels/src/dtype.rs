//! Element types of tensors in model files: plain floats and GGML's quantised blocks, with their numbers in
//! the GGUF format (github.com/ggml-org/ggml/blob/master/docs/gguf.md).

use std::fmt;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $label:literal, $weights:literal, $bytes:literal;)*) => {
        /// How the numbers of a tensor are stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)]
        pub enum DType {
            $($(#[$doc])* $name = $id,)*
        }
        impl DType {
            /// Every type, in the order of GGUF's numbers.
            pub const ALL: &[DType] = &[$(DType::$name,)*];

            /// The type with this number in a GGUF file.
            pub fn from_ggml(id: u32) -> Option<DType> {
                match id { $($id => Some(DType::$name),)* _ => None }
            }

            /// Weights in one block; 1 for plain types.
            pub const fn block_weights(self) -> usize {
                match self { $(DType::$name => $weights,)* }
            }

            /// Bytes of one block.
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
}

impl DType {
    /// Bytes of `weights` numbers, or `None` where they are not whole blocks or the size overflows.
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
