//! Pipeline parallelism over CPU backends: devices that take turns op by op are right, and each counts its own.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::{
    AnyBackend, DType, KvLayout, KvSpec, KvType, MatrixShape, Pipeline, PipelineCut, Stage, conformance,
};

/// Of one turn of a pool another would wait for the end, so each has a pool of its own.
fn cpu() -> CpuBackend {
    CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::detect().expect("a tier"))
}

fn pipeline(cuts: &[PipelineCut]) -> Pipeline {
    Pipeline::new((0..=cuts.len()).map(|_| AnyBackend::new(cpu())).collect(), cuts.to_vec())
}

fn cut(layers: usize) -> PipelineCut {
    PipelineCut { layers, caches: layers, inputs: false }
}

/// Every op reads rows that another device wrote. Each device counts its own memory; all of a cache is on one.
#[test]
fn rows_are_where_they_are_read() {
    let restless = |cuts: &[PipelineCut], counted| {
        let devices = || (0..=cuts.len()).map(|_| AnyBackend::new(cpu())).collect();
        conformance::briefly(|| {
            conformance::check_decoder_ops(&|| {
                let pipeline = Pipeline::new(devices(), cuts.to_vec()).counting(counted);
                AnyBackend::of_executor(pipeline.taking_turns())
            });
        });
    };
    let caches = |caches| PipelineCut { layers: 1, caches, inputs: true };
    restless(&[caches(usize::MAX)], 0);
    restless(&[caches(0), caches(usize::MAX), caches(usize::MAX)], 1);
}

#[test]
fn each_device_counts_its_own() {
    let shape = [MatrixShape { rows: 64, cols: 64, dtype: DType::F32 }];
    let layers = vec![KvLayout::Heads { kv_heads: 1, head_dim: 32, window: None }; 5];
    let kv = KvSpec { layers, blocks: 4, kv_type: KvType::F16, ..KvSpec::default() };
    let counts = |of: Pipeline| {
        let of = AnyBackend::of_executor(of);
        let in_stage = |stage| {
            of.enter(stage);
            of.matrix_bytes(&shape)
        };
        let stages = [Stage::Inputs, Stage::Layer(1), Stage::Layer(2), Stage::Head, Stage::Everywhere];
        (stages.map(in_stage), of.kv_bytes(&kv))
    };
    let own = |cuts: &[PipelineCut], device| counts(pipeline(cuts).counting(device));
    let two = [cut(2)];
    let (one, layer) = (counts(pipeline(&two)).0[0], counts(pipeline(&two)).1 / 5);
    assert_eq!(counts(pipeline(&two)), ([one, one, one, one, 2 * one], 5 * layer));
    assert_eq!(own(&two, 0), ([0, one, 0, 0, one], 2 * layer));
    assert_eq!(own(&two, 1), ([one, 0, one, one, one], 3 * layer));
    // Layers 0 and 1, none, layer 2, and the others.
    let four = [cut(2), cut(2), cut(3)];
    assert_eq!(own(&four, 0), ([0, one, 0, 0, one], 2 * layer));
    assert_eq!(own(&four, 1), ([0; 5], 0), "who has nothing takes nothing");
    assert_eq!(own(&four, 2), ([0, 0, one, 0, one], layer));
    assert_eq!(own(&four, 3), ([one, 0, 0, one, one], 2 * layer));
    let first = four.map(|cut| PipelineCut { inputs: true, ..cut });
    assert_eq!([0, 3].map(|device| own(&first, device).0[0]), [one, 0]);
    assert_eq!(own(&[], 0), ([one; 5], 5 * layer), "one alone has everything");
}

#[test]
fn each_device_has_the_layers_that_it_should() {
    let shape = [MatrixShape { rows: 64, cols: 64, dtype: DType::F32 }];
    // Layer 0, layers 1 and 2, and the others.
    let has = |device: usize| {
        let pipeline = AnyBackend::of_executor(pipeline(&[cut(1), cut(3)]).counting(device));
        let stages = [Stage::Inputs, Stage::Head].into_iter().chain((0..5).map(Stage::Layer));
        let has = stages.map(|stage| {
            pipeline.enter(stage);
            pipeline.matrix_bytes(&shape) > 0
        });
        has.collect::<Vec<_>>()
    };
    assert_eq!(has(0), [false, false, true, false, false, false, false]);
    assert_eq!(has(1), [false, false, false, true, true, false, false]);
    assert_eq!(has(2), [true, true, false, false, false, true, true]);
}
