//! Quantised checkpoints against what their own libraries make of them (tests/data/formats/make_formats.py says how).

use super::*;

/// Folders, the type that most matrices have once they are put together, and whether nothing is lost in it.
const FORMATS: &[(&str, &str, bool)] = &[
    ("mlx-4", "AFQ4", true),
    ("mlx-mixed", "AFQ8_G32", true),
    ("mlx-mxfp4", "MXFP4", true),
    ("mlx-mxfp8", "FP8_G32", true),
    ("mlx-nvfp4", "BF16", false),
    ("compressed-mxfp8", "FP8_G32", true),
    ("modelopt-mxfp8", "FP8_G32", true),
    ("fp8-exponents", "FP8_G32", true),
    ("round-fp8-block", "FP8_G32", true),
    ("gptq-2", "AFQ2_G32", true),
    ("gptq-3", "AFQ3", true),
    ("gptq-4", "AFQ4_G32", true),
    ("gptq-8", "AFQ8", true),
    ("gptq-order", "F16", false),
    ("awq-gemm", "AFQ4_G32", true),
    ("awq-gemv", "AFQ4_G32", true),
    ("compressed-3", "AFQ3_G32", true),
    ("compressed-4", "AFQ4_G32", true),
    ("compressed-int8", "AFQ8", true),
    ("compressed-mxfp4", "MXFP4", true),
    ("compressed-nvfp4", "BF16", false),
    ("compressed-fp8", "FP8_G32", true),
    ("fp8-blocks", "BF16", false), // its scales are of 48 columns each
    ("fp8-tensor", "FP8_G32", true),
    ("fp8-e5m2", "BF16", false),
    ("modelopt-nvfp4", "BF16", false),
    ("bnb-nf4", "BF16", false),
    ("bnb-fp4", "BF16", false),
    ("bnb-int8", "AFQ8", true),
    ("gptq-modules", "AFQ4_G32", true),
    ("gptq-marlin", "AFQ4", true),
    ("awq-gemv-fast", "AFQ4_G32", true),
    ("awq-marlin", "AFQ4_G32", true),
    ("quanto-4", "AFQ4_G32", true),
    ("quanto-8", "AFQ8", true),
    ("torchao-int4", "AFQ4_G32", true),
    ("torchao-int8", "AFQ8", true),
    ("torchao-intx", "AFQ8_G32", true),
    ("torchao-fp8", "FP8_G32", true),
    ("torchao-tiles", "AFQ4_G32", true),
    ("hqq-1", "AFQ2_G32", true),
    ("hqq-2", "AFQ2_G32", true),
    ("hqq-3", "AFQ3", true),
    ("hqq-4", "AFQ4", true),
    ("hqq-5", "AFQ5_G32", true),
    ("hqq-across", "F16", false),
];

#[test]
fn quantised_checkpoints_compute_what_their_libraries_do() {
    for &(format, dtype, exact) in FORMATS {
        let folder = data("formats").join(format);
        let files = ModelFiles::open(&folder).unwrap();
        let matrices =
            files.tensors.all().filter(|tensor| tensor.name.contains("layers") && tensor.shape.len() == 2);
        let types: Vec<&str> = matrices.map(|tensor| tensor.dtype.label()).collect();
        assert!(types.contains(&dtype) || files.info.quantization == dtype, "{format}: {types:?}");
        let told = files.info.quantization.contains(" as ");
        assert_eq!(told, !exact, "{format}: what is lost is told: {}", files.info.quantization);
        let is_nvfp4 = ["modelopt-nvfp4", "mlx-nvfp4"].contains(&format);
        assert_eq!(files.info.quantization.starts_with("NVFP4 as BF16"), is_nvfp4, "{format}");
        let bytes = fs::read(folder.join("golden.safetensors")).unwrap();
        let golden = crate::safetensors::parse("golden", &bytes.into()).unwrap();
        let by_name = |name: &str| golden.iter().find(|tensor| tensor.name == name).unwrap();
        let tokens =
            by_name("tokens").bytes.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes));
        let (tokens, logits) = (tokens.collect::<Vec<u32>>(), by_name("logits").to_f32().unwrap());
        // F16 keys and values alone make a difference of 2e-4.
        let allowed = if exact { 6e-4 } else { 4e-3 } * range(&logits);
        let found = largest_difference(
            &Runner::new(AnyBackend::new(ReferenceBackend::new()), &files).prefill(&tokens),
            &logits,
        );
        println!("{format}: {found:.2e}, allowed {allowed:.2e}, {types:?}");
        assert!(found <= allowed, "{format}: logits differ by {found}, allowed are {allowed}");
        let tier = Tier::available().last().unwrap();
        let mut runner =
            Runner::new(AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier)), &files);
        let found = largest_difference(&runner.prefill(&tokens), &logits);
        assert!(found <= 3e-2 * range(&logits), "{format} on {tier:?}: logits differ by {found}");
    }
}
