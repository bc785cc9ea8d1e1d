//! A part of a cache is laid out tightly. The CPU backend's tests try pipelines op by op.

use super::*;
use crate::{KvGroups, KvLayout};

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
    let of = kv_of(&spec, 2..5).unwrap();
    assert_eq!(of.groups.places, [place(0, 0), place(1, 0), place(0, 1)]);
    assert_eq!((of.groups.windows.len(), of.planes().len(), of.blocks), (2, 2, 4));
    assert_eq!(kv_of(&spec, 5..5), None);
}
