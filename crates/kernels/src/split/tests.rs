//! A pair whose devices take turns op by op is right, each counts its own, and a part of a cache is laid out tightly.

use std::cell::Cell;
use std::sync::Arc;

use super::*;
use crate::cpu::{CpuBackend, ThreadPool, Tier};
use crate::{KvGroups, KvLayout, KvPlace, KvSpec, KvType, MatrixShape, conformance};

fn pair(cut: Cut) -> Split<CpuBackend, CpuBackend> {
    let pool = Arc::new(ThreadPool::new(1));
    let make = || CpuBackend::new(pool.clone(), Tier::detect().unwrap());
    // One turn of a pool would wait for the other's end.
    let other = CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::detect().unwrap());
    Split::new(make(), other, cut)
}

/// What each op reads was written by the other device. Each counts what it has: all of a cache is on one.
#[test]
fn rows_are_where_they_are_read() {
    for (caches, first) in [(usize::MAX, true), (0, false)] {
        let cut = Cut { layers: 1, caches, inputs: true };
        let counting = || if first { pair(cut).counting_first() } else { pair(cut).counting_second() };
        conformance::briefly(|| {
            conformance::check_decoder_ops(&|| Split { restless: Some(Cell::new(false)), ..counting() });
        });
    }
}

#[test]
fn each_device_counts_its_own() {
    let shape = [MatrixShape { rows: 64, cols: 64, dtype: crate::DType::F32 }];
    let layers = vec![KvLayout::Heads { kv_heads: 1, head_dim: 32, window: None }; 5];
    let kv = KvSpec { layers, blocks: 4, kv_type: KvType::F16, ..KvSpec::default() };
    let cut = Cut { layers: 2, caches: 2, inputs: false };
    let (both, first, second) = (pair(cut), pair(cut).counting_first(), pair(cut).counting_second());
    let counts = |of: &Split<CpuBackend, CpuBackend>| {
        let in_stage = |stage| {
            of.enter(stage);
            of.matrix_bytes(&shape)
        };
        let stages = [Stage::Inputs, Stage::Layer(1), Stage::Layer(2), Stage::Head, Stage::Everywhere];
        (stages.map(in_stage), of.kv_bytes(&kv))
    };
    let (one, layer) = (counts(&both).0[0], counts(&both).1 / 5);
    assert_eq!(counts(&both), ([one, one, one, one, 2 * one], 5 * layer));
    assert_eq!(counts(&first), ([0, one, 0, 0, one], 2 * layer));
    assert_eq!(counts(&second), ([one, 0, one, one, one], 3 * layer));
    let nowhere = counts(&pair(Cut::NOWHERE).counting_first());
    assert_eq!(nowhere, ([0; 5], 0), "what is nowhere takes nothing");
}

/// Of three devices, the second and third being a pair, each has the layers that it should.
#[test]
fn a_pair_of_a_pair_counts_its_own() {
    let shape = [MatrixShape { rows: 64, cols: 64, dtype: crate::DType::F32 }];
    let cut = |layers| Cut { layers, caches: layers, inputs: false };
    let other = || CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::detect().unwrap());
    // Layer 0, layers 1 and 2, and the others.
    let counts = |whose: usize| {
        let inner = if whose == 1 { pair(cut(2)).counting_first() } else { pair(cut(2)).counting_second() };
        let outer = Split::new(other(), inner, cut(1));
        let outer = if whose == 0 { outer.counting_first() } else { outer.counting_second() };
        let stages = [
            Stage::Inputs,
            Stage::Layer(0),
            Stage::Layer(1),
            Stage::Layer(2),
            Stage::Layer(3),
            Stage::Layer(4),
            Stage::Head,
        ];
        stages.map(|stage| {
            outer.enter(stage);
            outer.matrix_bytes(&shape) > 0
        })
    };
    assert_eq!(counts(0), [false, true, false, false, false, false, false]);
    assert_eq!(counts(1), [false, false, true, true, false, false, false]);
    assert_eq!(counts(2), [true, false, false, false, true, true, true]);
}

#[test]
fn a_part_of_the_layers_takes_few_planes() {
    let heads = |window| KvLayout::Heads { kv_heads: 1, head_dim: 32, window };
    let place = |group, plane| KvPlace { group, plane };
    let groups = KvGroups {
        windows: vec![None, Some(64)],
        places: vec![place(0, 0), place(1, 0), place(0, 1), place(1, 1), place(0, 2)],
    };
    let layers = [None, Some(64), None, Some(64), None].map(heads).to_vec();
    let spec = KvSpec { layers, groups, blocks: 4, ..KvSpec::default() };
    let of = placed::kv_of(&spec, 2..5).unwrap();
    assert_eq!(of.groups.places, [place(0, 0), place(1, 0), place(0, 1)]);
    assert_eq!((of.groups.windows.len(), of.planes().len(), of.blocks), (2, 2, 4));
    assert_eq!(placed::kv_of(&spec, 5..5), None);
}
