//! Layer groups of a paged KV cache: which layers share block tables, and which share memory. Numbers alone; the
//! choice of groups and the number of a sequence's blocks are decided elsewhere.

use std::collections::BTreeMap;

use super::{KvLayout, KvSpec};

/// Layer groups of a cache. Each group has separate block tables, so that it can free blocks that have left its
/// window.
///
/// A block is 16 tokens of *one* group's layers. Layers at the same place of different groups share a *plane* of
/// memory, so that any block can serve any group, and memory that one group does not need is free for the others. The
/// default is one group without a window, with each layer in a separate plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvGroups {
    /// Keys that the rows of each group's layers see at most, themselves included. None: all.
    pub windows: Vec<Option<u32>>, // (groups), or empty
    /// Group and plane of each layer.
    pub places: Vec<KvPlace>, // (layers), or empty
}

/// Location of a layer's keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvPlace {
    /// Layer group.
    pub group: usize,
    /// Plane of memory. The layers of one group are in different planes.
    pub plane: usize,
}

impl KvGroups {
    /// Number of groups.
    #[inline]
    pub fn count(&self) -> usize {
        self.windows.len().max(1)
    }

    /// Window of a group.
    #[inline]
    pub fn window(&self, group: usize) -> Option<u32> {
        self.windows.get(group).copied().flatten()
    }

    /// Location of a layer.
    ///
    /// # Panics
    /// If there are groups and the layer is in none.
    #[inline]
    pub fn place(&self, layer: usize) -> KvPlace {
        if self.places.is_empty() { KvPlace { group: 0, plane: layer } } else { self.places[layer] }
    }
}

impl KvSpec {
    /// Layouts that each plane of memory must have room for, plane by plane. Layers with recurrent states are in none.
    ///
    /// # Panics
    /// If a layer is in no group, or two layers of a group are in one plane: the groups were built wrong.
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
