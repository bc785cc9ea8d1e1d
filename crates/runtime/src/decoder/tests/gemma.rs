//! What Gemma 3n and 4 have of their own: without each of it the numbers are others, and rows that are no tokens read what padding does.

use super::*;
use crate::spec::{Part, TransformerSpec};

type Change = fn(&mut TransformerSpec);

/// A golden that passes without one of these would prove nothing of it.
const OWN: &[(&str, &str, Change)] = &[
    ("gemma4", "values are normed", |spec| {
        spec.layers.iter_mut().for_each(|layer| layer.attention.values_normed = false);
    }),
    ("gemma4", "most pairs of a head that sees all are not turned", |spec| spec.ropes[0].factors = None),
    ("gemma4", "what a layer gives has a factor", |spec| spec.layers_scaled = false),
    ("gemma4", "scores are divided by nothing", |spec| {
        spec.layers.iter_mut().for_each(|layer| layer.attention.scale = 0.125);
    }),
    ("gemma4-e", "the last layer of a kind is shared", |spec| spec.layers[4].attention.shares = Some(0)),
    ("gemma4-e", "the last layer that sees all is shared", |spec| spec.layers[5].attention.shares = Some(1)),
    ("gemma4-e", "windows turn by a base of their own", |spec| spec.ropes[1].base = 1e6),
    ("gemma3n", "only what is far above a gate's mean counts", |spec| {
        streams(spec).outliers.fill(None);
    }),
    ("gemma3n", "the first stream is computed", |spec| streams(spec).active = 1),
    ("gemma3n", "what is multiplied with a layer's vector has factors", |spec| streams(spec).scaled = false),
    ("gemma3n", "the last layer of a kind is shared", |spec| spec.layers[4].attention.shares = Some(0)),
];

fn streams(spec: &mut TransformerSpec) -> &mut crate::spec::StreamsSpec {
    spec.streams.as_mut().unwrap()
}

#[test]
fn without_what_is_gemmas_own_its_numbers_are_others() {
    for (case, what, change) in OWN {
        let golden = Golden::read(&data("dense").join(case));
        let mut files = ModelFiles::open(&data("dense").join(case)).unwrap();
        change(&mut files.spec);
        let found = Runner::new(AnyBackend::new(ReferenceBackend::new()), &files).prefill(&golden.text());
        let off = largest_difference(&found, &golden.logits) / range(&golden.logits);
        assert!(off > 5.0 * TOLERANCE, "{case} without that {what}: {off}");
    }
}

#[test]
fn rows_that_are_no_tokens_read_what_padding_does() {
    for case in ["gemma4-e", "gemma3n"] {
        let files = ModelFiles::open(&data("dense").join(case)).unwrap();
        // Given rows are the embedding of the token whose row padding reads, so that all is as if they were that token.
        let text = [7, 0, 0, 31, 90];
        let tier = Tier::available().last().expect("the portable tier always is");
        let new =
            || Runner::new(AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier)), &files);
        let expected = new().prefill(&text);
        let embedding = files.tensors.get(Part::TokenEmbedding.weight()).decoded().unwrap();
        let row: Vec<f32> =
            embedding[..files.spec.hidden].iter().map(|number| files.spec.embedding_scale * number).collect();
        let Runner { mut backend, mut decoder, mut kv, .. } = new();
        let mut batch = Batch { windows: files.spec.kv_groups().windows, ..Batch::default() };
        batch.sources.extend(text.map(RowSource::Token));
        batch.sources[1..3].fill(RowSource::Embedding);
        let blocks = scattered(0);
        batch.push_sequence(text.len(), text.len(), |group, index| (group * BLOCKS) as u32 + blocks[index]);
        batch.logit_rows = (0..text.len() as u32).collect();
        backend.begin(&batch).unwrap();
        for at in [1, 2] {
            backend.write_rows(decoder.network.given(), at, &row).unwrap();
        }
        decoder.network.pad_inputs(&mut backend, 1, 2).unwrap();
        decoder.layers_forward(&mut backend, &batch, &mut kv);
        let mut logits = vec![0.0; expected.len()];
        decoder.network.with_head(|head, hidden| backend.logits(head, hidden, &mut logits)).unwrap();
        backend.end().unwrap();
        if let Some(cap) = decoder.softcap() {
            logits.iter_mut().for_each(|logit| *logit = soft_cap(cap, *logit));
        }
        assert!(logits == expected, "{case}: logits differ by {}", largest_difference(&logits, &expected));
    }
}

#[test]
fn what_gemmas_take_is_planned_to_the_byte() {
    for case in ["gemma3n", "gemma4", "gemma4-e"] {
        let files = ModelFiles::open(&data("dense").join(case)).unwrap();
        let backend = AnyBackend::new(ReferenceBackend::new());
        let network = Decoder::load(&backend, &files, &mut |_| ()).unwrap().network;
        let matrix = |of| backend.read_matrix::<ReferenceBackend, _>(of, |of| of.rows() * of.cols()).unwrap();
        let matrices = network.matrices().into_iter().map(matrix).sum::<usize>();
        let (vectors, norms) = network.vectors_and_norms();
        let vectors = vectors.iter().copied().chain(norms.iter().map(|norm| &norm.weight));
        let vector = |of| backend.read_vector::<ReferenceBackend, _>(of, Vec::len).unwrap();
        let numbers = matrices + vectors.map(vector).sum::<usize>();
        let planned = Decoder::plan(&backend, &files).weights_bytes;
        assert_eq!(planned, 4 * numbers as u64, "{case}: four bytes of each number");
    }
}
