//! A family's processor as data: what `preprocessor_config.json` says, and what it makes of a picture. A setting that is not
//! followed is an error.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::decode::Picture;
use crate::error::{PictureError, ProcessorError};
use crate::pixels::PixelScale;
use crate::resize::Filter;
use crate::tiles::Tiles;
use crate::whole::Whole;

/// What is made of pictures before a tower sees them.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    scale: PixelScale,
    filter: Filter,
    cut: Cut,
}

/// What frames are made of a picture.
#[derive(Clone, Debug, PartialEq)]
enum Cut {
    /// Squares of one size: Idefics3 and SmolVLM.
    Tiles(Tiles),
    /// One, of a size near its own: Qwen's models.
    Whole(Whole),
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

/// How a request wants a picture to be looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// How closely.
    pub detail: Detail,
    /// Pixels that it is to have at least, instead of what the processor says.
    pub pixels_min: Option<u64>,
    /// Pixels that it is to have at most, likewise.
    pub pixels_max: Option<u64>,
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
        class_of(config).is_some_and(|class| CLASSES.contains(&class.as_str()))
    }

    /// Reads `preprocessor_config.json`.
    ///
    /// # Errors
    /// A class that is not known, a setting of it that is not, or one that is out of bounds.
    pub fn from_config(config: &Map<String, Value>) -> Result<Processor, ProcessorError> {
        let Some(class) = class_of(config).filter(|_| Self::knows(config)) else {
            let named = config.get("image_processor_type").cloned().unwrap_or_default();
            let known: Vec<String> = CLASSES.iter().map(|class| format!("{class}ImageProcessor")).collect();
            let reason = format!("{named} is not known; {} are", known.join(", "));
            return Err(ProcessorError::new("image_processor_type", reason));
        };
        let is_whole = class == "Qwen2VL";
        let read = Settings { config };
        let own =
            ["do_image_splitting", "do_normalize", "do_rescale", "do_resize", "image_mean", "image_std"];
        let more: &[&str] = match is_whole {
            true => &[
                "max_pixels",
                "merge_size",
                "min_pixels",
                "patch_size",
                "resample",
                "rescale_factor",
                "size",
                "temporal_patch_size",
            ],
            false => &["max_image_size", "resample", "rescale_factor", "size"],
        };
        for (key, value) in config {
            let known = own.iter().chain(more).chain(OTHER_KEYS).any(|known| known == key);
            if !known && !value.is_null() {
                return Err(ProcessorError::new(key, "is not known, so what it changes would be lost"));
            }
        }
        let factor = match read.truth("do_rescale", true)? {
            true => read.number("rescale_factor", 1.0 / 255.0)?,
            false => 1.0,
        };
        let [mean, deviation] = match is_whole {
            true => CLIP_COLORS,
            false => [[0.5; 3]; 2],
        };
        let (mean, deviation) = match read.truth("do_normalize", true)? {
            true => (read.colors("image_mean", mean)?, read.colors("image_std", deviation)?),
            false => ([0.0; 3], [1.0; 3]),
        };
        if deviation.contains(&0.0) {
            return Err(ProcessorError::new("image_std", "0 cannot be divided by"));
        }
        let scale = PixelScale::new(factor, mean, deviation);
        if is_whole {
            let (filter, cut) = (read.filter("resample", Filter::Bicubic)?, Cut::Whole(read.whole()?));
            return Ok(Processor { scale, filter, cut });
        }
        let tiles = Tiles {
            longest: match read.truth("do_resize", true)? {
                true => Some(read.longest_edge("size", 4 * 364)?),
                false => None,
            },
            side: read.longest_edge("max_image_size", 364)?,
            splits: read.truth("do_image_splitting", true)?,
        };
        Ok(Processor { scale, filter: read.filter("resample", Filter::Lanczos)?, cut: Cut::Tiles(tiles) })
    }

    /// What a picture becomes.
    ///
    /// # Errors
    /// [`PictureError::Shape`]; [`PictureError::Bounds`] and [`PictureError::NoBounds`] where the request's bounds are none.
    pub fn prepare(&self, picture: Picture, look: Look) -> Result<Prepared, PictureError> {
        match &self.cut {
            Cut::Tiles(_) if look.pixels_min.is_some() || look.pixels_max.is_some() => {
                Err(PictureError::NoBounds)
            }
            Cut::Tiles(tiles) => tiles.prepare(picture, self.filter, look.detail),
            Cut::Whole(whole) => whole.prepare(picture, self.filter, look),
        }
    }

    /// The most frames that a picture becomes.
    pub fn frames_max(&self) -> usize {
        match &self.cut {
            Cut::Tiles(tiles) => tiles.frames_max(),
            Cut::Whole(_) => 1,
        }
    }

    /// Rows and columns of every frame; none where each has a size of its own.
    pub fn frame_side(&self) -> Option<u32> {
        match &self.cut {
            Cut::Tiles(tiles) => Some(tiles.side),
            Cut::Whole(_) => None,
        }
    }

    /// Pixels of a patch's side, and patches of the side of a square that becomes one row, where the processor says so.
    pub fn patches(&self) -> Option<(u32, u32)> {
        match &self.cut {
            Cut::Tiles(_) => None,
            Cut::Whole(whole) => Some((whole.patch, whole.joined)),
        }
    }

    /// What a tower reads for a byte.
    pub fn scale(&self) -> &PixelScale {
        &self.scale
    }
}

/// Classes that are known, without `ImageProcessor`.
const CLASSES: [&str; 3] = ["Idefics3", "SmolVLM", "Qwen2VL"];

/// Mean and deviation of the colours that CLIP was trained with.
const CLIP_COLORS: [[f32; 3]; 2] =
    [[0.481_454_67, 0.457_827_5, 0.408_210_72], [0.268_629_55, 0.261_302_6, 0.275_777_1]];

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

    /// One number a colour.
    fn colors(&self, key: &str, usual: [f32; 3]) -> Result<[f32; 3], ProcessorError> {
        let Some(value) = self.set(key) else { return Ok(usual) };
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

    /// Qwen's settings: bounds of pixels by their own keys, or as edges of a size.
    fn whole(&self) -> Result<Whole, ProcessorError> {
        let count = |key: &str, usual: u64| match self.set(key) {
            None => Ok(usual),
            Some(value) => value.as_u64().filter(|count| (1..=SIDE_MAX).contains(count)).ok_or_else(|| {
                ProcessorError::new(key, format!("{value} is no whole number between 1 and {SIDE_MAX}"))
            }),
        };
        let (patch, joined) = (count("patch_size", 14)? as u32, count("merge_size", 2)? as u32);
        if u64::from(patch) * u64::from(joined) > SIDE_MAX {
            return Err(ProcessorError::new("patch_size", format!("squares of {joined} x {patch} pixels")));
        }
        if count("temporal_patch_size", 2)? != 2 {
            return Err(ProcessorError::new("temporal_patch_size", "only patches of two frames are known"));
        }
        let pixels = |key: &str, edge: &str, usual: u64| {
            let size = self.set("size");
            let found = self.set(key).or_else(|| size?.get(edge)).or_else(|| size?.get(key));
            match found.filter(|value| !value.is_null()) {
                None => Ok(usual),
                Some(value) => value
                    .as_u64()
                    .filter(|&pixels| pixels > 0)
                    .ok_or_else(|| ProcessorError::new(key, format!("{value} is no whole number above 0"))),
            }
        };
        Ok(Whole {
            patch,
            joined,
            pixels_min: pixels("min_pixels", "shortest_edge", 56 * 56)?,
            pixels_max: pixels("max_pixels", "longest_edge", 28 * 28 * 1280)?,
            resizes: self.truth("do_resize", true)?,
        })
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
