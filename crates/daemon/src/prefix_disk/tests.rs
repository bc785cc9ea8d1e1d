//! Tests of damaged files, files of other models, a full disk and a kill while writing: each costs only its own
//! block.

use std::{
    sync::mpsc::{Sender, channel},
    task::Wake,
    time::Instant,
};

use hanzo_engine_ops::KvType;
use hanzo_engine_runtime::{EngineConfig, Speculation, kv::BlockStore as _};

use super::*;
use crate::limits::{PREFIX_DISK_READ_BYTES, PREFIX_DISK_WRITE_BYTES};

const BLOCK: usize = 4096;

/// Waker that reports finished orders.
struct Bell(Mutex<Sender<()>>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

struct Rig {
    dir: tempfile::TempDir,
    disk: Arc<PrefixDisk>,
    blocks: DiskBlocks,
    rings: Receiver<()>,
}

fn identity(of: u8) -> Identity {
    file::unhex(&file::hex(&[of; 32]))
        .and_then(|bytes: [u8; 32]| Identity::parse(&file::hex(&bytes)))
        .unwrap()
}

fn name(of: u8) -> BlockName {
    BlockName { group: u16::from(of % 3), hash: [of; 16] }
}

impl Rig {
    fn new(bytes_max: u64) -> Rig {
        Rig::at(tempfile::tempdir().unwrap(), bytes_max, 1)
    }

    fn at(dir: tempfile::TempDir, bytes_max: u64, model: u8) -> Rig {
        let disk = PrefixDisk::open(&dir.path().join("kv"), bytes_max).unwrap();
        Rig::of(dir, disk, model)
    }

    fn of(dir: tempfile::TempDir, disk: Arc<PrefixDisk>, model: u8) -> Rig {
        let (ring, rings) = channel();
        let blocks = disk.blocks(identity(model), BLOCK, Arc::new(Bell(Mutex::new(ring))).into());
        Rig { dir, disk, blocks, rings }
    }

    /// Reopens the same directory, as after a restart.
    fn again(self, bytes_max: u64, model: u8) -> Rig {
        let Rig { dir, disk, blocks, .. } = self;
        drop((blocks, disk));
        Rig::at(dir, bytes_max, model)
    }

    fn put(&mut self, of: u8) -> bool {
        let put = self.blocks.put(name(of), &mut |bytes| {
            bytes.fill(of);
            true
        });
        self.disk.flush(Duration::from_secs(20));
        put
    }

    fn get(&mut self, of: u8) -> bool {
        self.get_as(name(of), of)
    }

    fn get_as(&mut self, name: BlockName, of: u8) -> bool {
        assert!(self.blocks.ask(name));
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(KeptBlock { name: answered, bytes, found }) = self.blocks.answer() {
                assert_eq!(answered, name);
                assert!(!found || bytes.iter().all(|&byte| byte == of), "another block's content");
                self.blocks.recycle(bytes);
                return found;
            }
            let left = until.saturating_duration_since(Instant::now());
            self.rings.recv_timeout(left).expect("an answer");
        }
    }

    fn path(&self, of: u8) -> PathBuf {
        self.disk.shared.path(&Key { model: identity(1), name: name(of) })
    }

    fn damaged(&self) -> u64 {
        self.disk.shared.counts.damaged_blocks.get()
    }
}

#[test]
fn what_was_written_is_found_after_a_restart() {
    let mut rig = Rig::new(1 << 20);
    let file = file::bytes_of(BLOCK);
    for of in 0..5 {
        // Written only once, however often it is stored.
        assert!(rig.put(of) && rig.put(of));
        let counts = rig.disk.counts();
        assert_eq!((counts.bytes, counts.written_bytes), ((u64::from(of) + 1) * file, counts.bytes));
        assert!(rig.blocks.has(&name(of)) && rig.get(of), "{of}");
    }
    assert!(!rig.get(9));
    let mut rig = rig.again(1 << 20, 1);
    assert_eq!(rig.disk.counts(), DiskCounts { bytes: 5 * file, ..DiskCounts::default() });
    assert_eq!(lock(&rig.disk.shared.index).added, 0, "what was there is no reason to look again");
    assert!((0..5).all(|of| rig.blocks.has(&name(of)) && rig.get(of)));
    assert_eq!(rig.disk.counts().read_blocks, 5);
    // Blocks of another model are not found.
    let mut rig = rig.again(1 << 20, 2);
    assert!((0..5).all(|of| !rig.blocks.has(&name(of)) && !rig.get(of)));
    assert_eq!(rig.damaged(), 0);
}

#[test]
fn a_file_that_is_damaged_is_dropped() {
    let mut rig = Rig::new(1 << 20);
    (0..8).for_each(|of| assert!(rig.put(of)));
    let good = fs::read(rig.path(0)).unwrap();
    let spoil = |of: u8, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(rig.path(of)).unwrap();
        change(&mut bytes);
        fs::write(rig.path(of), bytes).unwrap();
    };
    spoil(1, &|bytes| *bytes.last_mut().unwrap() ^= 1);
    spoil(2, &|bytes| bytes[20] ^= 0x80);
    spoil(3, &|bytes| bytes.truncate(bytes.len() - 1));
    spoil(4, &|bytes| bytes.clear());
    spoil(5, &|bytes| bytes.push(0));
    // The valid content of another block under this name.
    spoil(6, &|bytes| bytes.clone_from(&good));
    spoil(7, &|bytes| {
        let first_of_content = bytes.len() - BLOCK;
        bytes[first_of_content] ^= 1;
    });
    for of in 1..8 {
        assert!(!rig.get(of), "{of}");
        assert!(!rig.blocks.has(&name(of)) && !rig.path(of).exists(), "{of}");
    }
    assert_eq!((rig.damaged(), rig.disk.counts().bytes), (7, file::bytes_of(BLOCK)));
    assert!(rig.get(0));
    // A file removed by another process does not count as damage.
    fs::remove_file(rig.path(0)).unwrap();
    assert!(!rig.get(0) && !rig.blocks.has(&name(0)));
    assert_eq!((rig.damaged(), rig.disk.counts().bytes), (7, 0));
    // The block can be stored again.
    assert!(rig.put(1) && rig.get(1));
}

#[test]
fn whichever_bit_is_turned_it_is_damage() {
    let mut rig = Rig::new(1 << 20);
    assert!(rig.put(1));
    let (path, key) = (rig.path(1), Key { model: identity(1), name: name(1) });
    let good = fs::read(&path).unwrap();
    let mut content = vec![0; BLOCK];
    let mut read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        file::read(&path, key, &mut content)
    };
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(matches!(read(&bytes), FileOutcome::Damaged), "at {at}");
    }
    assert!(matches!(read(&good), FileOutcome::Whole(_)));
    // A part that was never written.
    let mut bytes = good;
    bytes[BLOCK / 2..].fill(0);
    assert!(matches!(read(&bytes), FileOutcome::Damaged));
}

#[cfg(unix)]
#[test]
fn what_is_no_block_is_not_opened_and_keeps_nothing_from_being_opened() {
    let mut rig = Rig::new(1 << 20);
    assert!(rig.put(1) && rig.put(2));
    // A link to a valid block, and a file in place of a model's directory.
    let aside = rig.dir.path().join("aside");
    fs::rename(rig.path(1), &aside).unwrap();
    std::os::unix::fs::symlink(&aside, rig.path(1)).unwrap();
    fs::write(rig.dir.path().join("kv").join(identity(9).to_string()), "no directory").unwrap();
    assert!(!rig.get(1) && aside.exists());
    assert_eq!(rig.damaged(), 1);
    std::os::unix::fs::symlink(&aside, rig.path(1)).unwrap();
    // Names have a single spelling.
    let shouting = rig.path(2).with_file_name(file::name(&name(0xab)).to_uppercase().replace(".KV", ".kv"));
    fs::copy(rig.path(2), &shouting).unwrap();
    let mut rig = rig.again(1 << 20, 1);
    assert!(!rig.blocks.has(&name(1)) && !rig.blocks.has(&name(0xab)) && rig.get(2));
    assert!(shouting.exists());
}

#[test]
fn a_block_of_another_model_or_group_is_not_taken_for_it() {
    let mut rig = Rig::new(1 << 20);
    assert!(rig.put(1));
    let other_group = BlockName { group: name(1).group + 1, ..name(1) };
    let of_other_model = rig.disk.shared.path(&Key { model: identity(2), name: name(1) });
    fs::copy(rig.path(1), rig.disk.shared.path(&Key { model: identity(1), name: other_group })).unwrap();
    private_dir(of_other_model.parent().unwrap()).unwrap();
    fs::copy(rig.path(1), &of_other_model).unwrap();
    let mut rig = rig.again(1 << 20, 1);
    assert!(rig.blocks.has(&other_group) && !rig.get_as(other_group, 1) && rig.get(1));
    let mut rig = rig.again(1 << 20, 2);
    assert!(rig.blocks.has(&name(1)) && !rig.get(1));
    assert_eq!(rig.damaged(), 1);
}

#[test]
fn as_many_files_are_kept_as_may_be() {
    let mut rig = Rig::new(64 << 20);
    let all = 0..PREFIX_DISK_FILES_MAX as u8 + 3;
    all.clone().for_each(|of| assert!(rig.put(of)));
    let there = |rig: &Rig| all.clone().filter(|&of| rig.path(of).exists()).collect::<Vec<u8>>();
    assert_eq!(there(&rig), (3..all.end).collect::<Vec<u8>>());
    // A start does not load more than the limit either, and deletes the rest.
    fs::copy(rig.path(5), rig.path(1)).unwrap();
    let rig = rig.again(64 << 20, 1);
    // The start deletes one more, which leaves room for the next block.
    assert!(there(&rig).len() < PREFIX_DISK_FILES_MAX);
    assert_eq!(all.clone().filter(|&of| rig.blocks.has(&name(of))).count(), there(&rig).len());
}

#[test]
fn several_processes_keep_within_one_bound() {
    let file = file::bytes_of(BLOCK);
    // The part of the limit after which a process rescans is one file.
    let files_max = PREFIX_DISK_LOOKS;
    let dir = tempfile::tempdir().unwrap();
    let kv = dir.path().join("kv");
    let open = || PrefixDisk::open_shared(&kv, files_max * file).unwrap();
    let mut one = Rig::of(dir, open(), 1);
    let mut other = Rig::of(tempfile::tempdir().unwrap(), open(), 1);
    for of in 0..40 {
        assert!(one.put(of) && other.put(100 + of));
    }
    // Each may exceed the limit by the parts written before it rescans.
    let there = (0..=255).filter(|&of| one.path(of).exists()).count() as u64;
    assert!((files_max - 2..=files_max + 4).contains(&there), "{there} files");
    // A recent unfinished file belongs to its writer; an old one is a leftover.
    let half = one.path(7).with_extension("123.tmp");
    fs::write(&half, [0; 100]).unwrap();
    drop(open());
    assert!(half.exists());
    let then = SystemTime::now() - 2 * PREFIX_DISK_UNFINISHED;
    fs::File::options().write(true).open(&half).unwrap().set_modified(then).unwrap();
    drop(open());
    assert!(!half.exists());
}

#[test]
fn what_was_used_least_recently_goes_first() {
    let file = file::bytes_of(BLOCK);
    let mut rig = Rig::new(3 * file);
    (0..3).for_each(|of| assert!(rig.put(of)));
    assert!(rig.get(0));
    assert!(rig.put(3));
    let there: Vec<u8> = (0..4).filter(|&of| rig.path(of).exists()).collect();
    assert_eq!(there, [0, 2, 3]);
    assert_eq!(rig.disk.shared.counts.bytes.get() as u64, 3 * file);
    // A smaller limit applies from the start on. The most recently used files are kept, and reading counts as use.
    // A limit below one file keeps nothing.
    for (of, hours) in [(0, 3), (2, 2), (3, 1)] {
        let then = SystemTime::now() - Duration::from_secs(3600 * hours);
        fs::File::options().write(true).open(rig.path(of)).unwrap().set_modified(then).unwrap();
    }
    assert!(rig.get(0));
    let there = |rig: &Rig| (0..4).filter(|&of| rig.path(of).exists()).collect::<Vec<u8>>();
    let rig = rig.again(2 * file, 1);
    assert_eq!(there(&rig), [0, 3]);
    let rig = rig.again(file, 1);
    assert_eq!(there(&rig), [0]);
    let mut rig = rig.again(file - 1, 1);
    rig.put(5);
    assert!(!rig.path(5).exists() && !rig.blocks.has(&name(5)));
    assert_eq!(rig.disk.shared.counts.dropped_blocks.get(), 1);
}

#[test]
fn what_was_being_written_at_a_kill_is_not_found() {
    let mut rig = Rig::new(1 << 20);
    assert!(rig.put(1));
    let half = rig.path(2).with_extension("123.tmp");
    fs::write(&half, [0; 100]).unwrap();
    let stranger = rig.path(1).with_file_name("notes.txt");
    fs::write(&stranger, "mine").unwrap();
    fs::create_dir(rig.path(3)).unwrap();
    let mut rig = rig.again(1 << 20, 1);
    assert!(!half.exists() && stranger.exists());
    assert!(!rig.blocks.has(&name(3)), "a folder is no block");
    assert!(!rig.blocks.has(&name(2)) && !rig.get(2) && rig.get(1));
}

#[cfg(unix)]
#[test]
fn a_file_is_its_owners_and_is_replaced_and_never_changed() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let mut rig = Rig::new(1 << 20);
    let path = rig.path(1);
    // Opened before any file exists, so it writes a block that the other has written too.
    let mut other = Rig::at(rig.dir, 1 << 20, 1);
    rig.dir = tempfile::tempdir().unwrap();
    let put = |blocks: &mut DiskBlocks, disk: &PrefixDisk| {
        assert!(blocks.put(name(1), &mut |bytes| {
            bytes.fill(1);
            true
        }));
        disk.flush(Duration::from_secs(20));
    };
    put(&mut rig.blocks, &rig.disk);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    let before = fs::metadata(&path).unwrap().ino();
    // A reader that has the file open still reads all of it.
    let held = fs::File::open(&path).unwrap();
    put(&mut other.blocks, &other.disk);
    assert_ne!(fs::metadata(&path).unwrap().ino(), before);
    assert_eq!(held.metadata().unwrap().len(), file::bytes_of(BLOCK));
    assert!(other.get(1));
}

#[test]
fn a_disk_that_refuses_costs_nothing_else() {
    let mut rig = Rig::new(1 << 20);
    // A file occupies the place of the model's directory.
    let dir = rig.path(1).parent().unwrap().to_owned();
    fs::write(&dir, "in the way").unwrap();
    for of in 0..100 {
        rig.put(of);
    }
    assert!(!rig.get(1));
    assert_eq!(rig.disk.shared.counts.dropped_blocks.get(), 100);
    fs::remove_file(&dir).unwrap();
    assert!(rig.put(1) && rig.get(1));
    // A file that cannot be renamed leaves nothing behind.
    fs::create_dir(rig.path(2)).unwrap();
    rig.put(2);
    assert!(!rig.blocks.has(&name(2)));
    assert_eq!(rig.disk.shared.counts.dropped_blocks.get(), 101);
    let unfinished = |entry: fs::DirEntry| file::is_unfinished(entry.file_name().to_str().unwrap());
    assert!(!fs::read_dir(&dir).unwrap().any(|entry| unfinished(entry.unwrap())));
}

#[test]
fn nothing_waits_where_there_is_no_room() {
    let mut rig = Rig::new(64 << 20);
    // The number of buffers is limited: with all of them in use, the next read is refused at once.
    let mut asked = 0;
    while asked < 1000 && rig.blocks.ask(name(asked as u8)) {
        asked += 1;
    }
    assert!((1..1000).contains(&asked), "{asked}");
}

#[test]
fn a_way_that_is_full_keeps_nobody_waiting() {
    const BUFFERS: usize = 64; // in each direction, for each engine
    let mut rig = Rig::new(64 << 20);
    assert!(rig.put(1));
    let disk = rig.disk.clone();
    let engine = |_| disk.blocks(identity(1), BLOCK, Waker::noop().clone());
    let mut engines: Vec<DiskBlocks> = (0..PREFIX_DISK_ORDERS_MAX / BUFFERS + 2).map(engine).collect();
    let all = engines.len() * BUFFERS;
    let put = |engine: &mut DiskBlocks, of| engine.put(name(of), &mut |_| true);
    // Neither thread makes progress: each holds at most one order, and its queue the others.
    let index = lock(&disk.shared.index);
    let on_their_way = [PREFIX_DISK_ORDERS_MAX, PREFIX_DISK_ORDERS_MAX + 1];
    let (mut written, mut refused) = (0, 0);
    for engine in &mut engines {
        (0..BUFFERS).for_each(|_| written += usize::from(put(engine, 1)));
        (0..BUFFERS).for_each(|_| assert!(engine.ask(name(1))));
        while let Some(KeptBlock { name: answered, bytes, found }) = engine.answer() {
            assert_eq!((answered, bytes.len(), found), (name(1), BLOCK, false));
            engine.recycle(bytes);
            refused += 1;
        }
    }
    assert!(on_their_way.contains(&written), "{written}");
    assert!(on_their_way.contains(&(all - refused)), "{refused}");
    assert_eq!(disk.counts().dropped_blocks as usize, all - written);
    // All buffers of the first engine are in use.
    assert!(!put(&mut engines[0], 1));
    assert_eq!(disk.counts().dropped_blocks as usize, all - written + 1);
    drop(index);
    disk.flush(Duration::from_secs(20));
    assert_eq!(*lock(&disk.shared.writing), 0);
    // The engine whose orders were refused has its buffers back.
    let last = engines.last_mut().unwrap();
    assert!((0..BUFFERS).all(|_| put(last, 1)));
}

#[test]
fn buffers_come_back() {
    let mut rig = Rig::new(1 << 20);
    // More than there are buffers, both of failed copies and of reads.
    (0..100).for_each(|_| assert!(!rig.blocks.put(name(1), &mut |_| false)));
    assert!(rig.put(1));
    (0..100).for_each(|_| assert!(rig.get(1)));
    assert_eq!(rig.disk.counts().dropped_blocks, 0);
}

#[test]
fn buffers_are_planned_with_the_model() {
    let config = EngineConfig {
        kv_blocks: 8,
        kv_type: KvType::F16,
        kv_resident: false,
        step_tokens_max: 1,
        prefill_tokens_beside_decodes: 1,
        sequences_max: 1,
        context_tokens_max: 16,
        prefix_cache: true,
        speculation: Speculation::Off,
    };
    let beside = |block_bytes: u64| DiskBlocks::planned(8 * block_bytes, &config);
    assert_eq!(beside(1 << 20), (PREFIX_DISK_READ_BYTES + PREFIX_DISK_WRITE_BYTES) as u64);
    // There is at least one buffer of each kind.
    assert_eq!(beside(100 << 20), 200 << 20);
}

#[test]
fn what_another_process_counts_is_added() {
    let rig = Rig::new(1 << 20);
    let first =
        DiskCounts { bytes: 9, written_bytes: 8, read_blocks: 7, damaged_blocks: 6, dropped_blocks: 5 };
    let then =
        DiskCounts { bytes: 3, written_bytes: 18, read_blocks: 27, damaged_blocks: 36, dropped_blocks: 45 };
    rig.disk.count(None, first);
    assert_eq!(rig.disk.counts(), first);
    rig.disk.count(Some(first), then);
    assert_eq!(rig.disk.counts(), then);
    // Another process with the same model starts at zero.
    rig.disk.count(None, first);
    let both =
        DiskCounts { bytes: 9, written_bytes: 26, read_blocks: 34, damaged_blocks: 42, dropped_blocks: 50 };
    assert_eq!(rig.disk.counts(), both);
}

#[test]
fn files_that_differ_are_other_models() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8], seconds: u64| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        fs::File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
        path
    };
    let of = |path: &Path| Identity::of(&ModelSource::Path(path.to_owned())).unwrap();
    let zeros = vec![0; 3 << 20];
    let but = |at: usize| {
        let mut content = zeros.clone();
        content[at] = 1;
        content
    };
    let first = of(&write("model.gguf", &zeros, 1));
    assert_eq!(first, of(&write("model.gguf", &zeros, 1)));
    // Modification time, beginning, the rest of the file, and the options of the run all count.
    assert_ne!(first, of(&write("model.gguf", &zeros, 2)));
    assert_ne!(first, of(&write("model.gguf", &but(0), 1)));
    assert_ne!(first, of(&write("model.gguf", &but((1 << 20) - 1), 1)));
    assert_ne!(first, of(&write("model.gguf", &but((3 << 20) - 1), 1)));
    // In the middle of the rest, where a sample is.
    assert_ne!(first, of(&write("model.gguf", &but((2 << 20) - 2048), 1)));
    assert_ne!(first, of(&write("other.gguf", &zeros, 1)));
    assert_ne!(first, first.run_as("q8_0"));
    assert_ne!(first.run_as("f16"), first.run_as("q8_0"));
    // The other parts of a split file count, and no other file.
    let path = write("m-00001-of-00002.gguf", b"one", 1);
    write("m-00002-of-00002.gguf", b"two", 1);
    let parts = of(&path);
    write("n-00002-of-00002.gguf", b"another", 1);
    assert_eq!(of(&path), parts);
    write("m-00002-of-00002.gguf", b"2", 1);
    assert_ne!(of(&path), parts);
    assert_eq!(Identity::parse(&first.to_string()), Some(first));
    assert_eq!(Identity::parse("x"), None);
    assert_eq!(Identity::parse(&"A".repeat(64)), None);
    // The files of a directory are taken in a fixed order, and its subdirectories are skipped.
    let folder = dir.path().join("folder");
    fs::create_dir_all(folder.join("sub")).unwrap();
    (0..40).for_each(|at| fs::write(folder.join(format!("{:02}", at * 7 % 40)), "x").unwrap());
    let files = identity::files(&folder).unwrap();
    assert!(files.len() == 40 && files.is_sorted(), "{files:?}");
    // A model whose files cannot be read runs without a disk cache.
    let rig = Rig::new(1 << 20);
    let gone = ModelSource::Path(dir.path().join("gone.gguf"));
    assert!(rig.disk.clone().for_load(&gone, &Overrides::default()).is_none());
    let there = ModelSource::Path(dir.path().join("model.gguf"));
    assert!(rig.disk.clone().for_load(&there, &Overrides::default()).is_some());
}
