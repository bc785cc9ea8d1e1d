//! Encoders whose matrices are quantised, against transformers with the weights that the formats' own libraries give back
//! (tests/data/formats/make_formats.py).

use super::*;

/// Folders, the type that matrices have or what is said of it, and the largest allowed difference as a share of the range.
const FORMATS: &[(&str, &str, f32)] = &[
    ("bert-gptq", "AFQ4_G32", TOLERANCE),
    ("bert-awq", "AFQ4_G32", TOLERANCE),
    ("bert-bnb-nf4", "bitsandbytes as BF16, each weight within 0.2 %", 4e-3),
    ("bert-fp8", "FP8_G32", TOLERANCE),
];

#[test]
fn quantised_encoders_compute_what_their_libraries_do() {
    for &(format, quantization, tolerance) in FORMATS {
        let folder = data("formats").join(format);
        let files = EncoderFiles::from_directory(&folder, &config_of(&folder)).unwrap();
        let is_of = |dtype: &str| files.tensors.all().any(|tensor| tensor.dtype.label() == dtype);
        assert!(files.info.quantization == quantization || is_of(quantization), "{format}: {:?}", files.info);
        let bytes = fs::read(folder.join("golden.safetensors")).unwrap();
        let stored = crate::safetensors::parse("golden", &bytes.into()).unwrap();
        let by_name = |name: &str| stored.iter().find(|tensor| tensor.name == name).unwrap();
        let tokens =
            by_name("tokens").bytes.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes));
        let text = Golden {
            tokens: tokens.collect(),
            types: Vec::new(),
            expected: by_name("hidden").to_f32().unwrap(),
            probabilities: Vec::new(),
        };
        let mut runner = Runner::new(AnyBackend::new(ReferenceBackend::new()), &files);
        let share = largest_difference(&runner.hidden(&[&text])[0], &text.expected) / range(&text.expected);
        println!("{format}: {share:e} of the range");
        assert!(share <= tolerance, "{format}: {share} of the range, allowed are {tolerance}");
        let tier = Tier::available().last().unwrap();
        let mut runner =
            Runner::new(AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier)), &files);
        let share = largest_difference(&runner.hidden(&[&text])[0], &text.expected) / range(&text.expected);
        assert!(share <= 3e-2, "{format} on {tier:?}: {share} of the range");
    }
}
