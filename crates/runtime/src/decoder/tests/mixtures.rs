//! Mixtures of experts and latent attention against the transformers library (tests/data/mixtures/make_mixtures.py says
//! how its numbers were made).

use hanzo_engine_kernels::AnyBackend;
use hanzo_engine_kernels::KvType;

use super::*;

/// Folders, and whether there is a GGUF file besides.
const MIXTURES: &[(&str, bool)] = &[
    ("deepseek-v2-lite", true),
    ("deepseek-v2", false),
    ("deepseek-v3", true),
    ("gpt-oss", true),
    ("qwen2-moe", true),
    ("glm4-moe", true),
    ("dots1", true),
    ("olmoe", true),
    ("flex-olmo", false),
    ("granite-moe", false),
    ("granite-moe-shared", true),
    ("ernie4_5-moe", true),
    ("minimax-m2", true),
    ("glm4-moe-lite", true),
    ("solar-open", true),
    ("exaone-moe", true),
    ("hunyuan-moe", true),
    ("afmoe", true),
    ("phimoe", true),
    ("cohere2-moe", true),
    ("cohere2-moe-sum", false),
    ("deepseek", true),
    ("bailing-moe", true),
    ("bailing-moe-v2", true),
    ("llama4", false),
    ("llama4-long", true),
    ("llama4-plain", false),
];

fn golden(case: &str) -> Golden {
    Golden::read(&data("mixtures").join(case))
}

fn files() -> impl Iterator<Item = (&'static str, PathBuf)> {
    MIXTURES.iter().flat_map(|&(case, in_gguf)| {
        let folder = data("mixtures").join(case);
        let gguf = in_gguf.then(|| folder.join("model.gguf"));
        [folder].into_iter().chain(gguf).map(move |path| (case, path))
    })
}

fn fastest() -> AnyBackend {
    let tier = Tier::available().last().expect("the portable tier always is");
    AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier))
}

#[test]
fn mixtures_compute_what_the_library_does() {
    measured::check_kind("mixtures", MIXTURES);
}

#[test]
fn mixtures_have_the_same_bits_however_a_batch_is_made() {
    for (case, path) in files() {
        let files = ModelFiles::open(&path).unwrap();
        let mut runner = Runner::new(fastest(), &files);
        let text = golden(case).text();
        let whole = runner.prefill(&text);
        let vocab = files.spec.vocab;
        // Two unequal sequences together, the first of which goes on where a chunk ended.
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

#[test]
fn latents_are_kept_in_bytes_too_and_planned_to_the_byte() {
    for case in ["deepseek-v2-lite", "deepseek-v3"] {
        let golden = golden(case);
        let files = ModelFiles::open(&data("mixtures").join(case)).unwrap();
        let mut runner = Runner::new(fastest(), &files);
        let of = |blocks| files.spec.kv_spec(blocks, KvType::Q8_0, 2);
        assert_eq!(
            runner.backend.kv_bytes(&of(10)),
            files.spec.layers.len() * 10 * BLOCK_TOKENS * (64 + 2 * 2)
        );
        runner.kv = runner.backend.kv(&of(BLOCKS)).unwrap();
        let off = largest_difference(&runner.prefill(&golden.text()), &golden.logits);
        assert!(off <= 1e-1 * range(&golden.logits), "{case}: logits differ by {off}");
        assert!(off > 1e-5 * range(&golden.logits), "{case}: nothing was rounded");
    }
}
