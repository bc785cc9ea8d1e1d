//! What a tower is, as data: its layers, how patches stand, and what joins it to a text model. What a `config.json` says of
//! one is read in a file for each family.

use hanzo_engine_kernels::{Activation, HeadShape, RopeAxes};

use super::layout::Grid;
use super::mosaic::MosaicSpec;
use super::{dual, gemma3, idefics2, idefics3, llava, mllama, pixtral, qwen};
use crate::encoder::HeadActivation;
use crate::error::LoadError;
use crate::limits::PATCHES_MAX;
use crate::spec::{AxesSpec, Config, TransformerSpec};

/// How a picture is written in a prompt, and its tensors are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Idefics2: quarters with the whole behind them, and a mark around each.
    Idefics2,
    /// Idefics3 and SmolVLM: parts with the whole behind them, and marks around each.
    Idefics3,
    /// Qwen2-VL, Qwen2.5-VL and Qwen3-VL: nothing but its rows.
    Qwen,
    /// Gemma 3: its rows between marks and empty lines.
    Gemma3,
    /// LLaVA 1.5 and LLaVA-NeXT: nothing but its rows.
    Llava,
    /// Pixtral and Mistral 3: lines of rows, with a token at the end of each.
    Pixtral,
    /// Llama 3.2 Vision: a token whose row is given, and what is remembered of it.
    Mllama,
    /// CLIP and SigLIP: a vector, and in no prompt.
    Dual,
}

/// What is learned of where patches stand: a table for a square of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learned {
    /// Patches of the square's side.
    pub(crate) side: usize,
    /// Of other frames it is what lies between, rather than the nearest.
    pub(crate) between: bool,
}

/// Layers that see a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Rows of the text model of a window's side.
    pub(crate) side: usize,
    /// Layers that see the whole frame nevertheless.
    pub(crate) whole: Vec<usize>,
}

/// A norm by the root of the mean of squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Given {
    pub(crate) eps: f32,
    /// Factors are kept less one.
    pub(crate) from_one: bool,
}

/// What becomes a row of what the layers give.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reads {
    /// What the layers give is normed as what they read is.
    pub(crate) normed: bool,
    /// The mean of a square's patches, rather than all of them.
    pub(crate) mean: bool,
    /// The norm of each patch or mean.
    pub(crate) norm: Option<Given>,
    /// A matrix makes a patch of a square.
    pub(crate) merged: bool,
    /// Elements between the two matrices of an MLP; 0 where one makes the row.
    pub(crate) inner: usize,
    /// Their products have biases.
    pub(crate) bias: bool,
}

/// What of the rows behind the layers becomes a picture's one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// The first row, through a matrix (CLIP).
    First,
    /// What a learned query of so many heads finds in all of them, and an MLP's product besides (SigLIP).
    Probe { heads: usize, ffn: usize, activation: HeadActivation },
}

/// What makes as many rows of every frame, whatever patches it has: a gated MLP of each, and latents that see them all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PerceiverSpec {
    /// Rows.
    pub(crate) latents: usize,
    /// Layers.
    pub(crate) depth: usize,
    pub(crate) heads: HeadShape,
    /// Elements inside the MLP of patches.
    pub(crate) inner: usize,
    pub(crate) inner_activation: Activation,
    /// Inside the MLPs of latents.
    pub(crate) activation: Activation,
    /// Of its norms, by the root of the mean of squares.
    pub(crate) eps: f32,
}

/// A tower and what joins it to a text model: patches before the layers, squares of `joined` x `joined` of them become a row
/// behind.
#[derive(Clone, Debug, PartialEq)]
pub struct TowerSpec {
    pub(crate) family: Family,
    /// Its layers, over the patches of one frame.
    pub(crate) layers: TransformerSpec,
    /// Pixels of a patch's side.
    pub(crate) patch: usize,
    /// A patch is of two frames of a film, which of a picture are the same.
    pub(crate) twofold: bool,
    /// What is added to a patch has a bias.
    pub(crate) patch_bias: bool,
    /// Patches of the side of a square that becomes one row.
    pub(crate) joined: usize,
    /// Pixels of every frame's side, or of the squares that it is of; none where each has a size of its own.
    pub(crate) frame: Option<usize>,
    /// Such squares of a frame at most; each goes through the layers for itself.
    pub(crate) squares_max: usize,
    /// A learned row stands before the patches of each, and none behind the layers is made of it.
    pub(crate) first: bool,
    /// Patches that a frame has at most.
    pub(crate) patches_max: usize,
    pub(crate) learned: Option<Learned>,
    pub(crate) windows: Option<Windows>,
    /// What becomes a row.
    pub(crate) reads: Reads,
    /// What becomes a vector, where that is wanted and no rows are.
    pub(crate) pooled: Option<Pooling>,
    /// What makes rows, where no square of patches becomes one.
    pub(crate) perceiver: Option<PerceiverSpec>,
    /// What makes rows that are remembered, of tiles that see each other.
    pub(crate) mosaic: Option<MosaicSpec>,
    /// A learned row ends the lines of frames of several squares, and what stands for a frame alone.
    pub(crate) lines: bool,
    /// Rows of a picture see each other in the text model.
    pub(crate) mutual: bool,
    /// Layers after which rows are made besides, which the first layers of the text model add to theirs (DeepStack).
    pub(crate) deep: Vec<usize>,
    /// Which positions of a row turn which pairs in the text model, whose rows lie in a plane then.
    pub(crate) axes: Option<RopeAxes>,
    /// Elements of a row that the text model reads, or of a vector.
    pub(crate) text_hidden: usize,
    /// What a template writes in a picture's place, and a prompt has there, unless
    pub(crate) image_token: u32,
    /// this stands there instead.
    pub(crate) stand_in: Option<u32>,
}

/// Colours of a pixel.
pub(super) const COLORS: usize = 3;

/// Whether a model is of a family whose pictures are read.
pub(crate) fn knows(model_type: &str) -> bool {
    matches!(
        model_type,
        "idefics2" | "idefics3" | "smolvlm" | "gemma3" | "llava" | "llava_next" | "mistral3" | "mllama"
    ) || qwen::knows(model_type)
}

impl TowerSpec {
    /// Layers over patches of frames of any size, which one matrix each makes rows of.
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

    /// As the whole model's `config.json` says it, where frames have sides of so many pixels or of any, or are of several such
    /// squares, and a row of the text model so many elements, of heads of so many.
    pub(super) fn from_config(
        config: &Config,
        (frame, squares): (Option<u32>, u32),
        (text_hidden, text_pairs): (usize, usize),
    ) -> Result<TowerSpec, LoadError> {
        let model_type = config.string("model_type")?.unwrap_or_default().to_owned();
        let side = frame.map(|frame| frame as usize);
        match (model_type.as_str(), side) {
            ("llava" | "llava_next", _) => llava::spec(config, (side, squares as usize), text_hidden),
            ("mllama", Some(side)) => mllama::spec(config, (side, squares as usize), text_hidden),
            (of, None) if qwen::knows(of) => qwen::spec(config, of, (text_hidden, text_pairs)),
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

    /// Pixels of the side of what becomes a row.
    pub(crate) fn square(&self) -> usize {
        self.joined * self.patch
    }

    /// Patches of a square.
    pub(crate) fn square_patches(&self) -> usize {
        self.joined * self.joined
    }

    /// Where the rows of a frame stand; none where a frame of so many pixels is none of this tower's.
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

    /// Bytes of the pixels of a frame with such rows.
    pub(crate) fn frame_bytes(&self, grid: Grid) -> usize {
        COLORS * grid.count() * self.square() * self.square()
    }

    /// Patches of the largest frame, of which no more rows are wanted than `rows_max`.
    pub(crate) fn patches_within(&self, rows_max: usize) -> usize {
        match self.frame {
            Some(_) => self.patches_max,
            // They are no more of them than latents.
            None if self.perceiver.is_some() => self.patches_max,
            None => self.patches_max.min(rows_max.saturating_mul(self.square_patches())),
        }
    }

    /// Rows of the layers for so many patches.
    pub(super) fn layer_rows(&self, patches: usize) -> usize {
        if let Some(rows) = self.mosaic_rows() {
            return rows;
        }
        if self.first { patches + patches.div_ceil(self.one_square().count()) } else { patches }
    }

    /// Of patches that go through the layers for themselves, those of a whole frame or of a square of it.
    pub(super) fn one_square(&self) -> Grid {
        let side = self.frame.map_or(1, |frame| frame / self.square());
        Grid { rows: side, cols: side }
    }

    /// Numbers of a patch.
    pub(super) fn patch_width(&self) -> usize {
        COLORS * self.patch * self.patch
    }

    /// Numbers of what is made of a square of patches first: of all of them, or of their mean.
    pub(super) fn square_width(&self) -> usize {
        if let Some(mosaic) = &self.mosaic {
            return self.layers.hidden * (1 + mosaic.between.len());
        }
        if self.reads.mean { self.layers.hidden } else { self.layers.hidden * self.square_patches() }
    }

    /// Of what the MLP behind squares reads, or the one matrix.
    pub(super) fn read_width(&self) -> usize {
        if self.reads.merged { self.layers.hidden } else { self.square_width() }
    }

    /// Numbers of a row that are given, what is added in the text model's first layers behind those of its embedding, or rows that
    /// are remembered.
    pub(crate) fn row_width(&self) -> usize {
        self.text_hidden * (1 + self.deep.len() + self.picture_rows())
    }

    /// Rows that are remembered of a picture.
    pub(crate) fn picture_rows(&self) -> usize {
        self.mosaic.as_ref().map_or(0, |mosaic| mosaic.tiles * self.tile_rows())
    }

    /// Has a text model take what this tower gives it: positions by row and column, and rows for its first layers.
    pub(crate) fn fit(&self, text: &mut TransformerSpec) {
        for rope in &mut text.ropes {
            rope.axes = self.axes.map(|axes| AxesSpec { axes, anew: false });
        }
        text.deep_layers = self.deep.len();
        text.picture_rows = self.picture_rows();
        text.together = if self.mutual { self.patches_max / self.square_patches() } else { 0 };
    }

    /// What is checked of every tower: that a square is at least a pixel, and frames have no more patches than are possible.
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
