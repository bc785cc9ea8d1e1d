//! Golden checkpoints in other clothes: as GGUF files, and with heads that have no golden numbers of their own.

use half::f16;
use hanzo_engine_ops::{AnyBackend, DType, quant};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use super::*;
use crate::gguf::{Gguf, Value as Setting};
use crate::gguf_tests::Builder;
use crate::spec::ExpertsSpec;

/// The settings of a checkpoint as transformers 5 saves its own class, which moved rope's into `rope_parameters`.
#[test]
fn settings_that_a_library_moved_describe_the_same_model() {
    let rope = |base: f32| json!({"rope_type": "default", "rope_theta": base});
    let sizes =
        json!({"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40});
    let cases = [
        (
            "nomic-bert",
            json!({"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "hidden_act": "silu", "head_dim": 8,
                   "max_position_embeddings": 8192, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
                   "rope_parameters": rope(1000.0)}),
        ),
        (
            "gte-new-reranker",
            json!({"model_type": "gte", "architectures": ["GteForSequenceClassification"], "hidden_act": "gelu",
                   "max_position_embeddings": 64, "type_vocab_size": 1, "layer_norm_eps": 1e-12, "pad_token_id": 1,
                   "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "rope_parameters": rope(20_000.0)}),
        ),
    ];
    for (case, settings) in cases {
        let published = config_of(&directory(case));
        let mut saved = settings.as_object().unwrap().clone();
        saved.extend(sizes.as_object().unwrap().clone());
        saved.insert("vocab_size".into(), published.get("vocab_size").unwrap().clone());
        let read = |settings: &serde_json::Map<String, Value>| {
            let config = Config::new("config.json", settings.clone());
            EncoderFiles::from_directory(&directory(case), &config)
        };
        let spec = open(case).spec;
        let architecture = read(&saved).unwrap().spec.architecture;
        assert_eq!(read(&saved).unwrap().spec, TransformerSpec { architecture, ..spec }, "{case}");
        saved.insert("rope_parameters".into(), json!({"rope_type": "dynamic", "factor": 2.0}));
        let refusal = read(&saved).err().unwrap().to_string();
        assert!(refusal.contains("factor") || refusal.contains("rope_type"), "{refusal}");
    }
}

/// What GGUF files call the parts, and whether they quantise them.
fn gguf_name(spec: &TransformerSpec, weight: Weight) -> (String, bool) {
    let twice = spec.layers[0].order == NormOrder::PostTwice;
    let (stem, quantised) = match weight.part {
        Part::TokenEmbedding => ("token_embd", true),
        Part::PositionEmbedding => ("position_embd", false),
        Part::TypeEmbedding => ("token_types", false),
        Part::EmbeddingNorm => ("token_embd_norm", false),
        Part::Layer(layer, part) => {
            let (stem, quantised) = match part {
                LayerPart::Query => ("attn_q", true),
                LayerPart::Key => ("attn_k", true),
                LayerPart::Value => ("attn_v", true),
                LayerPart::AttentionOutput => ("attn_output", true),
                LayerPart::AttentionNorm => (if twice { "attn_norm_2" } else { "attn_output_norm" }, false),
                LayerPart::AttentionPostNorm => ("attn_output_norm", false),
                LayerPart::QueryNorm => ("attn_q_norm", false),
                LayerPart::KeyNorm => ("attn_k_norm", false),
                LayerPart::Router => ("ffn_gate_inp", false),
                LayerPart::Gate => ("ffn_gate", true),
                LayerPart::Up => ("ffn_up", true),
                LayerPart::Down => ("ffn_down", true),
                LayerPart::MlpNorm => ("layer_output_norm", false),
                other => panic!("no GGUF encoder has {other:?}"),
            };
            let suffix = if weight.bias { "bias" } else { "weight" };
            return (format!("blk.{layer}.{stem}.{suffix}"), quantised && !weight.bias);
        }
        other => panic!("no GGUF encoder has {other:?}"),
    };
    (format!("{stem}.{}", if weight.bias { "bias" } else { "weight" }), quantised)
}

/// Elements inside the first layer's MLP.
fn ffn_of(spec: &TransformerSpec) -> usize {
    spec.layers[0].mlp.dense().unwrap().ffn
}

fn experts_of(spec: &TransformerSpec) -> Option<&ExpertsSpec> {
    spec.layers.iter().find_map(|layer| layer.mlp.experts())
}

/// Adds a layer's experts as the converter does: stacked, each one's second matrix turned around.
fn with_experts(builder: Builder, files: &EncoderFiles, layer: usize, count: usize, dtype: DType) -> Builder {
    let (ffn, hidden) = (ffn_of(&files.spec), files.spec.hidden);
    let numbers = |part| files.tensors.get(Part::Layer(layer, part).weight()).to_f32().unwrap();
    let up: Vec<f32> = (0..count).flat_map(|expert| numbers(LayerPart::ExpertUp(expert))).collect();
    let down = (0..count).flat_map(|expert| {
        let stored = numbers(LayerPart::ExpertDown(expert));
        (0..hidden * ffn).map(move |i| stored[i % ffn * hidden + i / ffn])
    });
    let down: Vec<f32> = down.collect();
    [("up", up, [ffn, hidden]), ("down", down, [hidden, ffn])].into_iter().fold(builder, |builder, stack| {
        let (name, values, [rows, cols]) = stack;
        let dtype = if cols.is_multiple_of(dtype.block_weights()) { dtype } else { DType::F32 };
        let mut bytes = vec![0; dtype.bytes_of(values.len()).unwrap()];
        quant::quantize_row(dtype, &values, &mut bytes);
        builder.tensor(&format!("blk.{layer}.ffn_{name}_exps.weight"), &[count, rows, cols], dtype, &bytes)
    })
}

/// A checkpoint as a GGUF file with its matrices in a type, where their columns are whole blocks of it.
fn as_gguf(case: &str, architecture: &str, dtype: DType) -> EncoderFiles {
    let files = open(case);
    let spec = &files.spec;
    let key = |name: &str| format!("{architecture}.{name}");
    let mut builder = Builder::new()
        .string("general.architecture", architecture)
        .u32(&key("block_count"), spec.layers.len() as u32)
        .u32(&key("context_length"), spec.context_tokens_max)
        .u32(&key("embedding_length"), spec.hidden as u32)
        .u32(&key("feed_forward_length"), ffn_of(spec) as u32)
        .u32(&key("attention.head_count"), spec.heads().heads as u32)
        .f32(&key("attention.layer_norm_epsilon"), spec.norm.eps)
        .value(&key("attention.causal"), Setting::Bool(false));
    if let Some(rope) = spec.ropes.first() {
        builder = builder.f32(&key("rope.freq_base"), rope.base);
    }
    if let Some(experts) = experts_of(spec) {
        builder = builder
            .u32(&key("expert_count"), experts.count as u32)
            .u32(&key("expert_used_count"), experts.used as u32)
            .u32(&key("moe_every_n_layers"), 2);
        for layer in (0..spec.layers.len()).filter(|&layer| spec.layers[layer].mlp.experts().is_some()) {
            builder = with_experts(builder, &files, layer, experts.count, dtype);
        }
    }
    for (weight, shape) in spec.weights() {
        use LayerPart::{ExpertDown, ExpertUp, Experts};
        // The converter leaves the bias out; the matrices are there.
        if matches!(weight.part, Part::Layer(_, ExpertUp(_) | ExpertDown(_) | Experts)) {
            continue;
        }
        let (name, quantised) = gguf_name(spec, weight);
        let mut values = files.tensors.get(weight).to_f32().unwrap();
        let mut rows = shape.clone();
        if let (Part::PositionEmbedding, Some(table)) = (weight.part, spec.positions) {
            // The converter cuts off what lies before the first position.
            values.drain(..table.offset as usize * spec.hidden);
            rows[0] -= table.offset as usize;
        }
        let whole = shape[shape.len() - 1].is_multiple_of(dtype.block_weights());
        let dtype = if quantised && whole { dtype } else { DType::F32 };
        let mut bytes = vec![0; dtype.bytes_of(values.len()).unwrap()];
        quant::quantize_row(dtype, &values, &mut bytes);
        builder = builder.tensor(&name, &rows, dtype, &bytes);
    }
    let gguf = Gguf::parse(case, &builder.build().into()).unwrap();
    EncoderFiles::from_gguf(case, gguf, Vec::new()).unwrap()
}

#[test]
fn gguf_files_hold_the_same_models() {
    for (case, architecture) in [
        ("bert-mean", "bert"),
        ("roberta", "bert"),
        ("distilbert", "bert"),
        ("nomic-bert", "nomic-bert"),
        ("jina-bert-v2", "jina-bert-v2"),
        ("jina-bert-v2-code", "jina-bert-v2"),
    ] {
        let texts = golden(case, "hidden", "last_hidden_state");
        // Weights are exact in F16 too.
        for dtype in [DType::F32, DType::F16] {
            let files = as_gguf(case, architecture, dtype);
            let what = format!("{case} as GGUF in {dtype}");
            on_every_backend!(&files, what, |runner, label| {
                for text in &texts {
                    let found = largest_difference(&runner.hidden(&[text])[0], &text.expected);
                    assert!(found <= TOLERANCE * range(&text.expected), "{label}: {found}");
                }
            });
        }
        let files = as_gguf(case, architecture, DType::Q8_0);
        let tier = Tier::available().last().unwrap();
        let mut runner =
            Runner::new(AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier)), &files);
        for text in &texts {
            let cosine = cosine(&runner.hidden(&[text])[0], &text.expected);
            println!("{case} as GGUF in Q8_0: cosine {cosine}");
            assert!(cosine > 0.99, "{case}: cosine {cosine}");
        }
    }
}

#[test]
fn gguf_files_hold_the_same_experts() {
    // Files have no bias on the experts' sum: neither may the twin.
    let mut twin = open("nomic-bert-moe");
    let biases = twin.tensors.all_mut();
    let biases = biases.filter(|(weight, _)| matches!(weight.part, Part::Layer(_, LayerPart::Experts)));
    assert_eq!(biases.map(|(_, bias)| bias.bytes = vec![0; bias.bytes.len()].into()).count(), 2);
    let texts = golden("nomic-bert-moe", "hidden", "last_hidden_state");
    let backend =
        || AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), Tier::available().last().unwrap()));
    let mut twin = Runner::new(backend(), &twin);
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        let files = as_gguf("nomic-bert-moe", "nomic-bert-moe", dtype);
        assert_eq!(experts_of(&files.spec).map(|experts| (experts.count, experts.used)), Some((8, 2)));
        let mut runner = Runner::new(backend(), &files);
        for text in &texts {
            let (found, expected) = (runner.hidden(&[text]).remove(0), twin.hidden(&[text]).remove(0));
            assert!(largest_difference(&expected, &text.expected) > 1e-2, "the biases do not matter");
            let cosine = cosine(&found, &expected);
            let least = if dtype == DType::Q8_0 { 0.99 } else { 1.0 - 1e-9 };
            assert!(cosine > least, "nomic-bert-moe as GGUF in {dtype}: cosine {cosine}");
        }
    }
}

#[test]
fn gguf_files_of_the_converter_hold_the_same_models() {
    for case in ["bert-mean", "nomic-bert"] {
        let (gguf, files) = crate::gguf::open(&data("encoders").join(format!("{case}.gguf"))).unwrap();
        assert!(is_encoder_gguf(&gguf.metadata).unwrap());
        let files = EncoderFiles::from_gguf(case, gguf, files).unwrap();
        assert_eq!(files.info.name, format!("tiny-{case}"));
        assert_eq!(files.info.quantization, "F16");
        let texts = golden(case, "hidden", "last_hidden_state");
        on_every_backend!(&files, format!("{case}.gguf"), |runner, label| {
            for text in &texts {
                let found = largest_difference(&runner.hidden(&[text])[0], &text.expected);
                assert!(found <= TOLERANCE * range(&text.expected), "{label}: {found}");
            }
        });
    }
}

/// A golden checkpoint under another class, with that class's tensors added as zeros of F16.
fn with_head(case: &str, class: &str, tensors: &[(&str, &[usize])]) -> Result<EncoderFiles, String> {
    let copy = tempfile::tempdir().unwrap();
    fs::copy(directory(case).join("tokenizer.json"), copy.path().join("tokenizer.json")).unwrap();
    let mut settings = TextFile::Settings.read_object(&directory(case).join("config.json")).unwrap();
    settings.insert("architectures".into(), json!([class]));
    settings.insert("id2label".into(), json!({"0": "no", "1": "yes"}));
    let file = fs::read(directory(case).join("model.safetensors")).unwrap();
    let stored = ::safetensors::SafeTensors::deserialize(&file).unwrap();
    let zeros = vec![0; 1 << 16];
    let mut views = stored.tensors();
    for (name, shape) in tensors {
        let bytes = shape.iter().product::<usize>() * size_of::<f16>();
        let view = TensorView::new(Dtype::F16, shape.to_vec(), &zeros[..bytes]).unwrap();
        views.push(((*name).to_owned(), view));
    }
    fs::write(copy.path().join("model.safetensors"), ::safetensors::serialize(views, None).unwrap()).unwrap();
    let config = Config::new("config.json", settings);
    EncoderFiles::from_directory(copy.path(), &config).map_err(|error| error.to_string())
}

#[test]
fn classifiers_of_every_family_find_their_layers() {
    let dense: &[usize] = &[32, 32];
    let dense_bias: &[usize] = &[32];
    for (case, class, names, activation) in [
        (
            "roberta",
            "RobertaForSequenceClassification",
            ["classifier.dense", "classifier.out_proj"],
            HeadActivation::Tanh,
        ),
        (
            "mpnet",
            "MPNetForSequenceClassification",
            ["classifier.dense", "classifier.out_proj"],
            HeadActivation::Tanh,
        ),
        (
            "deberta-v2",
            "DebertaV2ForSequenceClassification",
            ["pooler.dense", "classifier"],
            HeadActivation::Gelu,
        ),
        (
            "distilbert",
            "DistilBertForSequenceClassification",
            ["pre_classifier", "classifier"],
            HeadActivation::Relu,
        ),
        ("gte-new", "NewForSequenceClassification", ["pooler.dense", "classifier"], HeadActivation::Tanh),
        (
            "nomic-bert",
            "NomicBertForSequenceClassification",
            ["pooler.dense", "classifier"],
            HeadActivation::Tanh,
        ),
    ] {
        let [first, last] = names;
        let weights = [first, last].map(|name| format!("{name}.weight"));
        let biases = [first, last].map(|name| format!("{name}.bias"));
        let all: [(&str, &[usize]); 4] =
            [(&weights[0], dense), (&biases[0], dense_bias), (&weights[1], &[2, 32]), (&biases[1], &[2])];
        // Files of plain encoders may have a pooler already.
        let stored = fs::read(directory(case).join("model.safetensors")).unwrap();
        let stored = ::safetensors::SafeTensors::deserialize(&stored).unwrap();
        let added: Vec<_> = all.into_iter().filter(|(name, _)| stored.tensor(name).is_err()).collect();
        let files = with_head(case, class, &added).unwrap_or_else(|error| panic!("{case}: {error}"));
        let Some(Head::Classifier(classifier)) = files.head else { panic!("{case}: a classifier") };
        assert_eq!(classifier.labels, ["no", "yes"], "{case}");
        assert_eq!((classifier.layers.len(), classifier.layers[0].activation), (2, activation), "{case}");
        let error = with_head(case, class, &added[..added.len() - 1]).unwrap_err();
        assert!(error.contains(&format!("tensor {last}.bias [2] is missing")), "{case}: {error}");
    }
}

#[test]
fn masked_language_models_of_every_family_find_their_heads() {
    for (case, class, dense, norm, bias) in [
        ("roberta", "RobertaForMaskedLM", "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
        ("mpnet", "MPNetForMaskedLM", "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.bias"),
        (
            "distilbert",
            "DistilBertForMaskedLM",
            "vocab_transform",
            "vocab_layer_norm",
            "vocab_projector.bias",
        ),
        ("modernbert", "ModernBertForMaskedLM", "head.dense", "head.norm", "decoder.bias"),
        ("gte-new", "NewForMaskedLM", "lm_head.dense", "lm_head.norm", "lm_head.decoder.bias"),
        (
            "deberta-v2",
            "DebertaV2ForMaskedLM",
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.bias",
        ),
    ] {
        let vocab = open(case).spec.vocab;
        let modern = case == "modernbert";
        let weights = [format!("{dense}.weight"), format!("{norm}.weight")];
        let biases = [format!("{dense}.bias"), format!("{norm}.bias")];
        let hidden = open(case).spec.hidden;
        let (matrix, vector, words): ([usize; 2], [usize; 1], [usize; 1]) =
            ([hidden, hidden], [hidden], [vocab]);
        let mut tensors: Vec<(&str, &[usize])> =
            vec![(&weights[0], &matrix), (&weights[1], &vector), (bias, &words)];
        if !modern {
            tensors.extend([(biases[0].as_str(), &vector[..]), (biases[1].as_str(), &vector[..])]);
        }
        let files = with_head(case, class, &tensors).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(files.head, Some(Head::MaskedLm), "{case}");
        let mut runner = Runner::new(AnyBackend::new(ReferenceBackend::new()), &files);
        let texts = golden(case, "hidden", "last_hidden_state");
        runner.hidden(&[&texts[0]]);
        let mut batch = batch_of(&[&texts[0]]);
        batch.logit_rows = vec![1];
        let mut logits = vec![1.0; vocab];
        runner.encoder.vocabulary_logits(&mut runner.backend, &batch, &mut logits).unwrap();
        // A head of zeros gives zeros.
        assert!(logits.iter().all(|&logit| logit == 0.0), "{case}");
        // Files of embedding models name the class and leave the head out.
        assert_eq!(with_head(case, class, &[]).unwrap().head, None, "{case}");
    }
}
