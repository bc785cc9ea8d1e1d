//! Tests of the reader: valid files read back as written; invalid ones give errors that name the fault, however they
//! were damaged.

use proptest::prelude::*;

use super::*;

/// Writer of small GGUF files, valid or not.
pub(crate) struct Builder {
    version: u32,
    alignment: usize,
    keys: Vec<Vec<u8>>,
    tensors: Vec<(Vec<u8>, Vec<u8>)>, // entry without its offset, and data
    offsets: Vec<Option<u64>>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self { version: 3, alignment: 32, keys: Vec::new(), tensors: Vec::new(), offsets: Vec::new() }
    }

    pub(crate) fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    pub(crate) fn text(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
    }

    /// A key with a value type and the value's bytes.
    pub(crate) fn raw(mut self, key: &[u8], kind: u32, value: &[u8]) -> Self {
        self.keys.push([&Self::text(key)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key.as_bytes(), 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key.as_bytes(), 6, &value.to_le_bytes())
    }

    pub(crate) fn string(self, key: &str, value: &str) -> Self {
        self.raw(key.as_bytes(), 8, &Self::text(value.as_bytes()))
    }

    pub(crate) fn strings(self, key: &str, values: &[&str]) -> Self {
        let texts: Vec<u8> = values.iter().flat_map(|value| Self::text(value.as_bytes())).collect();
        let head = [&8u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &texts].concat();
        self.raw(key.as_bytes(), 9, &head)
    }

    pub(crate) fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment as usize;
        self.u32("general.alignment", alignment)
    }

    /// Adds a tensor with its contiguous dimension first, as in the file.
    pub(crate) fn tensor(mut self, name: &str, dimensions: &[u64], dtype: u32, data: &[u8]) -> Self {
        let mut entry = Self::text(name.as_bytes());
        entry.extend((dimensions.len() as u32).to_le_bytes());
        entry.extend(dimensions.iter().flat_map(|size| size.to_le_bytes()));
        entry.extend(dtype.to_le_bytes());
        self.tensors.push((entry, data.to_vec()));
        self.offsets.push(None);
        self
    }

    /// Adds zeros of type F32, outermost dimension first.
    pub(crate) fn zeros(self, name: &str, shape: &[usize]) -> Self {
        let dimensions: Vec<u64> = shape.iter().rev().map(|&size| size as u64).collect();
        let data = vec![0; 4 * shape.iter().product::<usize>()];
        self.tensor(name, &dimensions, 0, &data)
    }

    /// Sets the last tensor's offset, wherever its data is.
    pub(crate) fn at(mut self, offset: u64) -> Self {
        *self.offsets.last_mut().unwrap() = Some(offset);
        self
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.keys.len() as u64).to_le_bytes());
        file.extend(self.keys.concat());
        let mut data = Vec::new();
        for ((entry, bytes), offset) in self.tensors.iter().zip(&self.offsets) {
            file.extend(entry);
            file.extend(offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(self.alignment), 0);
        }
        file.resize(file.len().next_multiple_of(self.alignment), 0);
        file.extend(data);
        file
    }

    fn parse(&self) -> Result<Gguf, LoadError> {
        Gguf::parse("a.gguf", &self.build().into())
    }

    fn error(&self) -> String {
        self.parse().unwrap_err().to_string()
    }
}

/// A file with all value types, nested arrays, and three tensor types.
fn sample() -> Builder {
    let inner: Vec<u8> =
        [&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &1u32.to_le_bytes(), &2u64.to_le_bytes(), &[7, 8]]
            .concat();
    Builder::new()
        .raw(b"a.u8", 0, &[200])
        .raw(b"a.i8", 1, &[200])
        .raw(b"a.u16", 2, &40_000u16.to_le_bytes())
        .raw(b"a.i16", 3, &(-5i16).to_le_bytes())
        .u32("a.u32", 7)
        .raw(b"a.i32", 5, &(-7i32).to_le_bytes())
        .f32("a.f32", 0.5)
        .raw(b"a.bool", 7, &[1])
        .string("a.text", "grüezi")
        .strings("a.texts", &["", "x", "ñ"])
        .raw(b"a.nested", 9, &inner)
        .raw(b"a.u64", 10, &(1u64 << 40).to_le_bytes())
        .raw(b"a.i64", 11, &(-1i64 << 40).to_le_bytes())
        .raw(b"a.f64", 12, &0.25f64.to_le_bytes())
        .tensor("plain", &[2, 3], 0, &[1; 24])
        .tensor("half", &[3], 1, &[2; 6])
        .tensor("quantised", &[64, 8], 8, &[3; 16 * 34])
}

#[test]
fn a_sound_file_reads_back() {
    for version in [2, 3] {
        let gguf = sample().version(version).parse().unwrap();
        assert_eq!(gguf.version, version);
        let m = &gguf.metadata;
        assert_eq!(m.integer("a.u8").unwrap(), Some(200));
        assert_eq!(m.integer("a.i8").unwrap(), Some(-56));
        assert_eq!(m.integer("a.u16").unwrap(), Some(40_000));
        assert_eq!(m.integer("a.i16").unwrap(), Some(-5));
        assert_eq!(m.u32("a.u32").unwrap(), Some(7));
        assert_eq!(m.integer("a.i32").unwrap(), Some(-7));
        assert_eq!(m.f32("a.f32").unwrap(), Some(0.5));
        assert_eq!(m.bool("a.bool").unwrap(), Some(true));
        assert_eq!(m.string("a.text").unwrap(), Some("grüezi"));
        assert_eq!(m.strings("a.texts").unwrap().unwrap(), ["", "x", "ñ"]);
        assert_eq!(m.integer("a.u64").unwrap(), Some(1 << 40));
        assert_eq!(m.integer("a.i64").unwrap(), Some(-1 << 40));
        assert_eq!(m.f32("a.f64").unwrap(), Some(0.25));
        assert_eq!(m.get("a.nested"), Some(&Value::Array(Array::Array(vec![Array::I8(vec![7, 8])]))));
        assert_eq!(m.string("absent").unwrap(), None);
        let found: Vec<_> = gguf
            .tensors
            .iter()
            .map(|t| (t.name.as_str(), t.dtype, t.shape.clone(), t.bytes.to_vec()))
            .collect();
        assert_eq!(
            found,
            [
                ("plain", DType::F32, vec![3, 2], vec![1; 24]),
                ("half", DType::F16, vec![3], vec![2; 6]),
                ("quantised", DType::Q8_0, vec![8, 64], vec![3; 544]),
            ]
        );
    }
}

#[test]
fn another_alignment_is_followed() {
    let gguf = Builder::new()
        .alignment(256)
        .tensor("a", &[3], 24, &[1, 2, 3])
        .tensor("b", &[2], 24, &[4, 5])
        .parse()
        .unwrap();
    assert_eq!(&gguf.tensors[0].bytes[..], [1, 2, 3]);
    assert_eq!(&gguf.tensors[1].bytes[..], [4, 5]);
}

#[test]
fn errors_name_file_and_place() {
    let huge = u64::MAX.to_le_bytes();
    let strings_claimed = [&8u32.to_le_bytes()[..], &(1u64 << 23).to_le_bytes()].concat();
    let deep: Vec<u8> = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat().repeat(6);
    let cases: Vec<(Builder, &str)> = vec![
        (Builder::new().version(1), "a.gguf: GGUF version = 1 is not supported"),
        (Builder::new().version(3u32.swap_bytes()), "GGUF version = 3 (big-endian) is not supported"),
        (Builder::new().version(99), "GGUF version = 99 is not supported"),
        (Builder::new().u32("twice", 1).u32("twice", 2), "a.gguf: key twice: the key is there twice"),
        (Builder::new().raw(b"k", 13, &[]), "key k: unknown value type 13"),
        (Builder::new().raw(b"k", 7, &[2]), "key k: a bool is 2"),
        (Builder::new().raw(b"k", 8, &Builder::text(&[0xff])), "key k: text is not UTF-8"),
        (Builder::new().raw(&[0xff], 4, &[0; 4]), "key 1 of 1: text is not UTF-8"),
        (Builder::new().raw(b"", 4, &[0; 4]), "key 1 of 1: a name is empty"),
        (Builder::new().raw(b"k", 8, &huge), "key k: 18446744073709551615 bytes of text"),
        (Builder::new().raw(b"k", 9, &strings_claimed), "key k: 8388608 strings do not fit"),
        (Builder::new().raw(b"k", 9, &deep), "key k: arrays are nested deeper than 4"),
        (Builder::new().raw(b"k", 9, &[99; 12]), "key k: unknown array type"),
        (Builder::new().u32("general.alignment", 24), "key general.alignment: 24 is not a power of two"),
        (Builder::new().u32("general.alignment", 0), "key general.alignment: 0 is not a power of two"),
        (Builder::new().string("general.alignment", "32"), "expected an integer, found string"),
        (Builder::new().zeros("t", &[2]).zeros("t", &[2]), "a.gguf: tensor t: the tensor is there twice"),
        (Builder::new().tensor("t", &[], 0, &[]), "tensor t: 0 dimensions"),
        (Builder::new().tensor("t", &[1; 5], 0, &[0; 4]), "tensor t: 5 dimensions"),
        (Builder::new().tensor("t", &[4, 0], 0, &[]), "tensor t: a dimension is 0"),
        (Builder::new().tensor("t", &[1 << 40, 1 << 40], 0, &[]), "tensor t: [1099511627776, 1099511627776]"),
        (Builder::new().tensor("t", &[4], 4, &[0; 16]), "tensor t: element type = 4 is not supported"),
        (Builder::new().tensor("t", &[31], 8, &[0; 34]), "tensor t: rows of 31 are not whole blocks of 32"),
        (Builder::new().zeros("t", &[8]).at(4), "tensor t: it starts at 4"),
        (Builder::new().zeros("t", &[8]).at(1 << 40), "reach past the file's end"),
        (Builder::new().zeros("t", &[8]).at(u64::MAX - 31), "reach past the file's end"),
        (Builder::new().zeros("a", &[64]).zeros("b", &[8]).at(32), "tensor b: it overlaps tensor a"),
    ];
    for (builder, expected) in cases {
        let error = builder.error();
        assert!(error.contains(expected), "expected {expected:?} in {error:?}");
        assert!(error.starts_with("a.gguf"), "{error:?} names the file");
    }
}

#[test]
fn every_truncation_is_an_error() {
    // The last tensor's size is a multiple of the alignment: the file ends with its data, not with padding.
    let file = sample().build();
    for length in 0..file.len() {
        let parsed = Gguf::parse("a.gguf", &file[..length].to_vec().into());
        assert!(parsed.is_err(), "{length} bytes of {} were taken", file.len());
    }
}

/// Checks the result of reading any bytes. An error names the file and is one line. A file that is read has whole
/// tensors inside it, apart from each other and with the file's bytes, and a second reading gives the same.
fn check_read(file: &[u8]) -> Result<Gguf, String> {
    let bytes: ModelBytes = file.to_vec().into();
    let gguf = match Gguf::parse("a.gguf", &bytes) {
        Ok(gguf) => gguf,
        Err(error) => {
            let error = error.to_string();
            assert!(
                error.starts_with("a.gguf") && error.len() > "a.gguf: ".len(),
                "{error:?} names the file"
            );
            assert!(error.len() < 1000 && !error.contains('\n'), "{error:?} is a line");
            assert_eq!(
                Gguf::parse("a.gguf", &bytes).map(drop).map_err(|e| e.to_string()),
                Err(error.clone())
            );
            return Err(error);
        }
    };
    assert_eq!(&file[..4], b"GGUF");
    assert!([2, 3].contains(&gguf.version) && gguf.version.to_le_bytes() == file[4..8]);
    let claimed = u64::from_le_bytes(file[8..16].try_into().unwrap());
    assert_eq!(gguf.tensors.len() as u64, claimed, "every tensor that is announced is there");
    let mut places: Vec<std::ops::Range<usize>> = Vec::new();
    for tensor in &gguf.tensors {
        assert!(!tensor.name.is_empty() && !tensor.shape.contains(&0), "{}: {:?}", tensor.name, tensor.shape);
        let elements: usize = tensor.shape.iter().product();
        assert_eq!(
            (elements, Some(tensor.bytes.len())),
            (tensor.elements(), tensor.dtype.bytes_of(elements))
        );
        let start = tensor.bytes.as_ptr() as usize - bytes.as_ptr() as usize;
        assert_eq!(&file[start..start + tensor.bytes.len()], &tensor.bytes[..], "{}", tensor.name);
        places.push(start..start + tensor.bytes.len());
    }
    places.sort_unstable_by_key(|place| place.start);
    assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start), "tensors overlap: {places:?}");
    let names: std::collections::BTreeSet<&str> = gguf.tensors.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names.len(), gguf.tensors.len(), "names are there once");
    Ok(gguf)
}

/// Content of the tensors, by name.
fn contents(gguf: &Gguf) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    gguf.tensors.iter().map(|t| (t.name.clone(), t.shape.clone(), t.bytes.to_vec())).collect()
}

#[test]
fn every_flipped_bit_is_refused_or_seen() {
    let sound = sample();
    let file = sound.build();
    let whole = check_read(&file).unwrap();
    let entries: usize = sound.tensors.iter().map(|(entry, _)| entry.len() + 8).sum();
    let header = 24 + sound.keys.concat().len() + entries;
    let mut refused = 0;
    for bit in 0..file.len() * 8 {
        let mut flipped = file.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let read = match check_read(&flipped) {
            Ok(read) => read,
            Err(error) => {
                assert!(bit / 8 < header, "bit {bit} is a number's, or of no meaning: {error}");
                refused += 1;
                continue;
            }
        };
        let changed: usize = contents(&whole)
            .iter()
            .zip(contents(&read))
            .map(|(old, new)| {
                old.2.iter().zip(&new.2).map(|(a, b)| (a ^ b).count_ones() as usize).sum::<usize>()
            })
            .sum();
        if bit / 8 >= header {
            // A changed number, or an unread byte.
            assert_eq!(format!("{:?}", read.metadata), format!("{:?}", whole.metadata));
            assert!(changed <= 1, "bit {bit} changed {changed}");
        } else {
            // Every bit of the header has a meaning.
            let differs = read.version != whole.version
                || format!("{:?}", read.metadata) != format!("{:?}", whole.metadata)
                || format!("{:?}", read.tensors) != format!("{:?}", whole.tensors)
                || contents(&read) != contents(&whole);
            assert!(differs, "bit {bit} was not seen");
        }
    }
    // Counts, lengths, types, offsets and names in other alphabets: most of a header.
    assert!(refused > header * 3, "{refused} of {} bits were refused", header * 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Bytes without valid counts are refused; those with zero counts are an empty file.
    #[test]
    fn any_bytes_are_refused(tail in prop::collection::vec(any::<u8>(), 0..400), version in 2u32..4) {
        let file = [&b"GGUF"[..], &version.to_le_bytes(), &tail].concat();
        let empty = tail.len() >= 16 && tail[..16].iter().all(|&byte| byte == 0);
        prop_assert_eq!(check_read(&file).is_ok(), empty);
    }

    /// Same as `any_bytes_are_refused`, further into a file: small counts, and the elements of keys and tensors in any
    /// order.
    #[test]
    fn any_header_is_read_or_refused(
        counts in (0u64..3, 0u64..4), version in 2u32..4,
        words in prop::collection::vec(prop_oneof![
            (0u64..40).prop_map(|number| number.to_le_bytes().to_vec()),
            (0u32..16).prop_map(|kind| kind.to_le_bytes().to_vec()),
            "[a-z.]{1,8}".prop_map(|text| Builder::text(text.as_bytes())),
            prop::collection::vec(any::<u8>(), 0..16),
        ], 0..30),
    ) {
        let (tensors, keys) = (counts.0.to_le_bytes(), counts.1.to_le_bytes());
        let file = [&b"GGUF"[..], &version.to_le_bytes(), &tensors, &keys, &words.concat()].concat();
        let read = check_read(&file);
        prop_assert!(counts != (0, 0) || read.is_ok(), "{:?}", read.err());
    }

    #[test]
    fn any_few_changes_are_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        counts in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 0..3),
    ) {
        let mut file = sample().build();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        for (at, number) in counts {
            let at = at.index(file.len() - 8);
            file[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let _ = check_read(&file);
    }
}

/// Parts of a model of two tensors in two files.
fn split_parts() -> [Vec<u8>; 2] {
    let part = |number: u32| Builder::new().u32("split.no", number).u32("split.count", 2);
    let first = part(0).u32("split.tensors.count", 2).string("general.name", "whole").zeros("a", &[4]);
    let second = part(1).tensor("b", &[4], 24, &[5, 6, 7, 8]);
    [first.build(), second.build()]
}

fn write_parts(directory: &std::path::Path, parts: &[Vec<u8>]) -> Vec<std::path::PathBuf> {
    let path = |index: usize| directory.join(format!("m-{:05}-of-{:05}.gguf", index + 1, 2));
    parts
        .iter()
        .enumerate()
        .map(|(index, bytes)| {
            std::fs::write(path(index), bytes).unwrap();
            path(index)
        })
        .collect()
}

#[test]
fn any_part_of_a_split_model_opens_all() {
    let directory = tempfile::tempdir().unwrap();
    let paths = write_parts(directory.path(), &split_parts());
    for path in &paths {
        let (gguf, files) = open(path).unwrap();
        assert_eq!(files, paths);
        assert_eq!(gguf.metadata.string("general.name").unwrap(), Some("whole"));
        let names: Vec<_> = gguf.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(&gguf.tensors[1].bytes[..], [5, 6, 7, 8]);
    }
}

#[test]
fn split_models_that_do_not_fit_together() {
    let [first, second] = split_parts();
    let error = |parts: &[Vec<u8>]| {
        let directory = tempfile::tempdir().unwrap();
        open(&write_parts(directory.path(), parts)[0]).unwrap_err().to_string()
    };
    assert!(error(std::slice::from_ref(&first)).contains("m-00002-of-00002.gguf is missing"));
    assert!(error(&[first.clone(), first.clone()]).contains("key split.no: expected 1, found 0"));
    let twice = Builder::new().u32("split.no", 1).u32("split.count", 2).zeros("a", &[4]).build();
    assert!(error(&[first.clone(), twice]).contains("tensor a: another part has it too"));
    let more = Builder::new().u32("split.no", 1).u32("split.count", 2).zeros("b", &[4]).zeros("c", &[4]);
    assert!(error(&[first.clone(), more.build()]).contains("expected 2 tensors in all parts, found 3"));
    let lone = Builder::new().u32("split.no", 1).u32("split.count", 3).zeros("b", &[4]).build();
    assert!(error(&[first.clone(), lone]).contains("key split.count: expected 2, found 3"));

    let directory = tempfile::tempdir().unwrap();
    let renamed = directory.path().join("renamed.gguf");
    std::fs::write(&renamed, &second).unwrap();
    let error = open(&renamed).unwrap_err().to_string();
    assert!(error.contains("its name does not end in -00001-of-00002.gguf"), "{error}");
}
