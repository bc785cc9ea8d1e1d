//! Pooling of a picture's rows to one vector, on the host, because it reads each row once and uses few matrices. A
//! learned query is the same for all pictures, so its product with the key matrix is computed once, as a vector
//! that scores rows. Attention weights add up to 1, so the value matrix is applied to the weighted mean of the
//! rows.

use super::spec::{Pooling, TowerSpec};
use crate::error::LoadError;
use crate::head::{self, HeadActivation, HeadLayer, HeadNorm, dense, dot};
use crate::load::Found;
use crate::tensor::Tensor;

/// Weights on disk.
#[derive(Debug)]
pub(super) enum PooledFiles {
    /// Projection of the class token: (dimensions, hidden)
    First {
        projection: Tensor,
    },
    Probe(Box<ProbeFiles>),
}

/// Weights of a learned query; the second of each pair is a bias.
#[derive(Debug)]
pub(super) struct ProbeFiles {
    probe: Tensor,     // (1, 1, hidden)
    qkv: [Tensor; 2],  // (3 * hidden, hidden)
    out: [Tensor; 2],  // (hidden, hidden)
    norm: [Tensor; 2], // (hidden)
    up: [Tensor; 2],   // (ffn, hidden)
    down: [Tensor; 2], // (hidden, ffn)
}

impl PooledFiles {
    /// Takes the tensors by the library's names.
    pub(super) fn take(
        found: &mut Found<'_>,
        spec: &TowerSpec,
        pooled: Pooling,
    ) -> Result<PooledFiles, LoadError> {
        let hidden = spec.layers.hidden;
        let Pooling::Probe { ffn, .. } = pooled else {
            let projection = found.take("visual_projection.weight", &[spec.text_hidden, hidden])?;
            return Ok(PooledFiles::First { projection });
        };
        const AT: &str = "vision_model.head";
        let probe = found.take(&format!("{AT}.probe"), &[1, 1, hidden])?;
        let mut both = |weight: &str, bias: &str, shape: &[usize]| -> Result<[Tensor; 2], LoadError> {
            let weight = found.take(&format!("{AT}.{weight}"), shape)?;
            Ok([weight, found.take(&format!("{AT}.{bias}"), &shape[..1])?])
        };
        Ok(PooledFiles::Probe(Box::new(ProbeFiles {
            probe,
            qkv: both("attention.in_proj_weight", "attention.in_proj_bias", &[3 * hidden, hidden])?,
            out: both("attention.out_proj.weight", "attention.out_proj.bias", &[hidden, hidden])?,
            norm: both("layernorm.weight", "layernorm.bias", &[hidden])?,
            up: both("mlp.fc1.weight", "mlp.fc1.bias", &[ffn, hidden])?,
            down: both("mlp.fc2.weight", "mlp.fc2.bias", &[hidden, ffn])?,
        })))
    }

    pub(super) fn all(&self) -> Vec<&Tensor> {
        match self {
            PooledFiles::First { projection } => vec![projection],
            PooledFiles::Probe(files) => {
                let ProbeFiles { probe, qkv, out, norm, up, down } = files.as_ref();
                [probe].into_iter().chain([qkv, out, norm, up, down].into_iter().flatten()).collect()
            }
        }
    }
}

/// Pooling of the rows after a tower's layers.
#[derive(Debug)]
pub(super) enum PoolingHead {
    First(HeadLayer),
    Probe(Box<Probe>),
}

#[derive(Debug)]
pub(super) struct Probe {
    scores: Vec<f32>, // (heads, hidden): scores a row
    values: Vec<f32>, // (hidden, hidden), a head's rows one after the other
    bias: Vec<f32>,   // (hidden), of values
    out: HeadLayer,   // (hidden, hidden)
    norm: HeadNorm,   // (hidden)
    up: HeadLayer,    // (ffn, hidden)
    down: HeadLayer,  // (hidden, ffn)
}

impl PoolingHead {
    /// Reads all weights.
    pub(super) fn load(files: &PooledFiles, spec: &TowerSpec) -> Result<PoolingHead, LoadError> {
        let layer =
            |[weight, bias]: &[Tensor; 2], activation| head::layer(weight, Some(bias), activation, None);
        let (hidden, eps) = (spec.layers.hidden, spec.layers.norm.eps);
        let (files, heads, activation) = match (files, spec.pooled) {
            (PooledFiles::First { projection }, _) => {
                return Ok(PoolingHead::First(head::layer(
                    projection,
                    None,
                    HeadActivation::Identity,
                    None,
                )?));
            }
            (PooledFiles::Probe(files), Some(Pooling::Probe { heads, activation, .. })) => {
                (files, heads, activation)
            }
            (PooledFiles::Probe(_), _) => unreachable!("its files were taken for this spec"),
        };
        let [weights, biases] = [files.qkv[0].to_f32()?, files.qkv[1].to_f32()?];
        let (queries, rest) = weights.split_at(hidden * hidden);
        let (keys, values) = rest.split_at(hidden * hidden);
        let query = dense(queries, Some(&biases[..hidden]), &files.probe.to_f32()?);
        let (head_dim, scale) = (hidden / heads, 1.0 / ((hidden / heads) as f32).sqrt());
        let mut scores = vec![0.0; heads * hidden];
        for (row, (key, query)) in keys.chunks_exact(hidden).zip(&query).enumerate() {
            let of_head = scores[row / head_dim * hidden..][..hidden].iter_mut();
            of_head.zip(key).for_each(|(sum, key)| *sum += scale * query * key);
        }
        Ok(PoolingHead::Probe(Box::new(Probe {
            scores,
            values: values.to_vec(),
            bias: biases[2 * hidden..].to_vec(),
            out: layer(&files.out, HeadActivation::Identity)?,
            norm: HeadNorm { weight: files.norm[0].to_f32()?, bias: Some(files.norm[1].to_f32()?), eps },
            up: layer(&files.up, activation)?,
            down: layer(&files.down, HeadActivation::Identity)?,
        })))
    }

    /// Vector of a picture with these rows after the layers, `(rows, hidden)`.
    pub(super) fn vector(&self, rows: &[f32], hidden: usize) -> Vec<f32> {
        match self {
            PoolingHead::First(projection) => projection.apply(&rows[..hidden]),
            PoolingHead::Probe(probe) => probe.vector(rows, hidden),
        }
    }
}

impl Probe {
    fn vector(&self, rows: &[f32], hidden: usize) -> Vec<f32> {
        let mut found = Vec::with_capacity(hidden);
        let head_dim = hidden * hidden / self.scores.len();
        for (head, wanted) in self.scores.chunks_exact(hidden).enumerate() {
            let mut shares: Vec<f32> = rows.chunks_exact(hidden).map(|row| dot(wanted, row)).collect();
            let most = shares.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            shares.iter_mut().for_each(|share| *share = (*share - most).exp());
            let sum: f32 = shares.iter().sum();
            let mut mean = vec![0.0; hidden];
            for (row, share) in rows.chunks_exact(hidden).zip(&shares) {
                mean.iter_mut().zip(row).for_each(|(mean, number)| *mean += share / sum * number);
            }
            let own = head * head_dim..(head + 1) * head_dim;
            let values = &self.values[own.start * hidden..own.end * hidden];
            found.extend(dense(values, Some(&self.bias[own]), &mean));
        }
        let mut vector = self.out.apply(&found);
        let mut normed = vector.clone();
        self.norm.apply(&mut normed);
        let more = self.down.apply(&self.up.apply(&normed));
        vector.iter_mut().zip(more).for_each(|(number, more)| *number += more);
        vector
    }
}
