//! Blocks that leave the cache come back unchanged from the block store: tokens do not depend on it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Mutex,
};

use hanzo_engine_ops::{AnyBackend, Pipeline};

use super::*;
use crate::kv::{BlockHash, BlockName, BlockStore, KeptBlock};

/// Block store in memory, which answers some requests later, and loses some blocks.
#[derive(Clone)]
struct Shelf {
    blocks: Arc<Mutex<HashMap<BlockName, Vec<u8>>>>,
    asked: Arc<Mutex<VecDeque<BlockName>>>,
    late: usize,
    loses: Option<usize>, // one in this many
    damaged: Option<BlockHash>,
    room: usize,
}

impl Shelf {
    fn new(late: usize, loses: Option<usize>) -> Shelf {
        Shelf { blocks: Arc::default(), asked: Arc::default(), late, loses, damaged: None, room: usize::MAX }
    }
}

impl BlockStore for Shelf {
    fn has(&self, name: &BlockName) -> bool {
        self.blocks.lock().unwrap().contains_key(name)
    }

    fn put(&mut self, name: BlockName, fill: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        let mut blocks = self.blocks.lock().unwrap();
        if blocks.len() >= self.room {
            return false;
        }
        let mut bytes = vec![0; BLOCK.with(|bytes| bytes.get())];
        let filled = fill(&mut bytes);
        blocks.insert(name, bytes);
        filled
    }

    fn ask(&mut self, name: BlockName) -> bool {
        let mut asked = self.asked.lock().unwrap();
        if asked.len() < 5 {
            asked.push_back(name);
        }
        asked.back() == Some(&name)
    }

    fn answer(&mut self) -> Option<KeptBlock> {
        if self.late > 0 {
            self.late -= 1;
            return None;
        }
        let name = self.asked.lock().unwrap().pop_front()?;
        let bytes = self.blocks.lock().unwrap().get(&name).cloned()?;
        let found = self.loses.is_none_or(|n| usize::from(name.hash[0]) % n > 0);
        Some(KeptBlock { name, bytes, found: found && self.damaged.is_none_or(|hash| hash != name.hash()) })
    }

    fn recycle(&mut self, _bytes: Vec<u8>) {}
}

thread_local! {
    static BLOCK: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn keeping(opened: &OpenedModel, config: EngineConfig, ahead: bool, shelf: &Shelf) -> Engine {
    let mut engine = engine_of(opened, config, ahead);
    BLOCK.set(engine.block_form().unwrap().0);
    engine.keep_blocks(Box::new(shelf.clone()));
    engine
}

/// Tokens of one completion, and the cached part of its prompt.
fn said(engine: &mut Engine, job: &Job) -> (Vec<u32>, u32) {
    let (tokens, cached, _) = computed(engine, job);
    (tokens, cached)
}

/// Tokens of one completion, the cached part of its prompt, and the computed part.
fn computed(engine: &mut Engine, job: &Job) -> (Vec<u32>, u32, usize) {
    engine.submit(job);
    let (mut events, mut prefilled) = (Vec::new(), 0);
    for _ in 0..1000 {
        if engine.is_idle() {
            break;
        }
        engine.take_fetched().unwrap();
        if engine.has_work() {
            prefilled += engine.step(&mut events).unwrap().prefill_tokens;
        }
        engine.check();
    }
    let (mut tokens, mut cached) = (Vec::new(), 0);
    for event in events {
        match event.kind {
            EventKind::Delta { tokens: more, .. } => tokens.extend(more),
            EventKind::Finished { usage, .. } => cached = usage.cached_tokens,
            _ => {}
        }
    }
    (tokens, cached, prefilled)
}

/// Hashes of a prompt's blocks.
fn names(prompt: &[u32]) -> Vec<BlockHash> {
    let (blocks, _) = prompt.as_chunks::<BLOCK_TOKENS>();
    let chain = |parent: &mut BlockHash, block: &[u32; BLOCK_TOKENS]| {
        *parent = BlockHash::chain(*parent, block, b"");
        Some(*parent)
    };
    blocks.iter().scan(BlockHash::root(b""), chain).collect()
}

#[test]
fn a_damaged_block_costs_its_tokens_alone() {
    let windows = with_windows(&[Some(24), None, Some(9)], false);
    // With windows that need earlier blocks, the prefix ends before a block known to be gone. It ends nowhere if
    // the loss shows up too late for the blocks before it.
    let cases = [
        (opened(), KvType::F16, [(9 - 1) * 16; 2]),
        (opened(), KvType::Q8_0, [(9 - 1) * 16; 2]),
        (&windows, KvType::F16, [0, 3 * 16]),
    ];
    for (opened, kv_type, [damaged, gone]) in cases {
        let config = EngineConfig { kv_type, kv_blocks: 96, ..config() };
        let prompt: Vec<u32> = (0..150).map(|i| 300 + i * 7 % 2000).collect();
        let job = |id| Job {
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            ..job(id, prompt.clone(), 40)
        };
        let mut shelf = Shelf::new(3, None);
        let mut alone = keeping(opened, config, false, &Shelf::new(0, None));
        let (expected, nothing, all) = computed(&mut alone, &Job { skip_cache: true, ..job(1) });
        assert_eq!((nothing, all), (0, 150));
        let mut first = keeping(opened, config, false, &shelf);
        assert_eq!(said(&mut first, &job(1)), (expected.clone(), 0));
        while first.save_blocks(3) {}
        let names = names(&prompt);
        shelf.damaged = Some(names[3]);
        let mut second = keeping(opened, config, true, &shelf);
        let found = computed(&mut second, &job(1));
        assert_eq!(found, (expected.clone(), damaged, 150 - damaged as usize), "{kv_type:?}");
        // A block known to be gone costs no more than one that turns out to be gone.
        shelf.damaged = None;
        shelf.blocks.lock().unwrap().retain(|name, _| name.hash() != names[3]);
        let mut third = keeping(opened, config, false, &shelf);
        let found = computed(&mut third, &job(1));
        assert_eq!(found, (expected.clone(), gone, 150 - gone as usize), "{kv_type:?}");
        // And it is there again for the next.
        assert_eq!(said(&mut third, &job(2)), (expected, 144));
    }
}

#[test]
fn another_engine_finds_what_one_has_computed() {
    let windows = with_windows(&[Some(24), None, Some(9)], false);
    for (opened, kv_type) in [(opened(), KvType::F16), (opened(), KvType::Q8_0), (&windows, KvType::F16)] {
        let config = EngineConfig { kv_type, kv_blocks: 96, ..config() };
        let shelf = Shelf::new(3, None);
        let prompt: Vec<u32> = (0..150).map(|i| 300 + i * 7 % 2000).collect();
        let mut first = keeping(opened, config, false, &shelf);
        let (expected, cached) = said(&mut first, &job(1, prompt.clone(), 40));
        assert_eq!((expected.len(), cached), (40, 0));
        while first.save_blocks(3) {}
        drop(first);
        let mut second = keeping(opened, config, false, &shelf);
        assert_eq!(said(&mut second, &job(1, prompt.clone(), 40)), (expected.clone(), 144));
        let fetched = second.stats().fetched_blocks;
        assert!(fetched >= 9, "{fetched}");
        // The next turn of a chat also finds the answer, and cached blocks are not fetched.
        let longer: Vec<u32> = prompt.iter().chain(&expected).copied().chain([5, 6, 7]).collect();
        assert_eq!(said(&mut second, &job(2, longer.clone(), 3)).1, 176);
        let mut third = keeping(opened, config, false, &shelf);
        assert_eq!(said(&mut third, &job(2, longer.clone(), 3)).1, 176);
        // Blocks are not fetched for jobs that must not use the cache.
        let mut fourth = keeping(opened, config, false, &shelf);
        let alone = Job { skip_cache: true, ..job(3, longer.clone(), 3) };
        assert_eq!((said(&mut fourth, &alone).1, fourth.stats().fetched_blocks), (0, 0));
        let salted = Job { cache_salt: b"x".as_slice().into(), ..job(4, longer, 3) };
        assert_eq!((said(&mut fourth, &salted).1, fourth.stats().fetched_blocks), (0, 0));
    }
}

/// A model shared by several devices stores the blocks of all of them, for other devices with the same split.
#[test]
fn devices_that_share_a_model_keep_their_blocks_too() {
    let spec = &opened().decoder().unwrap().spec;
    let prompt: Vec<u32> = (0..150).map(|i| 300 + i * 7 % 2000).collect();
    let shelf = Shelf::new(3, None);
    let shared = |layers: [usize; 2]| {
        let device =
            || AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::detect().unwrap()));
        let cuts = layers.map(|layers| spec.cut(layers).unwrap()).to_vec();
        let backend = Pipeline::new((0..3).map(|_| device()).collect(), cuts);
        let config = EngineConfig { kv_type: KvType::Q8_0, kv_blocks: 96, ..config() };
        let mut engine = engine_on(AnyBackend::of_executor(backend), opened(), config);
        let (bytes, form) = engine.block_form().unwrap();
        BLOCK.set(bytes);
        engine.keep_blocks(Box::new(shelf.clone()));
        (engine, bytes, form)
    };
    let (mut first, bytes, form) = shared([1, 4]);
    let (expected, cached) = said(&mut first, &job(1, prompt.clone(), 40));
    assert_eq!((expected.len(), cached), (40, 0));
    while first.save_blocks(3) {}
    let mut second = shared([1, 4]).0;
    assert_eq!(said(&mut second, &job(1, prompt.clone(), 40)), (expected, 144));
    // Blocks are as large as on a single device; blocks of another split are incompatible.
    let alone = engine_of(opened(), EngineConfig { kv_type: KvType::Q8_0, ..config() }, false);
    let (other, elsewhere) = (shared([2, 4]), alone.block_form().unwrap());
    assert_eq!((other.1, elsewhere.0), (bytes, bytes));
    assert!(form != other.2 && form != elsewhere.1, "{form}");
}

#[test]
fn however_little_is_kept_the_same_is_said() {
    let (mut fetched, mut finished) = (0, 0);
    for seed in 0..16 {
        let mut random = Random(4000 + seed);
        let config = EngineConfig {
            kv_blocks: random.between(8, 30) as usize,
            step_tokens_max: random.between(8, 64) as usize,
            prefill_tokens_beside_decodes: random.between(4, 32) as usize,
            sequences_max: random.between(1, 6) as usize,
            ..config()
        };
        let context = random.between(40, (config.kv_blocks as u64 * 16).min(200)) as usize;
        let config = EngineConfig { context_tokens_max: context, ..config };
        let mut script = Script::new(&mut random, context);
        script.cancels.clear();
        let plain = script.play(&mut engine(config, false), &mut 0);
        let mut shelf = Shelf::new(random.between(0, 30) as usize, random.or(None, Some(3)));
        shelf.room = random.between(3, 60) as usize;
        for round in 0..3 {
            let mut engine = keeping(opened(), config, round == 1, &shelf);
            assert_eq!(script.play(&mut engine, &mut 0), plain, "seed {seed}, round {round}");
            while engine.save_blocks(7) {}
            fetched += engine.stats().fetched_blocks;
            assert_eq!(engine.stats().blocks_used, 0);
            finished += 1;
        }
    }
    assert!(fetched > 100 && finished == 48, "{fetched}");
}
