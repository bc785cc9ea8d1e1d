//! Rotary embeddings that depend on the length of a text, against the transformers library (tests/data/longrope/make_longrope.py
//! says how its numbers were made).

use super::*;

/// Folders, and whether texts beyond the original context have frequencies of their own.
const LENGTHS: &[(&str, bool)] = &[
    ("phi3", true),
    ("phi4-mini", true),
    ("phi3-factor", true),
    ("phimoe", true),
    ("minicpm3", true),
    ("llama", true),
    ("llama-dynamic", false),
    ("qwen3-dynamic", false),
];

/// Keys are large here, and the cache rounds them to F16. Frequencies of the other length are wrong by tenths.
const ROUNDED: f32 = 4e-3;

/// What the library computed of two texts.
struct Lengths {
    short: (Vec<u32>, Vec<f32>),
    long: (Vec<u32>, Vec<f32>),
}

impl Lengths {
    fn read(folder: &Path) -> Lengths {
        let bytes = fs::read(folder.join("golden.safetensors")).unwrap();
        let tensors = crate::safetensors::parse("golden", &bytes.into()).unwrap();
        let by_name = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap();
        let tokens = |name: &str| {
            by_name(name).bytes.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect()
        };
        let of = |name: &str| (tokens(name), by_name(&format!("{name}_logits")).to_f32().unwrap());
        Lengths { short: of("short"), long: of("long") }
    }
}

/// Logits of the last rows differ by less than a share of their range.
fn near(what: &str, found: &[f32], golden: &[f32], share: f32) {
    let found = largest_difference(&found[found.len() - golden.len()..], golden);
    println!("{what}: {found:.2e} of {:.2e}", range(golden));
    assert!(found <= share * range(golden), "{what}: logits differ by {found}");
}

#[test]
fn texts_of_either_length_compute_what_the_library_does() {
    for &(case, long) in LENGTHS {
        let folder = data("longrope").join(case);
        let (files, golden) = (ModelFiles::open(&folder).unwrap(), Lengths::read(&folder));
        assert_eq!(files.spec.long_after(), long.then_some(16), "{case}");
        let mut reference = Runner::new(AnyBackend::new(ReferenceBackend::new()), &files);
        let mut cpu = Runner::new(cpu(), &files);
        for (length, (text, logits)) in [("short", &golden.short), ("long", &golden.long)] {
            near(&format!("{case}, {length}"), &reference.prefill(text), logits, ROUNDED);
            near(&format!("{case}, {length}, on the processor"), &cpu.prefill(text), logits, 3e-2);
        }
    }
}

#[test]
fn texts_of_both_lengths_in_one_step_have_the_bits_of_each_alone() {
    for &(case, _) in LENGTHS {
        let folder = data("longrope").join(case);
        let (files, golden) = (ModelFiles::open(&folder).unwrap(), Lengths::read(&folder));
        let mut runner = Runner::new(cpu(), &files);
        let (short, long) = (&golden.short.0, &golden.long.0);
        let alone = [runner.prefill(short), runner.prefill(long)].concat();
        let (blocks, others) = (scattered(1), scattered(0));
        let both = runner.step(&[
            Work { tokens: short, rows: short.len(), blocks: &blocks },
            Work { tokens: long, rows: long.len(), blocks: &others },
        ]);
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        assert!(bits(&both) == bits(&alone), "{case}");
    }
}

/// A GGUF file has both tables too, and a description that is the same.
#[test]
fn files_of_either_format_have_both_tables() {
    let folder = data("dense").join("phi3-long");
    let [own, gguf] =
        [folder.clone(), folder.join("model.gguf")].map(|path| ModelFiles::open(&path).unwrap());
    assert_eq!(own.spec.long_after(), Some(16));
    assert_eq!(own.spec.ropes[0].tables(), gguf.spec.ropes[0].tables());
    let text = &Golden::read(&folder).text()[..12];
    let logits =
        [&own, &gguf].map(|files| Runner::new(AnyBackend::new(ReferenceBackend::new()), files).prefill(text));
    near("phi3-long as GGUF, short", &logits[1], &logits[0], TOLERANCE);
    let converted = crate::convert::gguf_of(&data("longrope").join("llama")).unwrap();
    assert_eq!(crate::spec::from_gguf(&converted, []).unwrap().long_after(), Some(16));
}

fn cpu() -> AnyBackend {
    let tier = Tier::available().last().expect("the portable tier always is");
    AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier))
}
