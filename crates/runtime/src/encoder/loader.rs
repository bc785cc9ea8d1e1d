//! From an opened encoder's tensors to weights on a backend: what only encoders have, beside the network's own loading, and
//! tables computed once on the host.

use hanzo_engine_ops::AnyBackend;

use super::{Convolution, DistanceTables, Encoder, EncoderFiles, EncoderProgram, LayerDistances, MaskedLm};
use crate::error::LoadError;
use crate::head::{HeadNorm, dense};
use crate::network::{Group, Loader, WeightType};
use crate::spec::{DisentangledAttention, Distance, LayerPart, Part, behind_table, learned_table};

pub(super) fn load(
    backend: &AnyBackend,
    files: &EncoderFiles,
    weight_type: WeightType,
    progress: &mut dyn FnMut(f32),
) -> Result<Encoder, LoadError> {
    let spec = &files.spec;
    let mut loader = Loader::new(backend, spec, &files.tensors, weight_type, progress)?;
    // Tables first: they may be made by projections that are packed after them.
    let distance = distance(&mut loader)?;
    Ok(Encoder {
        convolution: convolution(&mut loader)?,
        network: loader.network()?,
        distance,
        program: EncoderProgram::default(),
        masked_lm: masked_lm(&mut loader)?,
    })
}

fn convolution(loader: &mut Loader<'_>) -> Result<Option<Convolution>, LoadError> {
    if loader.spec.convolution.is_none() {
        return Ok(None);
    }
    Ok(Some(Convolution {
        weight: loader.pack(&Group::multiplied(Part::Convolution))?,
        bias: loader.vector(Part::Convolution.bias())?,
        norm: loader.norm(Part::ConvolutionNorm)?,
        unfolded: None,
    }))
}

fn distance(loader: &mut Loader<'_>) -> Result<DistanceTables, LoadError> {
    let spec = loader.spec;
    let heads = spec.heads().heads;
    Ok(match spec.distance {
        Distance::None => DistanceTables::None,
        Distance::Alibi(alibi) => {
            DistanceTables::Alibi { slopes: loader.backend.vector(&alibi.slopes(heads))? }
        }
        Distance::Learned { buckets, distance_max: reach } => {
            let weights = loader.take(Part::DistanceBias.weight())?;
            let table = loader.backend.vector(&learned_table(&weights, heads, buckets, reach))?;
            DistanceTables::Learned { table, reach }
        }
        Distance::Behind => {
            DistanceTables::Learned { table: loader.backend.vector(&behind_table(heads))?, reach: 1 }
        }
        Distance::Disentangled(kind) => {
            let embedding = distance_embedding(loader, kind)?;
            let layers = (0..spec.layers.len()).map(|layer| layer_distances(loader, layer, kind, &embedding));
            let reach = spec.context_tokens_max - 1;
            DistanceTables::Disentangled {
                layers: layers.collect::<Result<_, _>>()?,
                bucket_of: kind.buckets.table(reach).into(),
                reach,
                buckets: kind.buckets.rows() as u32,
            }
        }
    })
}

/// One row a bucket.
fn distance_embedding(loader: &mut Loader<'_>, kind: DisentangledAttention) -> Result<Vec<f32>, LoadError> {
    let mut embedding = loader.take(Part::DistanceEmbedding.weight())?;
    if kind.normed {
        let norm = HeadNorm {
            weight: loader.take(Part::DistanceNorm.weight())?,
            bias: match loader.spec.norm_bias() {
                true => Some(loader.take(Part::DistanceNorm.bias())?),
                false => None,
            },
            eps: loader.spec.norm.eps,
        };
        embedding.chunks_exact_mut(loader.spec.hidden).for_each(|row| norm.apply(row));
    }
    Ok(embedding)
}

/// A layer's keys and queries of distances: one row a bucket, projected here once.
fn layer_distances(
    loader: &mut Loader<'_>,
    layer: usize,
    kind: DisentangledAttention,
    embedding: &[f32],
) -> Result<LayerDistances, LoadError> {
    let mut table = |wanted: bool, part: LayerPart| {
        if !wanted {
            return Ok(None);
        }
        let part = Part::Layer(layer, part);
        let weight = loader.tensors.get(part.weight()).decoded()?;
        let bias = loader.tensors.get(part.bias()).decoded()?;
        let rows = embedding.chunks_exact(loader.spec.hidden);
        let values: Vec<f32> = rows.flat_map(|row| dense(&weight, Some(&bias), row)).collect();
        // Those of the tokens are packed later.
        if !kind.shared {
            loader.done(part.weight());
            loader.done(part.bias());
        }
        Ok::<_, LoadError>(Some(loader.backend.vector(&values)?))
    };
    let [key, query] = match kind.shared {
        true => [LayerPart::Key, LayerPart::Query],
        false => [LayerPart::DistanceKey, LayerPart::DistanceQuery],
    };
    Ok(LayerDistances { keys: table(kind.keys, key)?, queries: table(kind.queries, query)? })
}

fn masked_lm(loader: &mut Loader<'_>) -> Result<Option<MaskedLm>, LoadError> {
    let Some(head) = loader.spec.head.masked_lm() else { return Ok(None) };
    Ok(Some(MaskedLm {
        dense: loader.pack(&Group::multiplied(Part::LmDense))?,
        dense_bias: match head.dense_bias {
            true => Some(loader.vector(Part::LmDense.bias())?),
            false => None,
        },
        norm: loader.norm(Part::LmNorm)?,
        decoder_bias: match head.decoder_bias {
            true => Some(loader.take(Part::Head.bias())?),
            false => None,
        },
    }))
}
