//! Damaged files, other models' files, a full disk, a kill while writing: each costs its block alone.

use std::{
    sync::mpsc::{Sender, channel},
    task::Wake,
    time::Instant,
};

use hanzo_engine_runtime::kv::BlockStore as _;

use super::*;

const BLOCK: usize = 4096;

/// Says when something has come.
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
        let (ring, rings) = channel();
        let blocks = disk.blocks(identity(model), BLOCK, Arc::new(Bell(Mutex::new(ring))).into());
        Rig { dir, disk, blocks, rings }
    }

    /// The same directory after a restart.
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
        assert!(self.blocks.ask(name(of)));
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(KeptBlock { name: answered, bytes, found }) = self.blocks.answer() {
                assert_eq!(answered, name(of));
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
    for of in 0..5 {
        assert!(rig.put(of));
        assert!(rig.blocks.has(&name(of)) && rig.get(of), "{of}");
    }
    assert!(!rig.get(9));
    let mut rig = rig.again(1 << 20, 1);
    assert!((0..5).all(|of| rig.blocks.has(&name(of)) && rig.get(of)));
    // Another model's are not its own.
    let mut rig = rig.again(1 << 20, 2);
    assert!((0..5).all(|of| !rig.blocks.has(&name(of)) && !rig.get(of)));
    assert_eq!(rig.damaged(), 0);
}

#[test]
fn a_file_that_is_damaged_is_dropped() {
    let mut rig = Rig::new(1 << 20);
    (0..7).for_each(|of| assert!(rig.put(of)));
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
    // Another block under this name, whole in itself.
    spoil(6, &|bytes| bytes.clone_from(&good));
    for of in 1..7 {
        assert!(!rig.get(of), "{of}");
        assert!(!rig.blocks.has(&name(of)) && !rig.path(of).exists(), "{of}");
    }
    assert_eq!(rig.damaged(), 6);
    assert!(rig.get(0));
    // One that went by another's hand is no damage.
    fs::remove_file(rig.path(0)).unwrap();
    assert!(!rig.get(0));
    assert_eq!(rig.damaged(), 6);
    // It can be kept again.
    assert!(rig.put(1) && rig.get(1));
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
    // A smaller bound holds from the start on, by what was used last before it; one that holds nothing keeps nothing.
    let rig = rig.again(2 * file, 1);
    assert_eq!((0..4).filter(|&of| rig.path(of).exists()).collect::<Vec<u8>>(), [0, 3]);
    let rig = rig.again(file, 1);
    assert_eq!((0..4).filter(|&of| rig.path(of).exists()).collect::<Vec<u8>>(), [3]);
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
    let mut rig = rig.again(1 << 20, 1);
    assert!(!half.exists() && stranger.exists());
    assert!(!rig.blocks.has(&name(2)) && !rig.get(2) && rig.get(1));
}

#[cfg(unix)]
#[test]
fn a_file_is_its_owners_and_is_replaced_and_never_changed() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let mut rig = Rig::new(1 << 20);
    let path = rig.path(1);
    // Opened before there is anything, so it writes what the other has written.
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
    // Whoever reads it now goes on reading all of it.
    let held = fs::File::open(&path).unwrap();
    put(&mut other.blocks, &other.disk);
    assert_ne!(fs::metadata(&path).unwrap().ino(), before);
    assert_eq!(held.metadata().unwrap().len(), file::bytes_of(BLOCK));
    assert!(other.get(1));
}

#[test]
fn a_disk_that_refuses_costs_nothing_else() {
    let mut rig = Rig::new(1 << 20);
    // In the place of the model's directory there is a file.
    let dir = rig.path(1).parent().unwrap().to_owned();
    fs::write(&dir, "in the way").unwrap();
    for of in 0..100 {
        rig.put(of);
    }
    assert!(!rig.get(1));
    assert_eq!(rig.disk.shared.counts.dropped_blocks.get(), 100);
    fs::remove_file(&dir).unwrap();
    assert!(rig.put(1) && rig.get(1));
}

#[test]
fn nothing_waits_where_there_is_no_room() {
    let mut rig = Rig::new(64 << 20);
    // Buffers are bounded: with all of them away the next is refused, at once.
    let mut asked = 0;
    while asked < 1000 && rig.blocks.ask(name(asked as u8)) {
        asked += 1;
    }
    assert!((1..1000).contains(&asked), "{asked}");
}

#[test]
fn files_that_differ_are_other_models() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let of = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        Identity::of(&Source::Path(path.clone())).unwrap()
    };
    let (zeros, one) = (vec![0; 3 << 20], [vec![0; (3 << 20) - 1], vec![1]].concat());
    let first = of(&zeros);
    assert_ne!(first, of(&one));
    let second = Identity::of(&Source::Path(path.clone())).unwrap();
    assert_eq!(second, Identity::of(&Source::Path(path.clone())).unwrap());
    assert_ne!(second, second.run_as("q8_0"));
    assert_eq!(Identity::parse(&second.to_string()), Some(second));
    assert_eq!(Identity::parse("x"), None);
}
