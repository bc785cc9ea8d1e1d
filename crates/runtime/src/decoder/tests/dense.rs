//! Dense families against the transformers library (tests/data/dense/make_dense.py says how its numbers were made).

use super::*;

/// Folders, and whether there is a GGUF file besides.
const DENSE: &[(&str, bool)] = &[
    ("gemma", true),
    ("gemma2", true),
    ("gemma3", true),
    ("gemma3n", true),
    ("gemma4", true),
    ("gemma4-e", true),
    ("gemma4-moe", true),
    ("phi3", true),
    ("phi3-long", true),
    ("olmo2", true),
    ("olmo3", false),
    ("granite", true),
    ("glm", false),
    ("glm4", true),
    ("cohere", true),
    ("cohere2", true),
    ("smollm3", true),
    ("starcoder2", true),
    ("stablelm", true),
    ("stablelm-parallel", true),
    ("stablelm-heads", true),
    ("seed-oss", true),
    ("apertus", true),
    ("ernie4_5", true),
    ("exaone4", true),
    ("gpt-neox", true),
    ("gpt-neox-sequential", true),
    ("falcon", true),
    ("falcon-grouped", true),
    ("falcon-apart", true),
    ("gpt2", true),
    ("gpt-bigcode", true),
    ("gpt-bigcode-heads", false),
    ("opt", false),
    ("bloom", true),
    ("mpt", true),
    ("phi", true),
    ("phi-fused", true),
    ("gptj", false),
    ("cohere-plus", true),
    ("nemotron", true),
    ("arcee", true),
    ("olmo", true),
    ("hunyuan-dense", true),
    ("helium", false),
    ("internlm2", true),
    ("internlm3", false),
    ("chatglm", true),
    ("qwen", true),
    ("baichuan", true),
    ("baichuan-alibi", true),
    ("orion", true),
    ("xverse", true),
    ("exaone", true),
    ("minicpm", true),
    ("minicpm3", true),
];

fn golden(case: &str) -> Golden {
    Golden::read(&data("dense").join(case))
}

fn files() -> impl Iterator<Item = (&'static str, PathBuf)> {
    DENSE.iter().flat_map(|&(case, in_gguf)| {
        let folder = data("dense").join(case);
        let gguf = in_gguf.then(|| folder.join("model.gguf"));
        [folder].into_iter().chain(gguf).map(move |path| (case, path))
    })
}

fn fastest() -> AnyBackend {
    let tier = Tier::available().last().expect("the portable tier always is");
    AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier))
}

#[test]
fn dense_families_compute_what_the_library_does() {
    measured::check_kind("dense", DENSE);
}

#[test]
fn dense_families_have_the_same_bits_however_a_batch_is_made() {
    for (case, path) in files() {
        let files = ModelFiles::open(&path).unwrap();
        let mut runner = Runner::new(fastest(), &files);
        let text = golden(case).text();
        let whole = runner.prefill(&text);
        let vocab = files.spec.vocab;
        let (blocks, others) = (scattered(1), scattered(0));
        runner.step(&[Work { tokens: &text[..19], rows: 19, blocks: &blocks }]);
        let both = runner.step(&[
            Work { tokens: &text[..20], rows: 1, blocks: &blocks },
            Work { tokens: &text[..33], rows: 33, blocks: &others },
        ]);
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        assert!(bits(&both[..vocab]) == bits(&whole[19 * vocab..20 * vocab]), "{}: a decode", path.display());
        assert!(bits(&both[vocab..]) == bits(&whole[..33 * vocab]), "{}: a prompt beside it", path.display());
    }
}

/// docs/reference/models.md lists what is compared, and nothing else.
#[test]
fn the_list_of_models_is_what_is_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let text = fs::read_to_string(root.join("docs/reference/models.md")).unwrap();
    let folders = ["dense/", "mixtures/", "multimodal/", "states/", "tiny/"];
    let is_case = |word: &&str| folders.iter().any(|folder| word.starts_with(folder));
    let listed: Vec<&str> = text.split('`').filter(is_case).collect();
    let mut tested: Vec<String> = Vec::new();
    for (kind, skipped) in [
        ("dense", &["make_dense.py", "make_gemma.py"][..]),
        ("mixtures", &["make_mixtures.py"]),
        ("multimodal", &["make_multimodal.py"]),
        ("states", &["make_states.py"]),
        ("tiny", &[]),
    ] {
        for entry in fs::read_dir(data(kind)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !skipped.contains(&name.as_str()) {
                tested.push(format!("{kind}/{name}"));
            }
        }
    }
    let of_dense: Vec<String> = DENSE.iter().map(|(case, _)| format!("dense/{case}")).collect();
    assert!(tested.iter().all(|name| !name.starts_with("dense/") || of_dense.contains(name)), "{tested:?}");
    for name in &tested {
        assert!(listed.contains(&name.as_str()), "docs/reference/models.md does not list {name}");
    }
    for name in listed {
        assert!(
            tested.iter().any(|tested| tested == name),
            "docs/reference/models.md lists {name}, which is not tested"
        );
    }
}
