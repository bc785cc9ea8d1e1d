//! Tensor parallelism over CPU backends: ranks are right op by op, and each counts its own.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::{
    Allocation, AnyBackend, DType, Executor, KvLayout, KvSpec, KvType, MatrixShape, Stage, TensorParallel,
    conformance,
};

/// Of one turn of a pool another would wait for the end, so each has a pool of its own.
fn ranks(count: usize, whole: Vec<usize>) -> TensorParallel<CpuBackend> {
    let cpu = |_| CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::detect().expect("a tier"));
    TensorParallel::new((0..count).map(cpu).collect(), whole)
}

/// As one device, but for sizes, which are each rank's own: what ops need as a whole is there beside what they can divide.
#[test]
fn ranks_conform() {
    macro_rules! check {
        ($make:expr, $($check:ident)*) => {
            $(conformance::$check($make);)*
        };
    }
    let both = |count| ranks(count, Vec::new()).keeping_both();
    let four = || AnyBackend::of_executor(both(4));
    let make = || AnyBackend::of_executor(both(2));
    // Norms of all heads as one are of caches that no rank has a part of.
    let undivided = || AnyBackend::of_executor(ranks(2, (0..64).collect()).keeping_both());
    conformance::briefly(|| {
        conformance::check_decoder(&four);
        conformance::check_rope_to_cache(&undivided);
        conformance::check_attention(&undivided);
        check!(
            &make,
            check_pack check_transfers check_steps check_embed check_rms_norm check_add_rms_norm
            check_matmul check_mixed_matrix check_matmul_invariance check_matmul_activated
            check_add_bias check_row_op check_streams check_layer_norm check_add_layer_norm
            check_layer_norm_columns check_add_embedding check_gated_mlp check_gate
            check_low_rank check_adapted_logits check_moe check_moe_choice check_moe_invariance check_moe_routing
            check_add_shared check_logits check_sample check_row_sources check_running_ahead
            check_rope_to_cache_axes check_attention
            check_attention_invariance check_attention_long_contexts check_heads_matmul
            check_latent_attention check_states check_gate_output check_decoder
        );
    });
}

#[test]
fn each_rank_counts_its_own() {
    let shape = |rows| [MatrixShape { rows, cols: 64, dtype: DType::F32 }];
    let layers = [4, 3].map(|kv_heads| KvLayout::Heads { kv_heads, head_dim: 32, window: None });
    let kv = KvSpec { layers: layers.to_vec(), blocks: 4, kv_type: KvType::F16, ..KvSpec::default() };
    let one = ranks(1, Vec::new());
    let bytes = |of: &TensorParallel<CpuBackend>, stage, rows| {
        of.enter(stage);
        of.bytes(&Allocation::Matrix(&shape(rows)))
    };
    let kv_bytes = |of: &TensorParallel<CpuBackend>, kv: &KvSpec| of.bytes(&Allocation::Kv(kv));
    let kv_of = |layer: usize| kv_bytes(&one, &KvSpec { layers: vec![layers[layer]], ..kv.clone() });
    for rank in 0..2 {
        let two = ranks(2, Vec::new()).counting(rank);
        assert_eq!(bytes(&two, Stage::Layer(3), 64), bytes(&one, Stage::Layer(3), 32));
        assert_eq!(bytes(&two, Stage::Layer(3), 72), bytes(&one, Stage::Layer(3), 72), "no whole tiles");
        assert_eq!(bytes(&two, Stage::Undivided(3), 64), bytes(&one, Stage::Layer(3), 64));
        for stage in [Stage::Inputs, Stage::Head] {
            let alone = if rank == 0 { bytes(&one, stage, 64) } else { 0 };
            assert_eq!(bytes(&two, stage, 64), alone);
        }
        // Four heads are divided, three are not.
        assert_eq!(kv_bytes(&two, &kv), kv_of(0) / 2 + kv_of(1));
        let whole = ranks(2, vec![0]).counting(rank);
        assert_eq!(kv_bytes(&whole, &kv), kv_of(0) + kv_of(1));
    }
}
