//! Scores of pairs of texts, by a reranker or by the cosine similarity of embeddings.

use std::collections::HashMap;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hanzo_engine_proto::v1::{self, EmbedOutput};

use crate::{
    error::ApiError,
    names::SentFields,
    vectors::{
        calls::{Caller, FieldName, TokensRead},
        inputs::text_input,
    },
};

/// Pairs of texts. The first side has one text for all pairs, or as many as the second.
#[derive(Debug)]
pub(crate) struct Pairs {
    pub(crate) first: Vec<String>,
    pub(crate) second: Vec<String>,
    /// Names of the two sides in the body.
    pub(crate) names: [&'static str; 2],
}

impl Pairs {
    /// Scores by a reranker: each distinct first text is a query.
    pub(super) async fn ranked(
        self,
        caller: &Caller,
        base: v1::RerankRequest,
        sent: SentFields,
    ) -> Result<(Vec<f32>, TokensRead), ApiError> {
        let Pairs { first, second, names: [query_name, document_name] } = self;
        let count = second.len();
        let mut queries: Vec<(String, Vec<usize>, Vec<String>)> = Vec::new();
        if let [query] = &first[..] {
            queries.push((query.clone(), (0..count).collect(), second));
        } else {
            let mut places = HashMap::new();
            for (i, (query, document)) in first.into_iter().zip(second).enumerate() {
                let place = *places.entry(query.clone()).or_insert(queries.len());
                if place == queries.len() {
                    queries.push((query, Vec::new(), Vec::new()));
                }
                queries[place].1.push(i);
                queries[place].2.push(document);
            }
        }
        let several = queries.len() > 1;
        let name = move |field: &str| match field.strip_prefix("documents") {
            // With several queries, the engine's index counts one query's documents only.
            Some(_) if several => Some(document_name.to_owned()),
            Some(index) => Some(format!("{document_name}{index}")),
            None if field == "query" => Some(query_name.to_owned()),
            None => sent.name(field),
        };
        let (base, name) = (&base, &name);
        let mut answers = stream::iter(queries.into_iter().enumerate())
            .map(|(q, (query, places, documents))| {
                let (base, caller) = (v1::RerankRequest { query, ..base.clone() }, caller.nested(q, several));
                Box::pin(async move {
                    let (scores, spent) = caller.rerank(base, documents, name.clone()).await?;
                    Ok::<_, ApiError>((places, scores, spent))
                })
            })
            .buffer_unordered(caller.at_once());
        let (mut all, mut total) = (vec![0.0; count], TokensRead::default());
        while let Some((places, scores, spent)) = answers.try_next().await? {
            for (place, score) in places.into_iter().zip(scores) {
                all[place] = score;
            }
            total.prompt_tokens += spent.prompt_tokens;
            total.model = spent.model;
        }
        Ok((all, total))
    }

    /// Cosine similarities of embeddings.
    pub(super) async fn cosines(
        self,
        caller: &Caller,
        base: v1::EmbedRequest,
        sent: SentFields,
    ) -> Result<(Vec<f32>, TokensRead), ApiError> {
        let Pairs { first, second, names } = self;
        let one = first.len() == 1;
        // Order: a first text, then the texts to compare it with, then the next first text.
        let mut texts = Vec::with_capacity(first.len() + second.len());
        let mut places = Vec::with_capacity(first.len() + second.len());
        let mut second = second.into_iter().enumerate();
        for (i, text) in first.into_iter().enumerate() {
            texts.push(text);
            places.push((0, i));
            let take = if one { usize::MAX } else { 1 };
            for (j, text) in second.by_ref().take(take) {
                texts.push(text);
                places.push((1, j));
            }
        }
        let firsts: Vec<bool> = places.iter().map(|(side, _)| *side == 0).collect();
        let name = move |field: &str| {
            let index = field.strip_prefix("inputs[").and_then(|rest| rest.strip_suffix(']'));
            match index.and_then(|i| places.get(i.parse::<usize>().ok()?)) {
                Some((0, _)) if one => Some(names[0].to_owned()),
                Some((side, i)) => Some(format!("{}[{i}]", names[*side])),
                None => sent.name(field),
            }
        };
        cosines(caller, base, texts, &firsts, name).await
    }
}

/// Cosine similarity of each other text with the first text before it, computed in f64. `firsts[0]` must be
/// true.
pub(crate) async fn cosines(
    caller: &Caller,
    base: v1::EmbedRequest,
    texts: Vec<String>,
    firsts: &[bool],
    name: impl FieldName,
) -> Result<(Vec<f32>, TokensRead), ApiError> {
    let base =
        v1::EmbedRequest { packed: true, normalize: Some(true), output: EmbedOutput::Pooled.into(), ..base };
    let inputs = texts.into_iter().map(text_input).collect();
    let mut answers = caller.embed(base, inputs, name);
    let (mut scores, mut spent) = (Vec::new(), TokensRead::default());
    let (mut first, mut firsts) = (Vec::new(), firsts.iter());
    while let Some(answer) = answers.try_next().await? {
        spent.add(answer.prompt_tokens, answer.model);
        for embedding in answer.embeddings {
            let vector = embedding.packed.chunks_exact(4);
            let vector = vector.map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            if firsts.next() == Some(&true) {
                first = vector.collect();
            } else {
                scores.push(cosine(&first, &vector.collect::<Vec<f64>>()));
            }
        }
    }
    Ok((scores, spent))
}

/// Cosine similarity; 0 if either vector is zero. It is divided by the lengths, because normalized vectors have
/// length 1 only within the precision of f32.
fn cosine(a: &[f64], b: &[f64]) -> f32 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths) as f32 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::cosine;

    #[test]
    fn cosines_need_no_unit_vectors() {
        assert_eq!(cosine(&[3.0, 0.0], &[0.5, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 1.0], &[-2.0, -2.0]), -1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 9.0]), 0.0);
        assert_eq!(cosine(&[0.0, 0.0], &[0.0, 9.0]), 0.0);
    }
}
