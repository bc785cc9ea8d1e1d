//! Description of a vision tower: its layers, its patches, and its projector to a text model. Each family has a
//! file that reads `config.json`.

use hanzo_engine_ops::{Activation, HeadShape, RopeAxes};

use super::layout::Grid;
use super::mosaic::MosaicSpec;
use super::{dual, gemma3, idefics2, idefics3, llava, mllama, pixtral, qwen};
use crate::error::LoadError;
use crate::head::HeadActivation;
use crate::limits::PATCHES_MAX;
use crate::spec::{AxesSpec, Config, TransformerSpec};

/// Model family. It decides tensor names and the form of pictures in prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Idefics2: four quarters, then the whole picture, with a mark around each.
    Idefics2,
    /// Idefics3 and SmolVLM: parts, then the whole picture, with marks around each.
    Idefics3,
    /// Qwen2-VL, Qwen2.5-VL and Qwen3-VL: only its rows.
    Qwen,
    /// Gemma 3: its rows between marks and empty lines.
    Gemma3,
    /// LLaVA 1.5 and LLaVA-NeXT: only its rows.
    Llava,
    /// Pixtral and Mistral 3: lines of rows, with a token at the end of each.
    Pixtral,
    /// Llama 3.2 Vision: a token whose row is given, and rows for cross-attention.
    Mllama,
    /// CLIP and SigLIP: a vector; never part of a prompt.
    Dual,
}

/// Learned position embeddings of patches: a table for a square of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LearnedPositions {
    /// Side of the square in patches.
    pub(crate) side: usize,
    /// Interpolate for frames of other sizes, instead of taking the nearest entry.
    pub(crate) between: bool,
}

/// Layers with windowed attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Side of a window, in rows of the text model.
    pub(crate) side: usize,
    /// Layers that attend to the whole frame nevertheless.
    pub(crate) whole: Vec<usize>,
}

/// RMS norm of the layers' output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TowerNorm {
    pub(crate) eps: f32,
    /// Weights are stored minus one.
    pub(crate) from_one: bool,
}

/// Projection from the layers' output to rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reads {
    /// The network's final norm is applied first.
    pub(crate) normed: bool,
    /// Average the patches of a square, instead of concatenating them.
    pub(crate) mean: bool,
    /// Norm of each patch or mean.
    pub(crate) norm: Option<TowerNorm>,
    /// A matrix merges a square to one patch.
    pub(crate) merged: bool,
    /// Width of the projector's MLP; 0 if a single matrix projects.
    pub(crate) inner: usize,
    /// The matrices have biases.
    pub(crate) bias: bool,
}

/// Pooling of the rows after the layers to a picture's vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// Projects the first row, the class token (CLIP).
    First,
    /// Attention of a learned query with `heads` heads over all rows, plus an MLP of the result (SigLIP).
    Probe { heads: usize, ffn: usize, activation: HeadActivation },
}

/// Perceiver: makes the same number of rows from every frame. It has a gated MLP over patches, and latents that
/// attend to all of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PerceiverSpec {
    /// Number of rows it makes.
    pub(crate) latents: usize,
    /// Number of layers.
    pub(crate) depth: usize,
    pub(crate) heads: HeadShape,
    /// Width of the MLP over patches.
    pub(crate) inner: usize,
    pub(crate) inner_activation: Activation,
    /// Activation in the MLPs of latents.
    pub(crate) activation: Activation,
    /// Epsilon of its RMS norms.
    pub(crate) eps: f32,
}

/// Shape of the rows that a text model reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextShape {
    /// Elements of a row.
    pub(super) hidden: usize,
    /// Rotated pairs of a head.
    pub(super) pairs: usize,
}

impl TextShape {
    /// Shape of a text model's rows.
    pub(super) fn of(text: &TransformerSpec) -> TextShape {
        TextShape { hidden: text.hidden, pairs: text.ropes.first().map_or(0, |rope| rope.dim / 2) }
    }
}

/// Vision tower and its projector to a text model. Patches go through the layers; then each square of `joined` x
/// `joined` patches becomes a row.
#[derive(Clone, Debug, PartialEq)]
pub struct TowerSpec {
    pub(crate) family: Family,
    /// Layers, which run over the patches of one frame.
    pub(crate) layers: TransformerSpec,
    /// Side of a patch in pixels.
    pub(crate) patch: usize,
    /// A patch covers two video frames, which are equal for a picture.
    pub(crate) twofold: bool,
    /// The patch embedding has a bias.
    pub(crate) patch_bias: bool,
    /// Side in patches of a square that becomes one row.
    pub(crate) joined: usize,
    /// Side in pixels of every frame, or of the squares that it consists of; `None` if frames have any size.
    pub(crate) frame: Option<usize>,
    /// Maximum number of such squares in a frame; each goes through the layers separately.
    pub(crate) squares_max: usize,
    /// A class token stands before the patches of each square; no row is made from it.
    pub(crate) first: bool,
    /// Maximum patches of a frame.
    pub(crate) patches_max: usize,
    pub(crate) learned: Option<LearnedPositions>,
    pub(crate) windows: Option<Windows>,
    /// Projection to rows.
    pub(crate) reads: Reads,
    /// Pooling to a vector, for towers that make no rows.
    pub(crate) pooled: Option<Pooling>,
    /// Perceiver, if it makes the rows instead of squares.
    pub(crate) perceiver: Option<PerceiverSpec>,
    /// Tiles that attend to each other, for cross-attention.
    pub(crate) mosaic: Option<MosaicSpec>,
    /// A learned row ends each line of frames on a canvas, and the last line of a picture that is a single frame.
    pub(crate) lines: bool,
    /// In the text model, rows of a picture attend to each other in both directions.
    pub(crate) mutual: bool,
    /// Layers after which additional rows are made; the text model's first layers add them to theirs (DeepStack).
    pub(crate) deep: Vec<usize>,
    /// Positions that rotate each pair in the text model (M-RoPE), if rows have two-dimensional positions.
    pub(crate) axes: Option<RopeAxes>,
    /// Elements of a row of the text model, or of a vector.
    pub(crate) text_hidden: usize,
    /// Image token, which a template writes and a prompt contains,
    pub(crate) image_token: u32,
    /// unless this token stands in for it.
    pub(crate) stand_in: Option<u32>,
}

/// Colours of a pixel.
pub(super) const COLORS: usize = 3;

/// Whether the model type belongs to a supported family.
pub(crate) fn knows(model_type: &str) -> bool {
    matches!(
        model_type,
        "idefics2" | "idefics3" | "smolvlm" | "gemma3" | "llava" | "llava_next" | "mistral3" | "mllama"
    ) || qwen::knows(model_type)
}

impl TowerSpec {
    /// Basic tower for frames of any size, with a single matrix that projects each patch to a row.
    pub(super) fn bare(family: Family, layers: TransformerSpec, text_hidden: usize) -> TowerSpec {
        TowerSpec {
            family,
            layers,
            patch: 0,
            twofold: false,
            patch_bias: false,
            joined: 1,
            frame: None,
            squares_max: 1,
            first: false,
            patches_max: PATCHES_MAX,
            learned: None,
            windows: None,
            reads: Reads::default(),
            pooled: None,
            perceiver: None,
            mosaic: None,
            lines: false,
            mutual: false,
            deep: Vec::new(),
            axes: None,
            text_hidden,
            image_token: 0,
            stand_in: None,
        }
    }

    /// Reads the whole model's `config.json`. Frames have a fixed side, any size, or several squares.
    pub(super) fn from_config(
        config: &Config,
        frame: Option<u32>,
        squares: u32,
        text: TextShape,
    ) -> Result<TowerSpec, LoadError> {
        let model_type = config.string("model_type")?.unwrap_or_default().to_owned();
        let (side, text_hidden) = (frame.map(|frame| frame as usize), text.hidden);
        match (model_type.as_str(), side) {
            ("llava" | "llava_next", _) => llava::spec(config, side, squares as usize, text_hidden),
            ("mllama", Some(side)) => mllama::spec(config, side, squares as usize, text_hidden),
            (of, None) if qwen::knows(of) => qwen::spec(config, of, text),
            ("idefics2", None) => idefics2::spec(config, text_hidden),
            ("mistral3", None) => pixtral::spec(config, text_hidden),
            ("clip" | "siglip", Some(frame)) if squares == 1 => dual::spec(config, frame, text_hidden),
            ("gemma3", Some(frame)) if squares == 1 => gemma3::spec(config, frame, text_hidden),
            ("idefics3" | "smolvlm", Some(frame)) if squares == 1 => {
                idefics3::spec(config, frame, text_hidden)
            }
            _ => {
                let reason = "the image processor beside it is another family's";
                Err(config.unsupported("model_type", model_type, reason))
            }
        }
    }

    /// Side in pixels of a square that becomes one row.
    pub(crate) fn square(&self) -> usize {
        self.joined * self.patch
    }

    /// Patches of a square.
    pub(crate) fn square_patches(&self) -> usize {
        self.joined * self.joined
    }

    /// Arrangement of a frame's rows; `None` if this tower has no frames of that size.
    pub(crate) fn grid(&self, [height, width]: [usize; 2]) -> Option<Grid> {
        let fits = |side: usize| side > 0 && side.is_multiple_of(self.square());
        let squares = |frame: usize| match (height.is_multiple_of(frame), width.is_multiple_of(frame)) {
            (true, true) => (height / frame).saturating_mul(width / frame),
            _ => 0,
        };
        let own = self.frame.is_none_or(|frame| (1..=self.squares_max).contains(&squares(frame)));
        if !own || !fits(height) || !fits(width) {
            return None;
        }
        let grid = Grid { rows: height / self.square(), cols: width / self.square() };
        (grid.count().checked_mul(self.square_patches())? <= self.patches_max).then_some(grid)
    }

    /// Bytes of a frame's pixels.
    pub(crate) fn frame_bytes(&self, grid: Grid) -> usize {
        COLORS * grid.count() * self.square() * self.square()
    }

    /// Maximum patches of a frame with at most `rows_max` rows.
    pub(crate) fn patches_within(&self, rows_max: usize) -> usize {
        match self.frame {
            Some(_) => self.patches_max,
            // latents are as many for any number of patches
            None if self.perceiver.is_some() => self.patches_max,
            None => self.patches_max.min(rows_max.saturating_mul(self.square_patches())),
        }
    }

    /// Rows of the layers for `patches` patches, class tokens included.
    pub(super) fn layer_rows(&self, patches: usize) -> usize {
        if let Some(rows) = self.mosaic_rows() {
            return rows;
        }
        if self.first { patches + patches.div_ceil(self.one_square().count()) } else { patches }
    }

    /// Patches, arranged, that go through the layers together if frames have a fixed side: those of a frame or of a
    /// square of it.
    pub(super) fn one_square(&self) -> Grid {
        let side = self.frame.map_or(1, |frame| frame / self.square());
        Grid { rows: side, cols: side }
    }

    /// Input values of a patch.
    pub(super) fn patch_width(&self) -> usize {
        COLORS * self.patch * self.patch
    }

    /// Elements of a square: of all its patches, or of their mean.
    pub(super) fn square_width(&self) -> usize {
        if let Some(mosaic) = &self.mosaic {
            return self.layers.hidden * (1 + mosaic.between.len());
        }
        if self.reads.mean { self.layers.hidden } else { self.layers.hidden * self.square_patches() }
    }

    /// Input width of the projector's MLP or matrix.
    pub(super) fn read_width(&self) -> usize {
        if self.reads.merged { self.layers.hidden } else { self.square_width() }
    }

    /// Elements of a given row: the embedding, then the rows for the text model's first layers (DeepStack), or
    /// those for cross-attention.
    pub(crate) fn row_width(&self) -> usize {
        self.text_hidden * (1 + self.deep.len() + self.picture_rows())
    }

    /// Rows of a picture in the cross-attention cache.
    pub(crate) fn picture_rows(&self) -> usize {
        self.mosaic.as_ref().map_or(0, |mosaic| mosaic.tiles * self.tile_rows())
    }

    /// Adapts a text model to this tower: positions by row and column, and additional rows for its first layers.
    pub(crate) fn fit(&self, text: &mut TransformerSpec) {
        for rope in &mut text.ropes {
            rope.axes = self.axes.map(|axes| AxesSpec { axes, anew: false });
        }
        text.deep_layers = self.deep.len();
        text.picture_rows = self.picture_rows();
        text.together = if self.mutual { self.patches_max / self.square_patches() } else { 0 };
    }

    /// Checks common to all towers: a square has at least a pixel, and frames do not exceed the maximum number of
    /// patches.
    pub(super) fn checked(mut self, config: &Config) -> Result<Self, LoadError> {
        self.patches_max = self.patches_max.min(PATCHES_MAX) / self.square_patches() * self.square_patches();
        if self.patches_max == 0 {
            let reason = format!("squares of {} x {} patches", self.joined, self.joined);
            return Err(config.corrupt("spatial_merge_size", reason));
        }
        self.layers = self.layers.checked(&config.file)?;
        Ok(self)
    }
}
