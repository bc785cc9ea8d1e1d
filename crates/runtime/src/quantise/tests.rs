//! Tests that every mix chooses the types of llama-quantize (`golden/make.py`), and that further requests are honoured
//! or refused by name.

use std::sync::Arc;

use super::*;
use crate::gguf::Metadata;
use crate::mapped::ModelBytes;

fn tensor(name: &str, dtype: DType, shape: &[usize]) -> Tensor {
    let bytes = ModelBytes::from_static(&[]);
    Tensor { file: "m.gguf".into(), name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
}

fn model(keys: &[(&str, &str)], tensors: Vec<Tensor>) -> Gguf {
    let value = |text: &str| text.parse().map_or_else(|_| Value::String(text.to_owned()), Value::U32);
    let entries = keys.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect();
    Gguf { version: 3, metadata: Arc::new(Metadata::new("m.gguf", entries)), tensors }
}

fn wanted(mix: &str) -> QuantiseOptions {
    QuantiseOptions {
        mix: Mix::named(mix).expect(mix),
        pure: false,
        keep_output: false,
        output: None,
        token_embedding: None,
        named: Vec::new(),
        requantize: false,
    }
}

fn types(plan: &Plan) -> Vec<&'static str> {
    plan.tensors.iter().map(|(_, to)| to.dtype.label()).collect()
}

#[test]
fn mixes_are_those_of_llama_quantize() {
    let mut compared = 0;
    for text in include_str!("golden/mixes.txt").split("model ").skip(1) {
        let (mut name, mut keys, mut tensors, mut mixes) = ("", Vec::new(), Vec::new(), Vec::new());
        for line in text.lines() {
            match line.split_once(' ') {
                None => name = line,
                Some(("key", rest)) => keys.push(rest.split_once(' ').unwrap()),
                Some(("tensor", rest)) => {
                    let (name, shape) = rest.split_once(' ').unwrap();
                    let shape: Vec<usize> = shape.split('x').map(|size| size.parse().unwrap()).collect();
                    tensors.push(tensor(name, DType::F32, &shape));
                }
                Some((_, rest)) => mixes.push(rest.split_once(' ').unwrap()),
            }
        }
        let gguf = model(&keys, tensors);
        assert_eq!(mixes.len(), MIXES.len(), "{name}");
        for (mix, expected) in mixes {
            let plan = Plan::new(&gguf, &wanted(mix), None).unwrap();
            let expected: Vec<&str> = expected.split(' ').collect();
            let found = types(&plan);
            let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
            let at = differs.map(|at| (&plan.tensors[at].1, found[at], expected[at]));
            assert!(at.is_none() && found.len() == expected.len(), "{name}, {mix}: {at:?}");
            compared += found.len();
        }
    }
    assert!(compared > 10_000, "{compared}");
}

fn small() -> Gguf {
    let names = ["token_embd.weight", "output.weight", "blk.0.attn_v.weight", "blk.0.ffn_up.weight"];
    let mut tensors: Vec<Tensor> = names.iter().map(|name| tensor(name, DType::F16, &[2, 256])).collect();
    tensors.push(tensor("output_norm.weight", DType::F32, &[256]));
    let keys = [("general.architecture", "llama"), ("llama.block_count", "1"), ("split.count", "2")];
    model(&keys, tensors)
}

#[test]
fn what_is_asked_for_besides() {
    let gguf = small();
    // By layer and name: output, norm, embedding, attn_v, ffn_up.
    let check = |change: &dyn Fn(&mut QuantiseOptions), expected: [&str; 5]| {
        let mut asked = wanted("Q4_K_S");
        change(&mut asked);
        assert_eq!(types(&Plan::new(&gguf, &asked, None).unwrap()), expected, "{asked:?}");
    };
    check(&|_| {}, ["Q6_K", "F32", "Q4_K", "Q5_K", "Q4_K"]);
    check(&|asked| asked.pure = true, ["Q4_K", "F32", "Q4_K", "Q4_K", "Q4_K"]);
    check(&|asked| asked.keep_output = true, ["F16", "F32", "Q4_K", "Q5_K", "Q4_K"]);
    check(&|asked| asked.output = Some(DType::Q8_0), ["Q8_0", "F32", "Q4_K", "Q5_K", "Q4_K"]);
    check(&|asked| asked.token_embedding = Some(DType::Q8_0), ["Q6_K", "F32", "Q8_0", "Q5_K", "Q4_K"]);
    let named = vec![("blk.*.ffn".to_owned(), DType::Q3_K), ("ffn".to_owned(), DType::Q2_K)];
    check(&|asked| asked.named = named.clone(), ["Q6_K", "F32", "Q4_K", "Q5_K", "Q3_K"]);
    let plan = Plan::new(&gguf, &wanted("Q4_K_S"), None).unwrap();
    let expected = [
        ("general.architecture", Value::String("llama".into())),
        ("general.file_type", Value::U32(14)),
        ("general.quantization_version", Value::U32(2)),
        ("llama.block_count", Value::U32(1)),
    ];
    assert_eq!(plan.metadata, expected.map(|(key, value)| (key.to_owned(), value)).into());
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let refused =
        |gguf: &Gguf, asked: &QuantiseOptions| Plan::new(gguf, asked, None).unwrap_err().to_string();
    let mut again = small();
    again.tensors[3].dtype = DType::Q8_0;
    let mut asked = wanted("Q4_0");
    let error = refused(&again, &asked);
    assert!(error.contains("tensor blk.0.ffn_up.weight: element type = Q8_0"), "{error}");
    asked.requantize = true;
    assert!(Plan::new(&again, &asked, None).is_ok());
    // The type stays the same.
    assert!(Plan::new(&again, &wanted("Q8_0"), None).is_ok());
    asked.output = Some(DType::IQ2_XS);
    assert!(refused(&small(), &asked).contains("tensor output.weight: element type = IQ2_XS"));
    asked.output = Some(DType::AFQ4_G64);
    assert!(refused(&small(), &asked).contains("AFQ4"));
    asked.output = None;
    asked.named = vec![("ffn_down".to_owned(), DType::Q8_0)];
    assert!(refused(&small(), &asked).contains("ffn_down"));
    let nameless = model(&[], Vec::new());
    assert!(refused(&nameless, &wanted("Q8_0")).contains("general.architecture"));
    // An output matrix whose rows are no whole blocks of the requested type.
    let odd =
        model(&[("general.architecture", "llama")], vec![tensor("output.weight", DType::F32, &[2, 40])]);
    asked = wanted("Q4_0");
    asked.output = Some(DType::Q8_0);
    assert!(refused(&odd, &asked).contains("rows of 40"));
}
