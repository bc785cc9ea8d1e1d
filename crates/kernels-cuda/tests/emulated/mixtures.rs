//! Networks with a shared expert beside routed ones: an emulated GPU computes the logits of the reference.

use std::path::Path;

use hanzo_engine_kernels_cuda::CudaBackend;
use hanzo_engine_ops::reference::ReferenceBackend;
use hanzo_engine_ops::{AnyBackend, BLOCK_TOKENS, Batch, KvType, RowSource, StepLimits};
use hanzo_engine_runtime::ModelFiles;
use hanzo_engine_runtime::decoder::Decoder;

use crate::driver::card;

const TOKENS: usize = 6;

/// Logits of a few tokens.
fn logits(mut backend: AnyBackend, case: &str) -> Vec<f32> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/mixtures").join(case);
    let files = ModelFiles::open(&folder).expect("a model of the test data");
    let spec = files.spec.clone();
    let mut decoder = Decoder::load(&backend, &files, &mut |_| ()).expect("its weights");
    let limits = StepLimits { logit_rows: TOKENS, ..spec.step_limits(TOKENS, 1, BLOCK_TOKENS) };
    decoder.prepare(&mut backend, &limits).expect("memory");
    let mut kv = backend.kv(&spec.kv_spec(1, KvType::F16, 1)).expect("memory");
    let mut batch = Batch::default();
    batch.sources.extend((3..3 + TOKENS as u32).map(RowSource::Token));
    batch.push_sequence(TOKENS, TOKENS, |_, _| 0);
    batch.logit_rows.extend(0..TOKENS as u32);
    let mut found = vec![0.0; TOKENS * spec.vocab];
    decoder.forward(&mut backend, &batch, &mut kv, &mut found).expect("a step");
    found
}

#[test]
fn shared_experts_are_added_on_a_gpu() {
    for case in ["qwen2-moe", "glm4-moe"] {
        let expected = logits(AnyBackend::new(ReferenceBackend::new()), case);
        let found = logits(AnyBackend::new(CudaBackend::new(card())), case);
        let largest = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 0.02 * largest, "{case}: {found}, not {expected}");
        }
    }
}
