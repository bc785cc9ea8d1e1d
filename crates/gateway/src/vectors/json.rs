//! Writer of embeddings as JSON, frame by frame, from the engine's packed floats.

use std::time::Instant;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hanzo_engine_proto::v1;
use serde::Serialize;

/// Format of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum VectorFormat {
    /// OpenAI's objects; numbers as base64 of little-endian f32, or as a list.
    OpenAi { base64: bool },
    /// TEI's: an array of numbers for each input.
    Vectors,
    /// TEI's: an array of arrays of numbers for each input.
    TokenVectors,
    /// TEI's: an array of indices and values for each input.
    SparseVectors,
    /// Ollama's: arrays in an object, with the client's name of the model and the time since the request.
    Ollama { model: String, began: Instant },
    /// llama.cpp's: an object with an array of one array of numbers for each input.
    LlamaCpp,
}

/// Position in an answer of the engine.
#[derive(Debug)]
pub(crate) struct Cursor {
    answer: v1::EmbedResponse,
    embedding: usize,
    row: usize,
}

impl Cursor {
    /// Position at the start.
    pub(crate) fn new(answer: v1::EmbedResponse) -> Cursor {
        Cursor { answer, embedding: 0, row: 0 }
    }
}

/// Writer of an answer's beginning, its vectors, and its end.
#[derive(Debug)]
pub(crate) struct VectorWriter {
    shape: VectorFormat,
    written: usize, // embeddings
    prompt_tokens: u64,
    model: String,
}

#[derive(Serialize)]
struct EmbedUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl VectorWriter {
    /// Creates a writer.
    pub(crate) fn new(shape: VectorFormat) -> VectorWriter {
        VectorWriter { shape, written: 0, prompt_tokens: 0, model: String::new() }
    }

    /// Writes the part before the first vector.
    pub(crate) fn begin(&self, out: &mut Vec<u8>) {
        match &self.shape {
            VectorFormat::Ollama { model, .. } => {
                out.extend_from_slice(br#"{"model":"#);
                json(out, model);
                out.extend_from_slice(br#","embeddings":["#);
            }
            VectorFormat::OpenAi { .. } => out.extend_from_slice(br#"{"object":"list","data":["#),
            VectorFormat::Vectors
            | VectorFormat::TokenVectors
            | VectorFormat::SparseVectors
            | VectorFormat::LlamaCpp => out.push(b'['),
        }
    }

    /// Writes from `cursor` until `out` has at least `bytes`. Returns whether the cursor has reached its end.
    pub(crate) fn write(&mut self, cursor: &mut Cursor, out: &mut Vec<u8>, bytes: usize) -> bool {
        let row_bytes = cursor.answer.dimensions as usize * 4;
        while let Some(embedding) = cursor.answer.embeddings.get(cursor.embedding) {
            if out.len() >= bytes {
                return false;
            }
            if cursor.row == 0 && self.written > 0 {
                out.push(b',');
            }
            match &self.shape {
                VectorFormat::OpenAi { base64 } => {
                    out.extend_from_slice(br#"{"object":"embedding","index":"#);
                    json(out, &self.written);
                    out.extend_from_slice(br#","embedding":"#);
                    if *base64 {
                        encoded(out, &embedding.packed)
                    } else {
                        numbers(out, &embedding.packed)
                    }
                    out.push(b'}');
                }
                VectorFormat::Vectors | VectorFormat::Ollama { .. } => numbers(out, &embedding.packed),
                VectorFormat::LlamaCpp => {
                    out.extend_from_slice(br#"{"index":"#);
                    json(out, &self.written);
                    out.extend_from_slice(br#","embedding":["#);
                    numbers(out, &embedding.packed);
                    out.extend_from_slice(b"]}");
                }
                VectorFormat::SparseVectors => sparse(out, &embedding.sparse),
                VectorFormat::TokenVectors => {
                    let start = cursor.row * row_bytes;
                    let row = embedding.packed.get(start..start + row_bytes).unwrap_or_default();
                    out.push(if cursor.row == 0 { b'[' } else { b',' });
                    if !row.is_empty() {
                        numbers(out, row);
                    }
                    cursor.row += 1;
                    if cursor.row < embedding.rows as usize {
                        continue;
                    }
                    out.push(b']');
                    cursor.row = 0;
                }
            }
            cursor.embedding += 1;
            self.written += 1;
        }
        self.prompt_tokens += u64::from(cursor.answer.prompt_tokens);
        if self.model.is_empty() {
            self.model = std::mem::take(&mut cursor.answer.model);
        }
        true
    }

    /// Writes the part after the last vector.
    pub(crate) fn end(&self, out: &mut Vec<u8>) {
        out.push(b']');
        if let VectorFormat::Ollama { began, .. } = &self.shape {
            out.extend_from_slice(br#","total_duration":"#);
            json(out, &u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
            out.extend_from_slice(br#","load_duration":0,"prompt_eval_count":"#);
            json(out, &self.prompt_tokens);
            out.push(b'}');
        }
        if let VectorFormat::OpenAi { .. } = self.shape {
            out.extend_from_slice(br#","model":"#);
            json(out, &self.model);
            out.extend_from_slice(br#","usage":"#);
            json(out, &EmbedUsage { prompt_tokens: self.prompt_tokens, total_tokens: self.prompt_tokens });
            out.push(b'}');
        }
    }
}

/// Writes numbers as the shortest decimals that parse to the same f32.
fn numbers(out: &mut Vec<u8>, packed: &[u8]) {
    out.push(b'[');
    for (i, bytes) in packed.chunks_exact(4).enumerate() {
        if i > 0 {
            out.push(b',');
        }
        json(out, &f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    }
    out.push(b']');
}

fn encoded(out: &mut Vec<u8>, packed: &[u8]) {
    out.push(b'"');
    let start = out.len();
    out.resize(start + packed.len().div_ceil(3) * 4, 0);
    let written = STANDARD.encode_slice(packed, &mut out[start..]);
    let written = written.expect("it fits because the room is that of padded base64");
    out.truncate(start + written);
    out.push(b'"');
}

fn sparse(out: &mut Vec<u8>, weights: &[v1::SparseWeight]) {
    out.push(b'[');
    for (i, weight) in weights.iter().enumerate() {
        out.extend_from_slice(if i > 0 { br#",{"index":"# } else { br#"{"index":"# });
        json(out, &weight.token_id);
        out.extend_from_slice(br#","value":"#);
        json(out, &weight.weight);
        out.push(b'}');
    }
    out.push(b']');
}

fn json(out: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(out, value)
        .expect("writing to memory cannot fail because these are numbers, strings and plain structs");
}

#[cfg(test)]
mod tests {
    use hanzo_engine_proto::v1;
    use serde_json::{Value, json};

    use super::{Cursor, VectorFormat, VectorWriter};

    fn answer(rows: &[&[[f32; 2]]]) -> v1::EmbedResponse {
        let embedding = |rows: &&[[f32; 2]]| v1::Embedding {
            packed: rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().into(),
            rows: rows.len() as u32,
            ..Default::default()
        };
        v1::EmbedResponse {
            embeddings: rows.iter().map(embedding).collect(),
            prompt_tokens: 3,
            model: "m\"".to_owned(),
            dimensions: 2,
        }
    }

    /// Whole answer, written in frames of at least `bytes`.
    fn write(shape: VectorFormat, answers: &[v1::EmbedResponse], bytes: usize) -> Value {
        let mut writer = VectorWriter::new(shape);
        let mut whole = Vec::new();
        writer.begin(&mut whole);
        for answer in answers {
            let mut cursor = Cursor::new(answer.clone());
            loop {
                let mut frame = Vec::new();
                let done = writer.write(&mut cursor, &mut frame, bytes);
                whole.append(&mut frame);
                if done {
                    break;
                }
            }
        }
        writer.end(&mut whole);
        serde_json::from_slice(&whole).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&whole)))
    }

    #[test]
    fn frames_of_any_size_make_the_same_whole() {
        let one = [0.1, -1.0e-30];
        let answers = [answer(&[&[one], &[[3.0, 16_777_216.0]]]), answer(&[&[[f32::MIN_POSITIVE, 0.5]]])];
        for bytes in [1, 30, 1 << 20] {
            let openai = write(VectorFormat::OpenAi { base64: false }, &answers, bytes);
            assert_eq!(openai["object"], "list");
            assert_eq!(
                (openai["model"].as_str(), &openai["usage"]["total_tokens"]),
                (Some("m\""), &json!(6))
            );
            let expected = [[0.1, -1.0e-30], [3.0, 16_777_216.0], [f32::MIN_POSITIVE, 0.5]];
            for (i, vector) in expected.iter().enumerate() {
                assert_eq!(openai["data"][i]["index"], i);
                let read: Vec<f32> = serde_json::from_value(openai["data"][i]["embedding"].clone()).unwrap();
                assert_eq!(read, vector);
            }
            let vectors: Vec<[f32; 2]> =
                serde_json::from_value(write(VectorFormat::Vectors, &answers, bytes)).unwrap();
            assert_eq!(vectors, expected);
            let tokens = [answer(&[&[one, one], &[one]]), answer(&[&[one; 3]])];
            let tokens = write(VectorFormat::TokenVectors, &tokens, bytes);
            let lengths: Vec<_> =
                tokens.as_array().unwrap().iter().map(|t| t.as_array().unwrap().len()).collect();
            assert_eq!(lengths, [2, 1, 3]);
        }
    }

    #[test]
    fn base64_is_of_the_packed_bytes() {
        let answer = write(VectorFormat::OpenAi { base64: true }, &[answer(&[&[[1.0, -2.5]]])], 1);
        assert_eq!(answer["data"][0]["embedding"], "AACAPwAAIMA=");
    }

    #[test]
    fn sparse_weights_are_indices_and_values() {
        let weights = vec![
            v1::SparseWeight { token_id: 7, weight: 0.25 },
            v1::SparseWeight { token_id: 9, weight: 2.0 },
        ];
        let embedding = v1::Embedding { sparse: weights, ..Default::default() };
        let answer =
            v1::EmbedResponse { embeddings: vec![embedding, v1::Embedding::default()], ..Default::default() };
        let expected = json!([[{"index": 7, "value": 0.25}, {"index": 9, "value": 2.0}], []]);
        assert_eq!(write(VectorFormat::SparseVectors, &[answer], 1), expected);
    }
}
