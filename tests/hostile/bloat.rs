//! Files of models that would take many times their bytes of memory: each is refused, or loads, in a small multiple of
//! them. Every one is opened in a process of its own (`tests/open_model`), whose most memory is looked at.

use std::{
    io::{Read, Write},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::files::{MIB, PATIENCE, copy, data};

/// What came of opening a model in a process of its own, and the most memory that it took, in bytes.
pub(crate) fn opened(path: &Path) -> (String, u64) {
    opened_with(path, &[])
}

fn opened_with(path: &Path, how: &[&str]) -> (String, u64) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_open_model"))
        .arg(path)
        .args(how)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program runs");
    let began = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if began.elapsed() > 2 * PATIENCE {
            child.kill().expect("killed");
            panic!("{}: it does not end", path.display());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut said = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut said).expect("UTF-8");
    let (peak, came) = said.split_once('\n').unwrap_or_else(|| panic!("{}: it died", path.display()));
    (came.trim_end().to_owned(), peak.parse::<u64>().expect("a number") * 1024)
}

/// Opens a model with one file replaced: it is refused with these words, or it is `ok`, in memory that is a small
/// multiple of the file.
fn bounded(model: &str, file: &str, content: &[u8], expected: &str) {
    let copy = copy(model);
    std::fs::write(copy.path().join(file), content).expect("written");
    let (came, peak) = opened(copy.path());
    let most = 4 * content.len() as u64 + 256 * MIB;
    println!("{file}: {} MiB of file, {} MiB of memory: {came:.120}", content.len() as u64 / MIB, peak / MIB);
    let as_expected = if expected == "ok" { came == "ok" } else { came.contains(expected) };
    assert!(as_expected, "{file}: {expected:?} in {came:?}");
    assert!(peak < most, "{file}: {} MiB for {} bytes: {came}", peak / MIB, content.len());
}

/// JSON text of so many bytes: an object whose one entry is a list of empty lists.
fn lists(key: &str, bytes: usize) -> Vec<u8> {
    let mut text = format!("{{\"{key}\": [[]");
    text.extend(std::iter::repeat_n(",[]", (bytes - text.len()) / 3));
    text.push_str("]}");
    text.into_bytes()
}

#[test]
fn settings_take_no_more_memory_than_they_are_worth() {
    let model = "tiny/qwen3";
    bounded(
        model,
        "config.json",
        &lists("x", 25 << 20),
        "config.json: file: it is longer than 16777216 bytes",
    );
    bounded(
        model,
        "config.json",
        &lists("x", 15 << 20),
        "config.json: file: expected a JSON object: more than 524288 values",
    );
    bounded(
        model,
        "generation_config.json",
        &lists("x", 15 << 20),
        "generation_config.json: file: expected a JSON object: more",
    );
    bounded(model, "tokenizer_config.json", &lists("x", 100 << 20), "it is longer than");
    bounded(model, "tokenizer_config.json", &lists("chat_template", 60 << 20), "more than 524288 values");
    bounded(
        model,
        "chat_template.jinja",
        &vec![b' '; 100 << 20],
        "chat_template.jinja: file: it is longer than",
    );
    bounded(
        model,
        "model.safetensors.index.json",
        &lists("weight_map", 60 << 20),
        "more than 1048576 values",
    );
    bounded(
        "encoders/bert-mean",
        "modules.json",
        &lists("x", 15 << 20),
        "modules.json: file: expected a JSON list: more",
    );
    bounded(
        "encoders/bert-mean",
        "sentence_bert_config.json",
        &lists("x", 15 << 20),
        "more than 524288 values",
    );
    // What is not read is no reason to refuse a file: added tokens by the ten thousand stand here.
    let mut added = json!({});
    for id in 0..100_000 {
        added[id.to_string()] = json!({"content": format!("<extra_{id}>"), "lstrip": false, "special": true});
    }
    let config = json!({"added_tokens_decoder": added, "bos_token": "<s>", "eos_token": "</s>"}).to_string();
    bounded("encoders/bert-mean", "tokenizer_config.json", config.as_bytes(), "ok");
}

#[test]
fn more_experts_than_the_files_hold_are_refused_before_they_are_listed() {
    for model in [
        "tiny/mixtral",
        "tiny/qwen3-moe",
        "mixtures/gpt-oss",
        "mixtures/llama4-plain",
        "mixtures/deepseek-v3",
    ] {
        let copy = copy(model);
        let file = copy.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
        let settings = config.as_object_mut().expect("an object");
        settings.insert("num_hidden_layers".to_owned(), json!(1024));
        settings.remove("layer_types");
        for name in ["num_experts", "num_local_experts", "n_routed_experts"] {
            settings.entry(name).and_modify(|count| *count = json!(4096));
        }
        std::fs::write(&file, config.to_string()).expect("written");
        let began = Instant::now();
        let (came, peak) = opened(copy.path());
        let took = began.elapsed();
        println!("{model}: {took:?}, {} MiB: {came:.200}", peak / MIB);
        assert_ne!(came, "ok", "{model}");
        assert!(peak < 256 * MIB && took < Duration::from_secs(5), "{model}: {took:?}, {peak} bytes: {came}");
    }
}

#[test]
fn no_number_of_the_settings_costs_more_than_the_files() {
    let models = [
        "tiny/qwen3",
        "tiny/qwen2-yarn",
        "tiny/qwen3-windows",
        "tiny/qwen3-moe",
        "tiny/mixtral",
        "encoders/bert-mean",
        "encoders/deberta-v2",
        "encoders/modernbert",
        "encoders/nomic-bert-moe",
        "dense/gemma4-e",
        "mixtures/deepseek-v3",
        "mixtures/gpt-oss",
        "mixtures/llama4",
        "states/qwen3-next",
        "states/nemotron-h-moe",
        "multimodal/gemma4",
        "multimodal/qwen3-vl-moe",
    ];
    for model in models {
        let copy = copy(model);
        let (came, peak) = opened_with(copy.path(), &["numbers"]);
        println!("{model}: {} MiB: {came}", peak / MIB);
        let (slowest_ms, what) = came.split_once(' ').expect("a time and what took it");
        let slowest_ms: u64 = slowest_ms.parse().expect("a number");
        assert!(
            slowest_ms < 5_000 && peak < 256 * MIB,
            "{model}: {slowest_ms} ms, {} MiB: {what}",
            peak / MIB
        );
    }
}

/// A safetensors file with this header and no data.
fn with_header(header: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header].concat()
}

#[test]
fn headers_of_weights_take_no_more_memory_than_they_are_worth() {
    let model = "tiny/qwen3";
    let notes: String = (0..4_000_000).map(|id| format!("\"{id}\":\"\",")).collect();
    let metadata = format!("{{\"__metadata__\":{{{notes}\"x\":\"\"}}}}");
    bounded(
        model,
        "model.safetensors",
        &with_header(metadata.as_bytes()),
        "header: more than 3145728 values",
    );
    bounded(model, "model.safetensors", &with_header(&vec![b' '; 80 << 20]), "header: it has 83886080 bytes");
    let tensors: String = (0..400_000)
        .map(|id| format!("\"{id}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}},"))
        .collect();
    let many = format!("{{{}}}", tensors.trim_end_matches(','));
    bounded(model, "model.safetensors", &with_header(many.as_bytes()), "header: more than 3145728 values");
}

/// A GGUF file with one key, whose value is this.
fn gguf(kind: u32, value: &[u8]) -> Vec<u8> {
    let key = b"general.x";
    [
        &b"GGUF\x03\0\0\0"[..],
        &0_u64.to_le_bytes(),
        &1_u64.to_le_bytes(),
        &(key.len() as u64).to_le_bytes(),
        key,
        &kind.to_le_bytes(),
        value,
    ]
    .concat()
}

#[test]
fn keys_of_a_gguf_file_take_no_more_memory_than_they_are_worth() {
    let check = |content: &[u8], expected: &str| {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let path = directory.path().join("m.gguf");
        std::fs::write(&path, content).expect("written");
        let (came, peak) = opened(&path);
        println!("{} MiB of GGUF, {} MiB of memory: {came:.120}", content.len() as u64 / MIB, peak / MIB);
        assert!(came.contains(expected), "{expected:?} in {came:?}");
        // Its pages, which are the file's, count too.
        assert!(peak < 4 * content.len() as u64 + 256 * MIB, "{} MiB: {came}", peak / MIB);
    };
    let count = 10_u64 << 20;
    let texts = [&8_u32.to_le_bytes()[..], &count.to_le_bytes(), &vec![0; 8 * count as usize]].concat();
    check(&gguf(9, &texts), "there are more than 4194304 in all");
    // What a file says is never written to a terminal as it is.
    let name = b"\x1b[2J\x1b]0;title\x07";
    let text = [&(name.len() as u64).to_le_bytes()[..], name].concat();
    let mut file = gguf(8, &text);
    file[24 + 8..24 + 8 + 9].copy_from_slice(b"\x1b[31mred\n");
    file.truncate(file.len() - 4);
    check(&file, "key \\u{1b}[31mred\\n");
}

/// `torch.save`'s file of before 1.6 with this pickle as its dictionary.
fn legacy(pickle: &[u8]) -> Vec<u8> {
    let magic = [0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, b'.'];
    [b"\x80\x02", &magic[..], b"\x80\x02M\xe9\x03.", b"\x80\x02}q\x00.", pickle, b"\x80\x02]q\x00."].concat()
}

fn with_pickle(content: &[u8], expected: &str) {
    let copy = copy("encoders/bert-mean");
    std::fs::remove_file(copy.path().join("model.safetensors")).expect("removed");
    let path = copy.path().join("pytorch_model.bin");
    std::fs::write(&path, content).expect("written");
    let (came, peak) = opened(copy.path());
    println!("{} KiB of pickle, {} MiB of memory: {came:.160}", content.len() / 1024, peak / MIB);
    assert!(came.contains(expected), "{expected:?} in {came:?}");
    assert!(peak < 4 * content.len() as u64 + 256 * MIB, "{} MiB: {came}", peak / MIB);
}

#[test]
fn pickles_take_no_more_memory_than_they_are_worth() {
    // A list of 20,000 pairs, and a dictionary of it again and again: five bytes for a megabyte each.
    let pair = b"]q\x02(K\x01K\x01e";
    let list =
        [&b"ccollections\nOrderedDict\nq\x00]q\x01("[..], pair, &b"h\x02".repeat(20_000), b"e"].concat();
    with_pickle(&legacy(&[list, b"h\x00h\x01\x85R0".repeat(100_000), b"}.".to_vec()].concat()), "values");
    // Tuples in tuples, lists, dictionaries, and what is on the stack.
    for code in [&b"\x85"[..], b")0", b"]0", b"}0", b")\x85\x86"] {
        let many = [b"N".to_vec(), code.repeat((3 << 20) / code.len()), b".".to_vec()].concat();
        with_pickle(&legacy(&many), "than");
    }
    with_pickle(&legacy(&[b"N".repeat(3 << 20), b".".to_vec()].concat()), "no dictionary");
}

/// A zip archive that says it has so many files, of which so many entries are there, all the same.
fn zip(said: u64, entries: usize) -> Vec<u8> {
    let name = b"m/data.pkl";
    let mut archive =
        [&b"PK\x03\x04"[..], &[0; 22], &(name.len() as u16).to_le_bytes(), &[0; 2], name].concat();
    let directory = archive.len() as u64;
    let entry = [&b"PK\x01\x02"[..], &[0; 24], &(name.len() as u16).to_le_bytes(), &[0; 16], name].concat();
    archive.extend(entry.repeat(entries));
    let (end, size) = (archive.len() as u64, archive.len() as u64 - directory);
    archive.extend([&b"PK\x06\x06"[..], &44_u64.to_le_bytes(), &[0; 12]].concat());
    for number in [said, said, size, directory] {
        archive.extend(number.to_le_bytes());
    }
    archive.extend([&b"PK\x06\x07"[..], &[0; 4], &end.to_le_bytes(), &1_u32.to_le_bytes()].concat());
    archive.extend([&b"PK\x05\x06"[..], &[0; 4], &[0xff; 12], &[0; 2]].concat());
    archive
}

#[test]
fn the_directory_of_an_archive_is_counted_before_it_is_read() {
    with_pickle(&zip(2_000_000, 2_000_000), "2000000 files in it are too many");
    with_pickle(&zip(u64::MAX, 1), "are too many");
    with_pickle(&zip(500_000, 500_000), "data.pkl");
    with_pickle(&zip(2, 1), "its directory ends before its last file");
}

#[test]
fn added_tokens_by_the_hundred_thousand_load_or_are_refused() {
    let with_added = |count: u32, of: fn(u32) -> String| {
        let mut json: Value = serde_json::from_slice(
            &std::fs::read(data("encoders/bert-mean/tokenizer.json")).expect("a file"),
        )
        .expect("JSON");
        let added = json["added_tokens"].as_array_mut().expect("a list");
        added.extend((0..count).map(|id| json!({"id": 100_000 + id, "content": of(id), "special": true})));
        json.to_string().into_bytes()
    };
    let short = |id: u32| format!("<custom_{id}>");
    let model = "encoders/bert-mean";
    let began = Instant::now();
    bounded(model, "tokenizer.json", &with_added(200_000, short), "ok");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    bounded(model, "tokenizer.json", &with_added(300_000, short), "more than 262144 items");
    bounded(model, "tokenizer.json", &with_added(1_000, |id| format!("{id:010000}")), "their texts have");
}

/// A byte-pair tokenizer of the size of Gemma 3's, the largest in wide use: 245,410 tokens and 490,776 merges.
#[test]
fn the_largest_tokenizers_there_are_still_load() {
    let letters: Vec<String> = ('a'..='v').map(String::from).collect();
    let mut tokens = letters.clone();
    let mut longest = letters.clone();
    for _ in 0..3 {
        longest =
            longest.iter().flat_map(|start| letters.iter().map(move |end| format!("{start}{end}"))).collect();
        tokens.extend_from_slice(&longest);
    }
    let merges: Vec<Value> = tokens
        .iter()
        .filter(|token| token.len() > 1)
        .flat_map(|token| [token.split_at(1), token.split_at(token.len() - 1)])
        .map(|(left, right)| json!([left, right]))
        .collect();
    let vocab: Value = tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let json = json!({
        "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    });
    bounded("encoders/bert-mean", "tokenizer.json", format!("{json:#}").as_bytes(), "ok");
}

#[test]
fn the_program_that_measures_would_notice() {
    // A file of this size that is read whole is in what is measured.
    let copy = copy("encoders/bert-mean");
    let (came, before) = opened(copy.path());
    assert_eq!(came, "ok");
    let mut tokenizer =
        std::fs::File::options().append(true).open(copy.path().join("tokenizer.json")).expect("a file");
    tokenizer.write_all(&vec![b' '; 100 << 20]).expect("written");
    let (came, after) = opened(copy.path());
    assert_eq!(came, "ok");
    assert!(after > before + 90 * MIB, "{before} and {after} bytes");
}
