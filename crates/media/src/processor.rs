//! A family's processor as data: what `preprocessor_config.json` says, and what it makes of a picture. A setting that is not
//! followed is an error.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::decode::Picture;
use crate::error::{PictureError, ProcessorError};
use crate::pixels::PixelScale;
use crate::resize::Filter;
use crate::tiles::Tiles;

/// What is made of pictures before a tower sees them.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    scale: PixelScale,
    filter: Filter,
    tiles: Tiles,
}

/// How closely a picture is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Detail {
    /// As the processor's own settings say.
    #[default]
    Own,
    /// As a whole alone, in one frame.
    Low,
    /// In parts too, where the processor knows parts.
    High,
}

/// What a tower sees at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// `(height, width, 3)`
    pub rgb: Vec<u8>,
}

/// A picture as a tower sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Its parts, row by row, and the whole behind them; or the whole alone.
    pub frames: Vec<Frame>,
    /// Rows of parts; 0 where it is not in parts.
    pub rows: u32,
    /// Columns of parts.
    pub cols: u32,
}

const SIDE_MAX: u64 = 8192;

/// Keys that change nothing of what is made here: of the library's own making, or of batches.
const OTHER_KEYS: &[&str] = &[
    "data_format",
    "default_to_square",
    "device",
    "disable_grouping",
    "do_convert_rgb",
    "do_pad",
    "image_processor_type",
    "image_seq_len",
    "image_seq_length",
    "input_data_format",
    "processor_class",
    "return_row_col_info",
    "return_tensors",
    "video_sampling",
];

impl Processor {
    /// Whether settings are of a class that is known here.
    pub fn knows(config: &Map<String, Value>) -> bool {
        class_of(config).is_some_and(|class| matches!(class.as_str(), "Idefics3" | "SmolVLM"))
    }

    /// Reads `preprocessor_config.json`.
    ///
    /// # Errors
    /// A class that is not known, a setting of it that is not, or one that is out of bounds.
    pub fn from_config(config: &Map<String, Value>) -> Result<Processor, ProcessorError> {
        if !Self::knows(config) {
            let named = config.get("image_processor_type").cloned().unwrap_or_default();
            let reason =
                format!("{named} is not known; Idefics3ImageProcessor and SmolVLMImageProcessor are");
            return Err(ProcessorError::new("image_processor_type", reason));
        }
        let read = Settings { config };
        let own =
            ["do_image_splitting", "do_normalize", "do_rescale", "do_resize", "image_mean", "image_std"];
        let more = ["max_image_size", "resample", "rescale_factor", "size"];
        for (key, value) in config {
            let known = own.iter().chain(&more).chain(OTHER_KEYS).any(|known| known == key);
            if !known && !value.is_null() {
                return Err(ProcessorError::new(key, "is not known, so what it changes would be lost"));
            }
        }
        let factor = match read.truth("do_rescale", true)? {
            true => read.number("rescale_factor", 1.0 / 255.0)?,
            false => 1.0,
        };
        let (mean, deviation) = match read.truth("do_normalize", true)? {
            true => (read.colors("image_mean")?, read.colors("image_std")?),
            false => ([0.0; 3], [1.0; 3]),
        };
        if deviation.contains(&0.0) {
            return Err(ProcessorError::new("image_std", "0 cannot be divided by"));
        }
        Ok(Processor {
            scale: PixelScale::new(factor, mean, deviation),
            filter: read.filter("resample", Filter::Lanczos)?,
            tiles: Tiles {
                longest: match read.truth("do_resize", true)? {
                    true => Some(read.longest_edge("size", 4 * 364)?),
                    false => None,
                },
                side: read.longest_edge("max_image_size", 364)?,
                splits: read.truth("do_image_splitting", true)?,
            },
        })
    }

    /// What a picture becomes.
    ///
    /// # Errors
    /// [`PictureError::Shape`].
    pub fn prepare(&self, picture: Picture, detail: Detail) -> Result<Prepared, PictureError> {
        self.tiles.prepare(picture, self.filter, detail)
    }

    /// The most frames that a picture becomes.
    pub fn frames_max(&self) -> usize {
        self.tiles.frames_max()
    }

    /// Rows and columns of a frame.
    pub fn frame_side(&self) -> u32 {
        self.tiles.side
    }

    /// What a tower reads for a byte.
    pub fn scale(&self) -> &PixelScale {
        &self.scale
    }
}

/// The family in a class's name: `Idefics3ImageProcessorFast` is `Idefics3`.
fn class_of(config: &Map<String, Value>) -> Option<String> {
    let class = config.get("image_processor_type")?.as_str()?;
    let class = class.strip_suffix("Fast").or(class.strip_suffix("Pil")).unwrap_or(class);
    class.strip_suffix("ImageProcessor").map(str::to_owned)
}

struct Settings<'a> {
    config: &'a Map<String, Value>,
}

impl Settings<'_> {
    fn set(&self, key: &str) -> Option<&Value> {
        self.config.get(key).filter(|value| !value.is_null())
    }

    fn truth(&self, key: &str, usual: bool) -> Result<bool, ProcessorError> {
        match self.set(key) {
            None => Ok(usual),
            Some(value) => {
                value.as_bool().ok_or_else(|| ProcessorError::new(key, "is neither true nor false"))
            }
        }
    }

    fn number(&self, key: &str, usual: f64) -> Result<f64, ProcessorError> {
        let number = match self.set(key) {
            None => Some(usual),
            Some(value) => value.as_f64(),
        };
        let finite = number.filter(|number| number.is_finite());
        finite.ok_or_else(|| ProcessorError::new(key, "is no number"))
    }

    /// One number a colour; a half each where nothing is said, as the class has it.
    fn colors(&self, key: &str) -> Result<[f32; 3], ProcessorError> {
        let Some(value) = self.set(key) else { return Ok([0.5; 3]) };
        let numbers =
            value.as_array().map(|list| list.iter().filter_map(Value::as_f64).collect::<Vec<f64>>());
        let three = numbers.and_then(|numbers| <[f64; 3]>::try_from(numbers).ok());
        let three = three.filter(|three| three.iter().all(|number| number.is_finite()));
        Ok(three.ok_or_else(|| ProcessorError::new(key, "is no list of three numbers"))?.map(|n| n as f32))
    }

    fn longest_edge(&self, key: &str, usual: u32) -> Result<u32, ProcessorError> {
        let Some(value) = self.set(key) else { return Ok(usual) };
        let pixels = value.get("longest_edge").and_then(Value::as_u64);
        match pixels {
            Some(pixels) if (1..=SIDE_MAX).contains(&pixels) => Ok(pixels as u32),
            _ => {
                Err(ProcessorError::new(key, format!("{value} has no longest_edge between 1 and {SIDE_MAX}")))
            }
        }
    }

    fn filter(&self, key: &str, usual: Filter) -> Result<Filter, ProcessorError> {
        let Some(value) = self.set(key) else { return Ok(usual) };
        match value.as_u64() {
            Some(1) => Ok(Filter::Lanczos),
            Some(2) => Ok(Filter::Bilinear),
            Some(3) => Ok(Filter::Bicubic),
            Some(4) => Ok(Filter::Box),
            Some(5) => Ok(Filter::Hamming),
            _ => Err(ProcessorError::new(key, format!("{value} is none of Pillow's filters 1 to 5"))),
        }
    }
}
