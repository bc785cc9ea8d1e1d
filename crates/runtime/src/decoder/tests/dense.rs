//! Dense families against the transformers library (tests/data/dense/make_dense.py says how its numbers were made).

use super::*;

#[test]
fn dense_families_compute_what_the_library_does() {
    measured::check_kind("dense", &goldens("dense"));
}

#[test]
fn dense_families_have_the_same_bits_however_a_batch_is_made() {
    measured::check_batches("dense");
}

/// docs/reference/models.md lists what is compared, and nothing else.
#[test]
fn the_list_of_models_is_what_is_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let text = fs::read_to_string(root.join("docs/reference/models.md")).unwrap();
    let folders = ["dense/", "mixtures/", "multimodal/", "states/", "tiny/"];
    let is_case = |word: &&str| folders.iter().any(|folder| word.starts_with(folder));
    let listed: Vec<&str> = text.split('`').filter(is_case).collect();
    let mut tested: Vec<String> = Vec::new();
    for (kind, skipped) in [
        ("dense", &["make_dense.py", "make_gemma.py"][..]),
        ("mixtures", &["make_mixtures.py"]),
        ("multimodal", &["make_multimodal.py"]),
        ("states", &["make_states.py"]),
        ("tiny", &[]),
    ] {
        for entry in fs::read_dir(data(kind)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !skipped.contains(&name.as_str()) {
                tested.push(format!("{kind}/{name}"));
            }
        }
    }
    measured::check_families();
    let by_wrapper = |name: &String| name.starts_with("multimodal/");
    let of_family = |name: &String| {
        let goldens = FAMILIES.iter().flat_map(|family| family.goldens);
        let found = goldens.filter(|golden| golden.folder == name).collect::<Vec<_>>();
        found.iter().all(|golden| golden.in_gguf == data(name).join("model.gguf").exists())
            && found.len() == 1
    };
    let unnamed: Vec<&String> = tested.iter().filter(|name| !by_wrapper(name) && !of_family(name)).collect();
    assert!(unnamed.is_empty(), "not one family names {unnamed:?} as it is there");
    for name in &tested {
        assert!(listed.contains(&name.as_str()), "docs/reference/models.md does not list {name}");
    }
    for name in listed {
        assert!(
            tested.iter().any(|tested| tested == name),
            "docs/reference/models.md lists {name}, which is not tested"
        );
    }
}
