//! Which layers of a paged cache have block tables in common, and which lie in the same memory: numbers alone. Absent: who
//! decides it, and how many blocks a sequence holds.

use std::collections::BTreeMap;

use super::{KvLayout, KvSpec};

/// Layers of a cache in groups, each of which has block tables of its own and so may let go of what has left its window.
///
/// A block is 16 tokens of *one* group's layers. Layers that stand at the same place of different groups share a *plane* of
/// memory, so that any block serves any group, and what one group does not need another has. The default is one group
/// that keeps everything, each layer in a plane of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvGroups {
    /// Keys that the rows of each group's layers see at most, themselves included; none: all.
    pub windows: Vec<Option<u32>>, // (groups), or empty
    /// Where each layer is.
    pub places: Vec<KvPlace>, // (layers), or empty
}

/// Where a layer's keys and values are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvPlace {
    /// Its group.
    pub group: usize,
    /// Its plane: the layers of one group are in planes of their own.
    pub plane: usize,
}

impl KvGroups {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.windows.len().max(1)
    }

    /// The window of a group.
    pub fn window(&self, group: usize) -> Option<u32> {
        self.windows.get(group).copied().flatten()
    }

    /// Where a layer is.
    ///
    /// # Panics
    /// If there are groups, and the layer is in none.
    pub fn place(&self, layer: usize) -> KvPlace {
        if self.places.is_empty() { KvPlace { group: 0, plane: layer } } else { self.places[layer] }
    }
}

impl KvSpec {
    /// The layouts that each plane of memory must have room for, plane by plane. Layers that keep a state are in none.
    ///
    /// # Panics
    /// If a layer is in no group, or two layers of a group are in one plane: whoever made the groups is wrong.
    pub fn planes(&self) -> Vec<Vec<KvLayout>> {
        let mut planes = BTreeMap::<usize, BTreeMap<usize, KvLayout>>::new();
        for (layer, &layout) in self.layers.iter().enumerate() {
            if matches!(layout, KvLayout::State(_)) {
                continue;
            }
            let KvPlace { group, plane } = self.groups.place(layer);
            assert!(group < self.groups.count(), "layer {layer} is in group {group}, which is not there");
            let other = planes.entry(plane).or_default().insert(group, layout);
            assert!(other.is_none(), "two layers of group {group} in plane {plane}");
        }
        assert!(planes.keys().copied().eq(0..planes.len()), "planes are numbered from 0");
        planes.into_values().map(|layouts| layouts.into_values().collect()).collect()
    }
}
