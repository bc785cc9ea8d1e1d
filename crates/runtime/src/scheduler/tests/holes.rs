//! Prompts with cached blocks behind missing ones. Cached blocks are held from the start, and never written or
//! computed; all others are computed.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{kv::BlockHash, limits::FOUND_RUN_BLOCKS_MIN, media::MediaSpan};

/// Prompt that shares a prefix with others of its family.
fn prompt(family: u32, tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|i| 300 + family * 97 + i * 31 % 1000).collect()
}

fn names(tokens: &[u32]) -> Vec<BlockHash> {
    let (blocks, _) = tokens.as_chunks::<BLOCK_TOKENS>();
    let chain = |parent: &mut BlockHash, block: &[u32; BLOCK_TOKENS]| {
        *parent = BlockHash::chain(*parent, block, b"");
        Some(*parent)
    };
    blocks.iter().scan(BlockHash::root(b""), chain).collect()
}

impl Bench {
    /// Puts these blocks of a prompt into the cache, without holders.
    fn cache(&mut self, tokens: &[u32], there: impl Fn(usize) -> bool) {
        let names = names(tokens);
        let mut ids = Vec::new();
        for (_, &name) in names.iter().enumerate().filter(|(index, _)| there(*index)) {
            if !self.pool.has(0, &name) && self.pool.cached() + ids.len() < self.pool.total() {
                let id = self.pool.take(0).unwrap();
                self.pool.publish(0, id, name);
                ids.push(id);
            }
        }
        ids.into_iter().rev().for_each(|id| self.pool.release(id));
    }

    fn submit_prompt(&mut self, id: u64, tokens: &[u32], max_tokens: u32, change: impl FnOnce(&mut Job)) {
        let prompt = tokens.to_vec();
        self.submit(id, 1, max_tokens, |job| {
            job.prompt = prompt.into();
            change(job);
        });
    }

    /// Number of a job's prompt tokens that were reported as cached.
    fn found(&self, id: u64) -> Option<usize> {
        let of_job = self.events.iter().filter(|event| event.job == JobId(id));
        of_job.into_iter().find_map(|event| match event.kind {
            EventKind::Started { cached_tokens } => Some(cached_tokens as usize),
            _ => None,
        })
    }
}

#[test]
fn a_hole_alone_is_computed() {
    let mut bench = Bench::new(64, |_| ());
    let tokens = prompt(1, 330);
    bench.cache(&tokens, |index| index != 7);
    bench.submit_prompt(1, &tokens, 3, |_| ());
    assert_eq!(bench.step(), [16], "no further than to what is found");
    assert_eq!(bench.found(1), Some(19 * 16));
    assert_eq!(bench.step(), [10], "and what has no full block");
    assert_eq!(bench.scheduler.counters().prefix_hit_tokens, 19 * 16);
    bench.run(10);
    assert_eq!((bench.generated(1), bench.pool.used()), (3, 0));
    // No block is missing any more.
    bench.submit_prompt(2, &tokens, 3, |_| ());
    assert_eq!(bench.step(), [10]);
}

#[test]
fn the_last_token_is_computed_whatever_is_found() {
    let mut bench = Bench::new(64, |_| ());
    let tokens = prompt(1, 192);
    bench.cache(&tokens, |index| index != 3);
    bench.submit_prompt(1, &tokens, 3, |_| ());
    assert_eq!([bench.step(), bench.step()], [[16], [16]], "the last block is not shared");
    assert_eq!((bench.found(1), bench.generated(1)), (Some(160), 1));
    let tokens = prompt(2, 193);
    bench.cache(&tokens, |index| index != 3);
    bench.submit_prompt(2, &tokens, 3, |_| ());
    bench.step();
    assert_eq!(bench.step(), [1, 1], "one that stands behind all that is found");
    bench.run(10);
    assert_eq!((bench.generated(1), bench.generated(2), bench.pool.used()), (3, 3, 0));
}

#[test]
fn a_hole_takes_what_a_step_has_room_for() {
    let mut bench = Bench::new(64, |config| config.rows_max = 20);
    bench.scheduler.config.prefill_rows_beside_decodes = 20;
    let tokens = prompt(1, 20 * 16);
    bench.cache(&tokens, |index| !(2..5).contains(&index));
    bench.submit_prompt(1, &tokens, 2, |_| ());
    let steps: Vec<u32> = (0..4).flat_map(|_| bench.step()).collect();
    assert_eq!(steps, [20, 20, 8, 16]);
}

#[test]
fn pictures_that_are_seen_as_a_whole_keep_to_the_beginning() {
    let mut bench = Bench::new(64, |_| ());
    let tokens = prompt(1, 330);
    bench.cache(&tokens, |index| index != 7);
    let span =
        MediaSpan { first: 300, tokens: 8, mutual: true, rows: vec![0.0; 8].into(), ..MediaSpan::default() };
    bench.submit_prompt(1, &tokens, 1, |job| job.media = [span].into());
    assert_eq!((bench.step(), bench.found(1)), (vec![64], Some(7 * 16)));
}

#[test]
fn several_that_lack_the_same_and_one_that_is_cancelled_balance() {
    let mut bench = Bench::new(40, |_| ());
    let tokens = prompt(1, 300);
    bench.cache(&tokens, |index| index % 7 != 3);
    bench.submit_prompt(1, &tokens, 20, |job| job.choices = 3);
    assert_eq!(bench.step(), [16], "its siblings wait for it");
    bench.scheduler.check(&bench.pool);
    bench.submit_prompt(2, &tokens, 20, |_| ());
    bench.step();
    bench.scheduler.cancel(JobId(1), &mut bench.pool);
    bench.scheduler.check(&bench.pool);
    bench.run(40);
    assert_eq!((bench.generated(2), bench.pool.used()), (20, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_is_found_is_not_computed_and_all_else_is(
        blocks in 24usize..80,
        rows in 8usize..70,
        jobs in prop::collection::vec((0u32..3, 1usize..380, 1u32..30, 0usize..30), 1..7),
        there in prop::collection::vec(any::<u32>(), 3),
        decoys in 0usize..6,
    ) {
        let mut bench = Bench::new(blocks, |config| {
            config.rows_max = rows;
            config.prefill_rows_beside_decodes = rows.div_ceil(2);
        });
        bench.pool.watch_leaving();
        for (family, &bits) in there.iter().enumerate() {
            bench.cache(&prompt(family as u32, 380), |index| bits >> (index % 32) & 1 == 1 || index % 9 > decoys);
        }
        let mut jobs = jobs;
        jobs.iter_mut().for_each(|job| job.1 = job.1.min(blocks * BLOCK_TOKENS - job.2 as usize - 1));
        let of_job = |&(family, tokens, ..): &(u32, usize, u32, usize)| names(&prompt(family, tokens));
        let all: Vec<BlockHash> = jobs.iter().flat_map(of_job).collect();
        let mut next = 0;
        let mut computed = vec![BTreeSet::new(); jobs.len()]; // positions, since it entered
        let mut twice = 0;
        for step in 0..3000 {
            while next < jobs.len() && jobs[next].3 <= step {
                let (family, tokens, max_tokens, _) = jobs[next];
                bench.submit_prompt(next as u64, &prompt(family, tokens), max_tokens, |_| ());
                next += 1;
            }
            if next == jobs.len() && !bench.scheduler.has_work() {
                break;
            }
            // Blocks that could be found before a step are not written by it.
            bench.scheduler.schedule(&mut bench.pool, &mut bench.step, &mut bench.events);
            let named: BTreeSet<u32> = all.iter().filter_map(|name| bench.pool.prefix(&[*name]).next()).collect();
            for slot in &bench.step.batch.slots {
                let block = slot / BLOCK_TOKENS as u32;
                prop_assert!(!named.contains(&block), "block {} can be found and is written", block);
            }
            for part in &bench.step.parts {
                let rows = part.first..part.first + part.rows;
                let sequence = bench.scheduler.running.iter().find(|it| it.order == part.order).unwrap();
                let own = &mut computed[sequence.job.0 as usize];
                let positions = rows.map(|row| bench.step.batch.positions[row]);
                twice += positions.filter(|&position| !own.insert(position)).count();
            }
            bench.settle_step();
            bench.scheduler.check(&bench.pool);
        }
        prop_assert_eq!(bench.scheduler.counts(), (0, 0));
        prop_assert_eq!(bench.pool.used(), 0);
        let preempted = bench.scheduler.counters().preemptions > 0;
        for (id, &(_, tokens, max_tokens, _)) in jobs.iter().enumerate() {
            prop_assert_eq!(bench.generated(id as u64), max_tokens as usize);
            let of_prompt = computed[id].iter().filter(|&&position| (position as usize) < tokens).count();
            prop_assert!(computed[id].contains(&(tokens as u32 - 1)), "the last token is always computed");
            let found = bench.found(id as u64).unwrap();
            if preempted {
                prop_assert!(found + of_prompt >= tokens);
            } else {
                prop_assert_eq!(found + of_prompt, tokens);
            }
        }
        prop_assert!(preempted || twice == 0, "{} rows were computed twice", twice);
    }
}

#[test]
fn short_runs_behind_a_hole_are_computed_with_it() {
    let mut bench = Bench::new(64, |_| ());
    let tokens = prompt(1, 200);
    bench.cache(&tokens, |index| index != 2 && index < 3 + FOUND_RUN_BLOCKS_MIN - 1);
    bench.submit_prompt(1, &tokens, 1, |_| ());
    assert_eq!((bench.step(), bench.found(1)), (vec![64], Some(32)));
}
