//! Tiles of a picture that attend to each other (Llama 3.2 Vision, `modeling_mllama.py`). Learned embeddings of
//! tiles and of places are added to the patches, and a class token stands before those of each tile. Padding of
//! tiles and pictures goes through the layers too, because the reference only masks attention between pairs of
//! padding rows. Small computations run on the host.

use hanzo_engine_ops::{Batch, KernelError};

use super::layout::{Grid, Layout, batch_of};
use super::spec::TowerSpec;
use super::tower::Tower;
use crate::error::LoadError;
use crate::load::Found;
use crate::media::MediaSpan;
use crate::spec::ROWS_OF_IMAGES;
use crate::tensor::Tensor;

/// Epsilon of the norms before and after the layers (the class ignores its settings).
const EPS: f64 = 1e-5;
/// Rows of a tile are padded to a multiple of this.
const ROWS_UNIT: usize = 8;

/// Description of pictures in tiles.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MosaicSpec {
    /// Maximum tiles of a picture.
    pub(crate) tiles: usize,
    /// Number of local layers, before the gated ones.
    pub(crate) local: usize,
    /// Local layers whose output is read besides the last layer's.
    pub(crate) between: Vec<usize>,
    /// Number of tile arrangements with learned embeddings.
    pub(crate) ratios: usize,
    /// Index of the image token's row among the embedding rows beyond the vocabulary.
    pub(crate) image_row: usize,
}

impl MosaicSpec {
    /// Possible arrangements of tiles, (rows, columns), in the order of their embeddings, from 1 on.
    pub(crate) fn arrangements(&self) -> impl Iterator<Item = [usize; 2]> + '_ {
        let all = (1..=self.tiles).flat_map(|high| (1..=self.tiles).map(move |wide| [high, wide]));
        all.filter(|[high, wide]| high * wide <= self.tiles)
    }
}

impl TowerSpec {
    /// Rows of a tile, class token included.
    pub(crate) fn tile_rows(&self) -> usize {
        self.one_square().count() + 1
    }

    /// Rows that a picture has in the cross-attention cache: those that later tokens attend to, and all, with those
    /// of missing tiles. `rows` and `cols` are of its frame. Zero for towers without tiles.
    pub(crate) fn remembered(&self, [rows, cols]: [u32; 2]) -> [u32; 2] {
        let Some(mosaic) = &self.mosaic else { return [0; 2] };
        let side = self.one_square();
        let tiles = (rows as usize / side.rows) * (cols as usize / side.cols);
        [tiles, mosaic.tiles].map(|tiles| (tiles * self.tile_rows()) as u32)
    }

    /// Rows of the layers, padding included.
    pub(super) fn mosaic_rows(&self) -> Option<usize> {
        let mosaic = self.mosaic.as_ref()?;
        Some(mosaic.tiles * self.tile_rows().next_multiple_of(ROWS_UNIT))
    }
}

/// Tensors outside the layers, on disk.
#[derive(Debug)]
pub(super) struct MosaicFiles {
    class: Tensor,            // (hidden)
    places: Tensor,           // (tile rows, hidden)
    tile_places: Tensor,      // read for each picture
    before: Tensor,           // (arrangements, tiles * hidden)
    behind: Tensor,           // (arrangements, tiles * hidden)
    gates: [Tensor; 3],       // (1): of places, and of the two others
    norms: [Tensor; 4],       // (hidden): weights and biases before the layers, and after the local ones
    pub(super) image: Tensor, // (text hidden): row of the image token
}

impl MosaicFiles {
    pub(super) fn take(
        found: &mut Found<'_>,
        spec: &TowerSpec,
        mosaic: &MosaicSpec,
    ) -> Result<MosaicFiles, LoadError> {
        let hidden = spec.layers.hidden;
        let mut take = |name: &str, shape: &[usize]| found.take(&format!("vision_model.{name}"), shape);
        let (all, tiles, rows) = (mosaic.ratios + 1, mosaic.tiles, spec.tile_rows());
        let files = MosaicFiles {
            class: take("class_embedding", &[hidden])?,
            places: take("gated_positional_embedding.embedding", &[rows, hidden])?,
            tile_places: take(
                "gated_positional_embedding.tile_embedding.weight",
                &[all, tiles * rows * hidden],
            )?,
            before: take("pre_tile_positional_embedding.embedding.weight", &[all, tiles * hidden])?,
            behind: take("post_tile_positional_embedding.embedding.weight", &[all, tiles * hidden])?,
            gates: [
                take("gated_positional_embedding.gate", &[1])?,
                take("pre_tile_positional_embedding.gate", &[1])?,
                take("post_tile_positional_embedding.gate", &[1])?,
            ],
            norms: [
                take("layernorm_pre.weight", &[hidden])?,
                take("layernorm_pre.bias", &[hidden])?,
                take("layernorm_post.weight", &[hidden])?,
                take("layernorm_post.bias", &[hidden])?,
            ],
            image: match found.take_any(ROWS_OF_IMAGES) {
                Some(rows) if rows.shape.len() == 2 && rows.shape[1] == spec.text_hidden => {
                    let first = mosaic.image_row;
                    if first >= rows.shape[0] {
                        return Err(lacks(found));
                    }
                    rows.rows(first..first + 1)
                }
                _ => return Err(lacks(found)),
            },
        };
        Ok(files)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Tensor> {
        let own = [&self.class, &self.places, &self.tile_places, &self.before, &self.behind, &self.image];
        own.into_iter().chain(&self.gates).chain(&self.norms)
    }

    /// Tensors that stay in host memory.
    pub(super) fn held(&self) -> impl Iterator<Item = &Tensor> {
        self.all().filter(|tensor| !std::ptr::eq(*tensor, &self.tile_places))
    }
}

fn lacks(found: &Found<'_>) -> LoadError {
    LoadError::Missing {
        file: found.file().to_owned(),
        what: "the embedding's row of the image token".into(),
        hint: "; it stands behind those of the vocabulary".into(),
    }
}

/// Weights outside the layers.
pub(super) struct Mosaic {
    class: Vec<f32>,
    places: Vec<f32>,
    tile_places: Tensor,
    before: Vec<f32>,
    behind: Vec<f32>,
    gates: [f32; 3],
    norms: [Vec<f32>; 4],
    image: Vec<f32>,
}

impl Mosaic {
    pub(super) fn load(files: &MosaicFiles) -> Result<Mosaic, LoadError> {
        let gate = |of: usize| Ok::<_, LoadError>(files.gates[of].to_f32()?[0].tanh());
        let norm = |of: usize| files.norms[of].to_f32();
        files.tile_places.rows(0..1).to_f32()?;
        Ok(Mosaic {
            class: files.class.to_f32()?,
            places: files.places.to_f32()?,
            tile_places: files.tile_places.clone(),
            before: files.before.to_f32()?,
            behind: files.behind.to_f32()?,
            gates: [gate(0)?, gate(1)?, gate(2)?],
            norms: [norm(0)?, norm(1)?, norm(2)?, norm(3)?],
            image: files.image.to_f32()?,
        })
    }
}

/// Progress of the current picture.
#[derive(Default)]
pub(super) struct MosaicWay {
    /// Index of its tile arrangement, from 1 on.
    arrangement: usize,
    /// Number of its tiles.
    tiles: usize,
    /// Batch over all rows.
    all: Batch,
    /// Number of layers done.
    done: usize,
    /// Outputs of intermediate layers, each (tiles of all pictures * tile rows, hidden).
    between: Vec<Vec<f32>>,
}

/// Layer norm over rows.
fn norm_all(rows: &mut [f32], factors: &[f32], addends: &[f32]) {
    for row in rows.chunks_exact_mut(factors.len()) {
        let count = row.len() as f64;
        let mean = row.iter().copied().map(f64::from).sum::<f64>() / count;
        let variance = row.iter().map(|&number| (f64::from(number) - mean).powi(2)).sum::<f64>() / count;
        let scale = 1.0 / (variance + EPS).sqrt();
        for ((number, factor), addend) in row.iter_mut().zip(factors).zip(addends) {
            *number = ((f64::from(*number) - mean) * scale) as f32 * factor + addend;
        }
    }
}

impl Tower {
    /// Input of the layers: rows of the picture's tiles, of missing tiles, and padding.
    fn begin_rows(&mut self, way: &MosaicWay, patches: &[f32]) -> Result<Vec<f32>, KernelError> {
        let (mosaic, spec) = (self.mosaic.as_ref().expect("it has tiles"), &self.spec);
        let (hidden, rows) = (spec.layers.hidden, spec.tile_rows());
        let all = spec.mosaic.as_ref().map_or(0, |mosaic| mosaic.tiles);
        let of_tile = mosaic.tile_places.rows(way.arrangement..way.arrangement + 1).to_f32();
        let of_tile = of_tile.expect("of floats, as loading has seen");
        let [gate, gate_before, _] = mosaic.gates;
        let mut numbers = Vec::with_capacity(way.all.rows() * hidden);
        for tile in 0..all {
            let before = &mosaic.before[(way.arrangement * all + tile) * hidden..][..hidden];
            for row in 0..rows {
                let place = &mosaic.places[row * hidden..][..hidden];
                let in_tile = &of_tile[(tile * rows + row) * hidden..][..hidden];
                let patch = (row > 0 && tile < way.tiles)
                    .then(|| &patches[(tile * (rows - 1) + row - 1) * hidden..][..hidden]);
                numbers.extend((0..hidden).map(|column| {
                    let own = match row {
                        0 => mosaic.class[column],
                        _ => patch.map_or(0.0, |patch| patch[column]) + gate_before * before[column],
                    };
                    own + (1.0 - gate) * place[column] + gate * in_tile[column]
                }));
            }
        }
        norm_all(&mut numbers, &mosaic.norms[0], &mosaic.norms[1]);
        numbers.resize(way.all.rows() * hidden, 0.0);
        Ok(numbers)
    }

    pub(super) fn begin_mosaic(&mut self, span: &MediaSpan) -> Result<(), KernelError> {
        let [rows, cols] = span.whole.map(|side| side as usize);
        let side = self.spec.one_square();
        let arrangement = [rows / side.rows, cols / side.cols];
        let layout = Layout::new(&self.spec, Grid { rows, cols });
        let patches = layout.patches_of(&self.spec, &self.scale, &span.pixels, 0..layout.rows());
        let mosaic = self.spec.mosaic.as_ref().expect("it has tiles");
        let place = mosaic.arrangements().position(|one| one == arrangement);
        let way = MosaicWay {
            arrangement: place.expect("a frame that fits is arranged in one of the ways") + 1,
            tiles: arrangement[0] * arrangement[1],
            all: batch_of(&[self.spec.mosaic_rows().unwrap_or(0)]),
            done: 0,
            between: vec![Vec::new(); mosaic.between.len()],
        };
        let count = rows * cols;
        self.backend.begin(&batch_of(&[count]))?;
        let written = self.embed_patches(0..count, &patches);
        self.backend.end().and(written)?;
        let mut embedded = vec![0.0; count * self.spec.layers.hidden];
        self.backend.read_rows(self.network.given(), 0, &mut embedded)?;
        let numbers = self.begin_rows(&way, &embedded)?;
        self.backend.begin(&way.all)?;
        let written = self.backend.write_rows(self.network.given(), 0, &numbers);
        self.network.embed(&mut self.backend, way.all.rows());
        self.network.begin(&mut self.backend);
        // Rows behind those of the tiles are not read.
        let padding = way.all.rows() - way.tiles * self.spec.tile_rows();
        self.attention = self.network.whole_attention(padding as u32);
        self.mosaic_way = way;
        self.backend.end().and(written)
    }

    /// Rows of all tiles in the current residual.
    fn tiles_now(&mut self) -> Result<Vec<f32>, KernelError> {
        let tiles = self.spec.mosaic.as_ref().map_or(0, |mosaic| mosaic.tiles);
        let mut numbers = vec![0.0; tiles * self.spec.tile_rows() * self.spec.layers.hidden];
        self.backend.read_rows(self.network.residual(), 0, &mut numbers)?;
        Ok(numbers)
    }

    /// Normalises the output of the local layers, and adds the tile embeddings.
    fn cross_over(&mut self, layer: usize) -> Result<(), KernelError> {
        let (hidden, rows) = (self.spec.layers.hidden, self.spec.tile_rows());
        let all = self.spec.mosaic.as_ref().map_or(0, |mosaic| mosaic.tiles);
        let filled = self.mosaic_way.all.rows() / all - rows;
        let mut numbers = vec![0.0; self.mosaic_way.all.rows() * hidden];
        self.backend.read_rows(self.network.residual(), 0, &mut numbers)?;
        let mosaic = self.mosaic.as_ref().expect("it has tiles");
        norm_all(&mut numbers, &mosaic.norms[2], &mosaic.norms[3]);
        for (index, row) in numbers.chunks_exact_mut(hidden).enumerate() {
            let tile = match index.checked_sub(all * rows) {
                None => index / rows,
                Some(filling) => filling / filled,
            };
            let behind = &mosaic.behind[(self.mosaic_way.arrangement * all + tile) * hidden..][..hidden];
            row.iter_mut().zip(behind).for_each(|(number, more)| *number += mosaic.gates[2] * more);
        }
        self.backend.begin(&self.mosaic_way.all)?;
        let written = self.backend.write_rows(self.network.residual(), 0, &numbers);
        self.network.norm_behind(&mut self.backend, layer);
        self.backend.end().and(written)
    }

    pub(super) fn advance_mosaic(&mut self, layers: usize) -> Result<Option<Vec<f32>>, KernelError> {
        let count = self.network.layers.len();
        let mosaic = self.spec.mosaic.clone().expect("it has tiles");
        let end = count.min(self.mosaic_way.done + layers);
        for index in self.mosaic_way.done..end {
            self.backend.begin(&self.mosaic_way.all)?;
            self.network.run_layer(&mut self.backend, index, &self.attention[index]);
            self.backend.end()?;
            for (place, _) in mosaic.between.iter().enumerate().filter(|(_, layer)| **layer == index) {
                self.mosaic_way.between[place] = self.tiles_now()?;
            }
            if index + 1 == mosaic.local {
                self.cross_over(index)?;
            }
        }
        self.mosaic_way.done = end;
        if end < count { Ok(None) } else { self.mosaic_given().map(Some) }
    }

    /// Row of the image token, and the rows for the cross-attention cache.
    fn mosaic_given(&mut self) -> Result<Vec<f32>, KernelError> {
        let last = self.tiles_now()?;
        let between = std::mem::take(&mut self.mosaic_way.between);
        let (hidden, rows) = (self.spec.layers.hidden, self.spec.tile_rows());
        let joiner = self.joiner.as_ref().expect("a tower of tiles has a matrix behind it");
        let mut given = self.mosaic.as_ref().expect("it has tiles").image.clone();
        let batch = batch_of(&[rows]);
        let mut read = Vec::with_capacity(rows * self.spec.square_width());
        for (tile, numbers) in last.chunks_exact(rows * hidden).enumerate() {
            read.clear();
            for (row, last) in numbers.chunks_exact(hidden).enumerate() {
                read.extend_from_slice(last);
                let at = (tile * rows + row) * hidden;
                // Interleave the layers: for each element, the values of all layers.
                read.extend((at..at + hidden).flat_map(|place| between.iter().map(move |of| of[place])));
            }
            given.extend(joiner.join(&mut self.backend, &batch, &mut self.buffers.joiner, &read)?);
        }
        Ok(given)
    }
}
