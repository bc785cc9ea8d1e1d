//! Layer groups of the KV cache, and the number of blocks that a sequence holds. Layers in a group share block
//! tables. This module only computes numbers: the pool owns the blocks.

use hanzo_engine_ops::{BLOCK_TOKENS, KvGroups, KvLayout, KvPlace};

use crate::limits::{KV_GROUPS_MAX, KV_WASTE_MAX};

/// Divides layers into groups. Layers of a group keep equal amounts of the same tokens. All groups have the same
/// size, so that a block of any group takes the same memory. If a kind has too few layers for its last group, part
/// of that group's blocks is unused. The size is the largest that wastes little, since each group has its own
/// tables. A window of `context_tokens` or more counts as full attention.
pub fn groups_of(layers: &[KvLayout], context_tokens: usize) -> KvGroups {
    let mut kinds: Vec<Kind> = Vec::new();
    for (index, layout) in layers.iter().enumerate() {
        let window = match *layout {
            // States take no blocks.
            KvLayout::State(_) => continue,
            KvLayout::Heads { window, .. } => window.filter(|&window| (window as usize) < context_tokens),
            KvLayout::Latent { .. } => None,
        };
        let elements = layout.elements_per_token();
        match kinds.iter_mut().find(|kind| (kind.window, kind.elements) == (window, elements)) {
            Some(kind) => kind.layers.push(index),
            None => kinds.push(Kind { window, elements, layers: vec![index] }),
        }
    }
    // Groups of full attention come first: a missing block at the start of a prefix ends the lookup.
    kinds.sort_by_key(|kind| kind.window.is_some());
    let size = group_size(&kinds, context_tokens);
    let mut groups = KvGroups { windows: Vec::new(), places: vec![KvPlace::default(); layers.len()] };
    for kind in &kinds {
        for members in kind.layers.chunks(size) {
            let group = groups.windows.len();
            groups.windows.push(kind.window);
            for (plane, &layer) in members.iter().enumerate() {
                groups.places[layer] = KvPlace { group, plane };
            }
        }
    }
    groups
}

/// Layers that keep equal amounts of the same tokens.
struct Kind {
    window: Option<u32>,
    elements: usize, // per token
    layers: Vec<usize>,
}

fn group_size(kinds: &[Kind], context_tokens: usize) -> usize {
    let most = kinds.iter().map(|kind| kind.layers.len()).max().unwrap_or(1);
    let groups = |size: usize| kinds.iter().map(|kind| kind.layers.len().div_ceil(size)).sum::<usize>();
    let sizes = || (1..=most).rev().filter(|&size| size == most || groups(size) <= KV_GROUPS_MAX);
    let wasted = |size: usize| waste(kinds, size, context_tokens).max(waste(kinds, size, 1));
    let least = sizes().map(wasted).fold(f64::INFINITY, f64::min);
    sizes().find(|&size| wasted(size) <= least.max(KV_WASTE_MAX)).unwrap_or(most)
}

/// Memory of a sequence of `tokens` tokens in groups of this size, as a multiple of its layers' need.
fn waste(kinds: &[Kind], size: usize, tokens: usize) -> f64 {
    let kept = |kind: &Kind| kind.window.map_or(tokens, |window| tokens.min(window as usize)) as f64;
    let widest = kinds.iter().map(|kind| kind.elements).max().unwrap_or(0) as f64;
    let taken = |kind: &Kind| (kind.layers.len().div_ceil(size) * size) as f64 * widest * kept(kind);
    let needed = |kind: &Kind| (kind.layers.len() * kind.elements) as f64 * kept(kind);
    kinds.iter().map(taken).sum::<f64>() / kinds.iter().map(needed).sum::<f64>()
}

/// Number of blocks that sequences hold in each layer group of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvRoom {
    groups: Vec<GroupRoom>,
}

/// Bound of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GroupRoom {
    window: Option<usize>,
    /// Maximum blocks of a sequence that it holds at once: those that the first row of the largest step attends to,
    /// and the step's own.
    most: usize,
}

impl KvRoom {
    /// Bounds for steps of at most `step_rows` rows.
    pub fn new(groups: &KvGroups, step_rows: usize) -> KvRoom {
        let room = |group: usize| {
            let window = groups.window(group).map(|window| window as usize);
            let most = window.map(|window| {
                let seen = window.saturating_sub(1).div_ceil(BLOCK_TOKENS);
                seen.saturating_add((step_rows + BLOCK_TOKENS - 1).div_ceil(BLOCK_TOKENS))
            });
            GroupRoom { window, most: most.unwrap_or(usize::MAX) }
        };
        KvRoom { groups: (0..groups.count()).map(room).collect() }
    }

    /// Maximum blocks that a sequence of `tokens` tokens holds, however it got there.
    pub fn blocks_of(&self, tokens: usize) -> usize {
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        self.groups.iter().map(|group| group.most.min(blocks)).fold(0, usize::saturating_add)
    }

    /// Longest sequence, in tokens, that fits so many blocks.
    pub fn tokens_in(&self, blocks: usize) -> usize {
        if self.blocks_of(usize::MAX) <= blocks {
            return usize::MAX;
        }
        // Each block of tokens takes a block of at least one group.
        let (mut fits, mut too_many) = (0, blocks + 1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            match self.blocks_of(middle.saturating_mul(BLOCK_TOKENS)) <= blocks {
                true => fits = middle,
                false => too_many = middle,
            }
        }
        fits.saturating_mul(BLOCK_TOKENS)
    }

    /// Whether a group has full attention.
    #[inline]
    pub fn keeps_all(&self, group: usize) -> bool {
        self.groups[group].window.is_none()
    }

    /// Number of groups.
    #[inline]
    pub fn count(&self) -> usize {
        self.groups.len()
    }

    /// Blocks that a group holds of a sequence of `tokens` tokens, `computed` of which are cached.
    #[inline]
    pub fn range(&self, group: usize, computed: usize, tokens: usize) -> std::ops::Range<usize> {
        let GroupRoom { most, .. } = self.groups[group];
        let first = self.first_kept(group, computed);
        first..first.saturating_add(most).min(tokens.div_ceil(BLOCK_TOKENS))
    }

    /// First block that a group keeps. It keeps the blocks that the next row attends to. It also keeps those for a
    /// row after the last full block, so that the prefix can be found up to there.
    #[inline]
    pub fn first_kept(&self, group: usize, computed: usize) -> usize {
        let unseen = |window| (computed / BLOCK_TOKENS * BLOCK_TOKENS + 1).saturating_sub(window);
        self.groups[group].window.map_or(0, unseen) / BLOCK_TOKENS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers with equal heads and these windows.
    fn layers(windows: impl IntoIterator<Item = Option<u32>>) -> Vec<KvLayout> {
        windows.into_iter().map(|window| KvLayout::Heads { kv_heads: 4, head_dim: 64, window }).collect()
    }

    fn every_nth_whole(layers: usize, n: usize, window: u32) -> Vec<Option<u32>> {
        (0..layers).map(|layer| (layer % n != n - 1).then_some(window)).collect()
    }

    fn shape(windows: Vec<Option<u32>>, context: usize) -> (Vec<Option<u32>>, usize) {
        let groups = groups_of(&layers(windows), context);
        let planes = groups.places.iter().map(|place| place.plane + 1).max().unwrap();
        (groups.windows, planes)
    }

    #[test]
    fn layers_that_are_alike_are_one_group() {
        assert_eq!(shape(vec![None; 30], 4096), (vec![None], 30));
        assert_eq!(shape(vec![Some(1024); 30], 4096), (vec![Some(1024)], 30));
        assert_eq!(shape(every_nth_whole(30, 6, 4096), 4096), (vec![None], 30));
    }

    #[test]
    fn groups_are_of_one_size_and_waste_little() {
        // gpt-oss 20B: every other layer has a window of 128 tokens.
        assert_eq!(shape(every_nth_whole(24, 2, 128), 131_072), (vec![None, Some(128)], 12));
        // Gemma 3 4B, 12B, 27B, and 1B: one layer in six has full attention.
        let gemma = |layers, window| {
            let (windows, planes) = shape(every_nth_whole(layers, 6, window), 131_072);
            let whole = windows.iter().filter(|window| window.is_none()).count();
            (whole, windows.len() - whole, planes)
        };
        assert_eq!(gemma(34, 1024), (1, 6, 5));
        assert_eq!(gemma(48, 1024), (1, 5, 8));
        assert_eq!(gemma(62, 1024), (2, 11, 5));
        assert_eq!(gemma(26, 512), (2, 11, 2));
        // Qwen 2.5 with windows in its last layers.
        let upper: Vec<Option<u32>> = (0..32).map(|layer| (layer >= 28).then_some(4096)).collect();
        let (windows, planes) = shape(upper, 32_768);
        assert_eq!((windows, planes), ([vec![None; 7], vec![Some(4096)]].concat(), 4));
        // However they are mixed, each layer has its own place.
        let windows: Vec<Option<u32>> =
            (0..37).map(|layer| [None, Some(7), Some(90)][layer * layer % 3]).collect();
        let groups = groups_of(&layers(windows.clone()), 1000);
        let mut places: Vec<(usize, usize)> =
            groups.places.iter().map(|place| (place.group, place.plane)).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 37);
        assert!(groups.count() <= KV_GROUPS_MAX);
        for (place, window) in groups.places.iter().zip(windows) {
            assert_eq!(groups.window(place.group), window);
        }
    }

    #[test]
    fn a_window_bounds_the_blocks_of_a_sequence() {
        let groups = KvGroups { windows: vec![None, Some(100), Some(1)], places: Vec::new() };
        let room = KvRoom::new(&groups, 40);
        // The 99 keys before a row are in 7 blocks; the step's 40 rows may start within a block and take 4.
        assert_eq!(room.blocks_of(10_000), 625 + (7 + 4) + 4);
        assert_eq!(room.blocks_of(100), 7 + 7 + 4);
        for tokens in [16, 48, 160, 992, 10_000] {
            assert_eq!(room.tokens_in(room.blocks_of(tokens)), tokens);
            assert!(room.tokens_in(room.blocks_of(tokens) - 1) < tokens);
        }
        assert_eq!(
            KvRoom::new(&KvGroups { windows: vec![Some(32)], places: vec![] }, 1).tokens_in(3),
            usize::MAX
        );
        // Wherever a sequence is, a step needs no more.
        for (computed, rows) in (0..400).flat_map(|computed| [1, 7, 40].map(|rows| (computed, rows))) {
            for (group, window) in [(1, 100), (2, 1)] {
                let range = room.range(group, computed, 10_000);
                assert!(range.end * BLOCK_TOKENS >= computed + rows);
                assert!(range.start * BLOCK_TOKENS <= (computed + 1usize).saturating_sub(window));
                let after = computed / BLOCK_TOKENS * BLOCK_TOKENS;
                assert!(range.start * BLOCK_TOKENS <= (after + 1usize).saturating_sub(window));
            }
        }
    }
}
