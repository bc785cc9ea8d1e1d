//! Tests of the block pool: consistent books, prefixes as long as every group has the needed blocks, and windows
//! that release blocks.

use super::*;
use proptest::prelude::*;

fn hash(n: u32) -> BlockHash {
    BlockHash::chain(BlockHash::root(b""), &[n; BLOCK_TOKENS], b"")
}

/// The last of them first, as sequences do.
fn release(pool: &mut BlockPool, ids: &mut Vec<u32>) {
    ids.drain(..).rev().for_each(|id| pool.release(id));
}

#[test]
fn names_depend_on_everything_before() {
    let a = BlockHash::chain(BlockHash::root(b""), &[1; 16], b"");
    assert_ne!(a, BlockHash::chain(BlockHash::root(b"salt"), &[1; 16], b""));
    assert_ne!(BlockHash::chain(a, &[2; 16], b""), BlockHash::chain(hash(3), &[2; 16], b""));
    assert_eq!(a, hash(1));
    assert_ne!(BlockHash::chain(a, &[2; 16], b"x"), BlockHash::chain(a, &[2; 16], b""));
}

#[test]
fn released_blocks_are_found_until_they_are_needed() {
    let mut pool = BlockPool::new(3, true);
    let mut ids: Vec<u32> = (0..3).map(|_| pool.take(0).unwrap()).collect();
    assert_eq!(pool.take(0), None);
    pool.publish(0, ids[0], hash(0));
    pool.publish(0, ids[1], hash(1));
    let (first, second) = (ids[0], ids[1]);
    release(&mut pool, &mut ids);
    assert_eq!((pool.used(), pool.free(), pool.cached()), (0, 3, 2));
    assert_eq!(pool.find_prefix(&[hash(0), hash(1), hash(2)]), (2, 2));

    assert_eq!(pool.share(0, &hash(0)), Some(first));
    assert_eq!(pool.share(0, &hash(0)), Some(first));
    assert_eq!(pool.find_prefix(&[hash(0), hash(1)]), (2, 1));
    // The unnamed block goes first, then the tail of the prefix; the held one never.
    assert_eq!(pool.take(0), Some(2));
    assert_eq!(pool.take(0), Some(second));
    assert_eq!(pool.take(0), None);
    assert_eq!(pool.find_prefix(&[hash(0), hash(1)]), (1, 0));
    pool.release(first);
    assert_eq!(pool.free(), 0);
    pool.release(first);
    assert_eq!((pool.free(), pool.cached()), (1, 1));
}

#[test]
fn a_prefix_is_evicted_from_its_tail() {
    let mut pool = BlockPool::new(4, true);
    let mut ids: Vec<u32> = (0..4).map(|_| pool.take(0).unwrap()).collect();
    for (i, &id) in ids.iter().enumerate() {
        pool.publish(0, id, hash(i as u32));
    }
    release(&mut pool, &mut ids);
    pool.take(0);
    assert_eq!(pool.find_prefix(&[hash(0), hash(1), hash(2), hash(3)]).0, 3);
}

#[test]
fn without_sharing_nothing_is_found() {
    let mut pool = BlockPool::new(2, false);
    let id = pool.take(0).unwrap();
    pool.publish(0, id, hash(0));
    pool.release(id);
    assert_eq!((pool.find_prefix(&[hash(0)]), pool.cached()), ((0, 0), 0));
}

#[test]
fn what_is_behind_a_hole_is_held_from_the_first_on() {
    let hashes: Vec<BlockHash> = (0..20).map(hash).collect();
    let (short, long) = (FOUND_RUN_BLOCKS_MIN - 1, FOUND_RUN_BLOCKS_MIN);
    // One cached block, a gap, a run that is too short, another gap, a run that is long enough.
    let there = |index: usize| {
        index == 0 || (2..2 + short).contains(&index) || index > 2 + short && index <= 2 + short + long
    };
    let first = 3 + short;
    let mut pool = BlockPool::new(20, true);
    let mut ids: Vec<u32> = (0..20).map(|_| pool.take(0).unwrap()).collect();
    for index in (0..20).filter(|&index| there(index)) {
        pool.publish(0, ids[index], hashes[index]);
    }
    let run: Vec<u32> = ids[first..first + long].to_vec();
    release(&mut pool, &mut ids);
    let behind: Vec<_> = std::iter::once(first..first + long).collect();
    assert_eq!(pool.find_behind(&hashes, 1), behind);
    let mut tables = BlockTables::default();
    assert_eq!(BlockTables::needed(&pool, &hashes, 310), 20);
    assert_eq!(tables.enter(&mut pool, &hashes, 310, true), Found { prefix: 1, behind });
    assert_eq!((tables.len(), pool.free()), (20, 0), "held, whatever had to be taken");
    assert!((first..first + long).map(|index| tables.block(0, index)).eq(run));
    pool.check([&tables].into_iter());
    tables.leave(&mut pool);
    assert_eq!((pool.free(), pool.cached()), (20, 1 + long), "the others were needed");
    // A sequence that cannot continue behind gaps takes what is before the gap.
    assert_eq!(tables.enter(&mut pool, &hashes, 310, false), Found { prefix: 1, behind: Vec::new() });
    tables.leave(&mut pool);

    // Blocks in the store count for runs, behind a gap too, as far as there is room.
    let mut pool = BlockPool::new(20, true);
    let kept = |_: usize, hash: &BlockHash| there(hashes.iter().position(|it| it == hash).unwrap());
    let names = |indices: &[usize]| indices.iter().map(|&index| (0, hashes[index])).collect::<Vec<_>>();
    let run: Vec<usize> = (first..first + long).collect();
    assert_eq!(pool.missing(&hashes, &kept, true), names(&[&[0], &run[..]].concat()));
    assert_eq!(pool.missing(&hashes, &kept, false), names(&[0]));
    let _held: Vec<u32> = (0..18).map(|_| pool.take(0).unwrap()).collect();
    assert_eq!(pool.missing(&hashes, &kept, true), names(&[0, first]));
}

/// Pool with two groups with windows of 40 and 17 tokens and one with full attention. Each has these blocks of one
/// text.
fn pool_with(found: [u16; 3]) -> (BlockPool, Vec<BlockHash>) {
    let windows = vec![Some(40), None, Some(17)];
    let room = KvRoom::new(&KvGroups { windows, places: Vec::new() }, 16);
    let mut pool = BlockPool::of_groups(60, true, room);
    let hashes: Vec<BlockHash> = (0..16).map(hash).collect();
    for (group, found) in found.into_iter().enumerate() {
        for (index, &hash) in hashes.iter().enumerate().filter(|(index, _)| found & 1 << index != 0) {
            let id = pool.take(group).unwrap();
            pool.publish(group, id, hash);
            if index % 3 > 0 {
                pool.release(id);
            }
        }
    }
    (pool, hashes)
}

#[test]
fn a_prefix_is_found_where_windows_have_what_they_see() {
    // After 5 blocks, the group with a window of 40 tokens attends to 39 of them, in 3 blocks; the group with 17
    // needs one block.
    let (pool, hashes) = pool_with([0b11100, 0b11111, 0b10000]);
    assert_eq!(pool.find_prefix(&hashes).0, 5);
    assert_eq!(pool.prefix(&hashes).count(), 3 + 5 + 1);
    for less in [[0b11000, 0b11111, 0b10000], [0b11100, 0b11111, 0b01000], [0b11100, 0b11110, 0b10000]] {
        assert_eq!(pool_with(less).0.find_prefix(&hashes).0, 0, "{less:?}");
    }
    assert!(
        pool_with([0, 0b11110, 0]).0.find_behind(&hashes, 0).is_empty(),
        "windows lack what is before them"
    );
    // A block missing in one group shortens the prefix for all.
    assert_eq!(pool_with([0b11110, 0b01111, 0b11000]).0.find_prefix(&hashes).0, 4);
    assert_eq!(pool_with([0b00111, 0b11111, 0b10111]).0.find_prefix(&hashes).0, 3);
}

#[test]
fn a_window_lets_go_as_it_moves_and_uses_blocks_again() {
    let groups = KvGroups { windows: vec![None, Some(40)], places: Vec::new() };
    let room = KvRoom::new(&groups, 32);
    // The 39 keys before a row are in 3 blocks; 32 rows that start within a block take 3.
    assert_eq!(room.blocks_of(500), 32 + 6);
    let mut pool = BlockPool::of_groups(38, true, room);
    let hashes: Vec<BlockHash> = (0..31).map(hash).collect();
    let mut tables = BlockTables::default();
    assert_eq!(BlockTables::needed(&pool, &hashes, 500), 38);
    assert_eq!(tables.enter(&mut pool, &hashes, 500, true), Found::default());
    assert_eq!(pool.free(), 0);
    let mut computed = 0;
    while computed < 500 {
        let rows = 32.min(500 - computed);
        assert_eq!(tables.grow(&mut pool, computed..computed + rows, 500, 0), rows, "at {computed}");
        let full = (computed + rows) / BLOCK_TOKENS;
        for (index, &hash) in hashes.iter().enumerate().take(full).skip(computed / BLOCK_TOKENS) {
            tables.publish(&mut pool, index, hash);
        }
        computed += rows;
        tables.check(&pool, computed);
        pool.check([&tables].into_iter());
    }
    tables.grow(&mut pool, 500..501, 501, 0);
    // Of 500 tokens the last full block ends at 496; the 39 tokens before that are in 3 blocks, and another block
    // starts there.
    assert_eq!((tables.len(), pool.used()), (32 + 4, 36));
    // A released sequence is found again up to its last full block.
    tables.leave(&mut pool);
    assert_eq!(pool.find_prefix(&hashes).0, 31);
    assert_eq!(BlockTables::needed(&pool, &hashes, 500), 36);
    assert_eq!(tables.enter(&mut pool, &hashes, 500, true), Found { prefix: 31, behind: Vec::new() });
    assert_eq!(pool.used(), 36);
}

proptest! {
    // The longest prefix whose next row finds all its blocks, in every group.
    #[test]
    fn the_longest_prefix_is_found(found in any::<[u16; 3]>()) {
        // Many blocks are cached, as if a few had been evicted.
        let found = found.map(|bits| bits | bits.rotate_left(3) | bits.rotate_left(7));
        let (pool, hashes) = pool_with(found);
        let has = |group: usize, blocks: usize| {
            (pool.room().first_kept(group, blocks * 16)..blocks).all(|index| found[group] & 1 << index != 0)
        };
        let longest = (0..=16).rev().find(|&blocks| (0..3).all(|group| has(group, blocks))).unwrap();
        let (blocks, free) = pool.find_prefix(&hashes);
        prop_assert_eq!(blocks, longest);
        let ids: Vec<u32> = pool.prefix(&hashes).collect();
        prop_assert_eq!(ids.iter().filter(|&&id| pool.blocks[id as usize].holders == 0).count(), free);
    }

    // Under any operations the counts add up, and no block is given out twice.
    #[test]
    fn counts_always_add_up(ops in prop::collection::vec((0u8..4, 0u32..6), 1..200)) {
        let mut pool = BlockPool::new(5, true);
        let mut held: Vec<Vec<u32>> = Vec::new();
        for (op, n) in ops {
            match op {
                0 => if let Some(id) = pool.take(0) {
                    prop_assert!(held.iter().flatten().all(|&h| h != id));
                    held.push(vec![id]);
                },
                1 => if let Some(ids) = held.get(n as usize) {
                    pool.publish(0, ids[0], hash(n));
                },
                2 => if let Some(id) = pool.share(0, &hash(n)) { held.push(vec![id]) },
                _ => if !held.is_empty() {
                    let at = n as usize % held.len();
                    release(&mut pool, &mut held.swap_remove(at));
                },
            }
            let mut distinct: Vec<u32> = held.iter().flatten().copied().collect();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(pool.used(), distinct.len());
            prop_assert_eq!(pool.free() + pool.used(), 5);
            prop_assert!(pool.cached() <= pool.free());
            let mut walked = 0;
            let mut at = pool.first_free;
            while at != NONE { walked += 1; at = pool.blocks[at as usize].after; }
            prop_assert_eq!(walked, pool.free());
        }
    }
}
