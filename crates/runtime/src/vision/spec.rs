//! What a tower is, as data: its layers, how patches stand, and what joins it to a text model. What a `config.json` says of
//! one is read in a file for each family.

use hanzo_engine_kernels::RopeAxes;

use super::layout::Grid;
use super::{idefics3, qwen};
use crate::error::LoadError;
use crate::limits::PATCHES_MAX;
use crate::spec::{AxesSpec, Config, TransformerSpec};

/// How a picture is written in a prompt, and its tensors are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Idefics3 and SmolVLM: parts with the whole behind them, and marks around each.
    Idefics3,
    /// Qwen2-VL, Qwen2.5-VL and Qwen3-VL: nothing but its rows.
    Qwen,
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
    /// Pixels of every frame's side; none where each has a size of its own.
    pub(crate) frame: Option<usize>,
    /// Patches that a frame has at most.
    pub(crate) patches_max: usize,
    pub(crate) learned: Option<Learned>,
    pub(crate) windows: Option<Windows>,
    /// Squares go through an MLP rather than one matrix.
    pub(crate) curved: bool,
    /// Layers after which rows are made besides, which the first layers of the text model add to theirs (DeepStack).
    pub(crate) deep: Vec<usize>,
    /// Which positions of a row turn which pairs in the text model, whose rows lie in a plane then.
    pub(crate) axes: Option<RopeAxes>,
    /// Elements of a row that the text model reads.
    pub(crate) text_hidden: usize,
    /// What a prompt has in a picture's place.
    pub(crate) image_token: u32,
}

/// Colours of a pixel.
pub(super) const COLORS: usize = 3;

/// Whether a model is of a family whose pictures are read.
pub(crate) fn knows(model_type: &str) -> bool {
    matches!(model_type, "idefics3" | "smolvlm") || qwen::knows(model_type)
}

impl TowerSpec {
    /// As the whole model's `config.json` says it, where frames have sides of so many pixels or of any, and a row of the text
    /// model so many elements, of heads of so many.
    pub(super) fn from_config(
        config: &Config,
        frame: Option<u32>,
        (text_hidden, text_pairs): (usize, usize),
    ) -> Result<TowerSpec, LoadError> {
        let model_type = config.string("model_type")?.unwrap_or_default().to_owned();
        let is_qwen = qwen::knows(&model_type);
        match frame {
            None if is_qwen => qwen::spec(config, &model_type, (text_hidden, text_pairs)),
            Some(frame) if !is_qwen => idefics3::spec(config, frame as usize, text_hidden),
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
        let own = self.frame.is_none_or(|frame| [height, width] == [frame; 2]);
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
            None => self.patches_max.min(rows_max.saturating_mul(self.square_patches())),
        }
    }

    /// Numbers of a patch.
    pub(super) fn patch_width(&self) -> usize {
        COLORS * self.patch * self.patch
    }

    /// Numbers of a square of patches.
    pub(super) fn square_width(&self) -> usize {
        self.layers.hidden * self.square_patches()
    }

    /// Numbers of a row that are given, what is added in the text model's first layers behind those of its embedding.
    pub(crate) fn row_width(&self) -> usize {
        self.text_hidden * (1 + self.deep.len())
    }

    /// Has a text model take what this tower gives it: positions by row and column, and rows for its first layers.
    pub(crate) fn fit(&self, text: &mut TransformerSpec) {
        for rope in &mut text.ropes {
            rope.axes = self.axes.map(|axes| AxesSpec { axes, anew: false });
        }
        text.deep_layers = self.deep.len();
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
