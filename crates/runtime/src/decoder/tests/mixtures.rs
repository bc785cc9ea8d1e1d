//! Mixtures of experts and latent attention against the transformers library (tests/data/mixtures/make_mixtures.py says
//! how its numbers were made).

use hanzo_engine_ops::KvType;

use super::*;

#[test]
fn mixtures_compute_what_the_library_does() {
    measured::check_kind("mixtures", &goldens("mixtures"));
}

#[test]
fn mixtures_have_the_same_bits_however_a_batch_is_made() {
    measured::check_batches("mixtures");
}

#[test]
fn latents_are_kept_in_bytes_too_and_planned_to_the_byte() {
    for case in ["deepseek-v2-lite", "deepseek-v3"] {
        let golden = Golden::read(&data("mixtures").join(case));
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
