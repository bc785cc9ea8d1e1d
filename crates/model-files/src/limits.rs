//! Bounds of what readers of model files accept.

/// Vocabulary entries of a tokenizer, and rows of an output head. XLM-V has 901,629, Gemma 3 262,144.
pub const VOCAB_MAX: usize = 2 << 20;
const _: () = assert!(VOCAB_MAX <= hanzo_engine_ops::sampling::SAMPLED_VOCAB_MAX);
/// Tensors of a model.
pub const TENSORS_MAX: usize = 1 << 18;
/// Bytes of a safetensors file's header.
pub const SAFETENSORS_HEADER_BYTES_MAX: u64 = 64 << 20;
/// Values of such a header, names included: a dozen per tensor.
pub const SAFETENSORS_VALUES_MAX: usize = 12 * TENSORS_MAX;
/// Bytes of a pickle of weights: enough for the names and shapes of some 20,000 tensors.
pub const PICKLE_BYTES_MAX: usize = 4 << 20;
/// Tuples, lists, dictionaries, storages and tensors that a pickle creates; a tensor takes seven.
pub const PICKLE_OBJECTS_MAX: usize = 1 << 19;
/// Values that a pickle puts into its containers, on its stack or into its memo; a tensor takes some 60.
pub const PICKLE_VALUES_MAX: usize = 4 << 20;
/// Nodes of an ONNX file's graph. Text-to-speech models have some 5,000.
pub const ONNX_NODES_MAX: usize = 1 << 18;
/// Total bytes of PyTorch tensors that are not contiguous. BERT-large takes 1.3 GB.
pub const GATHERED_BYTES_MAX: usize = 2 << 30;
/// Bytes of all keys, values and tensor names of a GGUF file. Gemma 3's have 15 MB.
pub const GGUF_HEADER_BYTES_MAX: usize = 256 << 20;
/// Strings and arrays in all values of a GGUF file. Gemma 3's has 780,000.
pub const GGUF_TEXTS_MAX: usize = 4 << 20;
/// Keys of a GGUF file.
pub const GGUF_KEYS_MAX: usize = 1 << 16;
/// Bytes of a GGUF header string.
pub const GGUF_STRING_BYTES_MAX: usize = 64 << 20;
/// Elements of a GGUF array.
pub const GGUF_ARRAY_MAX: usize = 16 << 20;
/// Arrays inside arrays of a GGUF file.
pub const GGUF_ARRAY_DEPTH_MAX: usize = 4;
/// Bytes of a GGUF key or tensor name.
pub const GGUF_NAME_BYTES_MAX: usize = 65_535;
/// Alignment of a GGUF file's tensors, in bytes.
pub const GGUF_ALIGNMENT_MAX: u64 = 1 << 20;
/// Dimensions of a tensor.
pub const TENSOR_DIMENSIONS_MAX: usize = 4;
/// Dimensions of a tensor of a safetensors file: convolutions over time, height and width have five.
pub const SAFETENSORS_DIMENSIONS_MAX: usize = 6;
/// Files of a split model.
pub const MODEL_PARTS_MAX: usize = 4096;
/// Characters that are shown of one part of an error.
pub const ERROR_PART_CHARS_MAX: usize = 1000;
