//! Image processor of a model family as data, read from `preprocessor_config.json`. A setting that is not
//! supported is an error.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::canvas::Canvas;
use crate::decode::Picture;
use crate::error::{PictureError, ProcessorError};
use crate::pixels::PixelScale;
use crate::quarters::Quarters;
use crate::resize::Filter;
use crate::squares::{Grids, Square};
use crate::tiles::Tiles;
use crate::whole::{PixelRoom, Sizes, Whole};

/// Preprocessing of pictures for a vision tower.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    scale: PixelScale,
    filter: Filter,
    cut: Cut,
}

/// Method of turning a picture into frames.
#[derive(Clone, Debug, PartialEq)]
enum Cut {
    /// Tiles of one size: Idefics3 and SmolVLM.
    Tiles(Tiles),
    /// Quarters and the whole, each near its own size: Idefics2.
    Quarters(Quarters),
    /// Whole picture near its own size: Qwen's models, Pixtral and Mistral 3.
    Whole(Whole),
    /// Square of one size: Gemma 3, LLaVA 1.5, CLIP and SigLIP.
    Square(Square),
    /// Canvas of square tiles: Llama 3.2 Vision.
    Canvas(Canvas),
    /// Square, and the whole on a canvas of squares: LLaVA-NeXT.
    Grids(Grids),
}

/// Level of detail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Detail {
    /// As in the processor's settings.
    #[default]
    Own,
    /// Whole picture only, in one frame.
    Low,
    /// Parts too, if the processor supports them.
    High,
}

/// Request's options for a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Level of detail.
    pub detail: Detail,
    /// Minimum pixels, overriding the processor.
    pub pixels_min: Option<u64>,
    /// Maximum pixels, overriding the processor.
    pub pixels_max: Option<u64>,
}

/// Input of one pass of the tower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Pixels: `(height, width, 3)`.
    pub rgb: Vec<u8>,
}

/// Preprocessed picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Original rows and columns.
    pub from: [u32; 2],
    /// Frames: the parts row by row, then the whole; or the whole alone; or the whole, then the canvas.
    pub frames: Vec<Frame>,
    /// Rows of parts; 0 if not split.
    pub rows: u32,
    /// Columns of parts.
    pub cols: u32,
}

const SIDE_MAX: u64 = 8192;

/// Keys without effect here: they concern the library's internals, or batches.
const OTHER_KEYS: &[&str] = &[
    "data_format",
    "default_to_square",
    "device",
    "disable_grouping",
    "do_convert_rgb",
    "do_pad",
    "feature_extractor_type",
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
    /// Returns true if the settings' class is known.
    pub fn knows(config: &Map<String, Value>) -> bool {
        class_of(config).is_some_and(|class| CLASSES.contains(&class.as_str()))
    }

    /// Reads `preprocessor_config.json`.
    ///
    /// # Errors
    /// An unknown class, an unknown setting, or a value out of bounds.
    pub fn from_config(config: &Map<String, Value>) -> Result<Processor, ProcessorError> {
        let Some(class) = class_of(config).filter(|_| Self::knows(config)) else {
            let named = config.get("image_processor_type").cloned().unwrap_or_default();
            let known: Vec<String> = CLASSES.iter().map(|class| format!("{class}ImageProcessor")).collect();
            let reason = format!("{named} is not known; {} are", known.join(", "));
            return Err(ProcessorError::new("image_processor_type", reason));
        };
        let kind = Kind::of(&class);
        let read = Settings { config };
        let own =
            ["do_image_splitting", "do_normalize", "do_rescale", "do_resize", "image_mean", "image_std"];
        for (key, value) in config {
            let known = own.iter().chain(kind.keys()).chain(OTHER_KEYS).any(|known| known == key);
            if !known && !value.is_null() {
                return Err(ProcessorError::new(key, "is not known, so what it changes would be lost"));
            }
        }
        let factor = match read.truth("do_rescale", true)? {
            true => read.number("rescale_factor", 1.0 / 255.0)?,
            false => 1.0,
        };
        let [mean, deviation] = match kind {
            Kind::Tiles | Kind::Quarters | Kind::Gemma3 | Kind::Siglip | Kind::Mllama => [[0.5; 3]; 2],
            Kind::Qwen | Kind::Pixtral | Kind::Clip | Kind::Llava | Kind::LlavaNext => CLIP_COLORS,
        };
        let (mean, deviation) = match read.truth("do_normalize", true)? {
            true => (read.colors("image_mean", mean)?, read.colors("image_std", deviation)?),
            false => ([0.0; 3], [1.0; 3]),
        };
        if deviation.contains(&0.0) {
            return Err(ProcessorError::new("image_std", "0 cannot be divided by"));
        }
        let usual = match kind {
            Kind::Tiles => Filter::Lanczos,
            Kind::Gemma3 | Kind::Quarters | Kind::Mllama => Filter::Bilinear,
            Kind::Qwen | Kind::Pixtral | Kind::Clip | Kind::Siglip | Kind::Llava | Kind::LlavaNext => {
                Filter::Bicubic
            }
        };
        let cut = match kind {
            Kind::Tiles => Cut::Tiles(Tiles {
                longest: match read.truth("do_resize", true)? {
                    true => Some(read.longest_edge("size", 4 * 364)?),
                    false => None,
                },
                side: read.longest_edge("max_image_size", 364)?,
                splits: read.truth("do_image_splitting", true)?,
            }),
            Kind::Quarters => Cut::Quarters(read.quarters()?),
            Kind::Qwen => Cut::Whole(read.whole()?),
            Kind::Pixtral => Cut::Whole(read.pixtral()?),
            Kind::Gemma3 => {
                Cut::Square(Square { side: read.square("size", 224)?, padded: None, cropped: false })
            }
            Kind::Siglip => Cut::Square(read.resized()?),
            Kind::Clip | Kind::Llava => Cut::Square(read.cropped(kind == Kind::Llava, mean)?),
            Kind::LlavaNext => Cut::Grids(read.grids(mean)?),
            Kind::Mllama => Cut::Canvas(read.canvas()?),
        };
        let filter = read.filter("resample", usual)?;
        Ok(Processor { scale: PixelScale::new(factor, mean, deviation), filter, cut })
    }

    /// Sets the number of patches joined along each side into one row, for models whose image processor does
    /// not state it. Frames then have a whole number of such squares.
    #[must_use]
    pub fn joining(mut self, joined: u32) -> Self {
        if let Cut::Whole(Whole { joined: own, sizes: Sizes::Longest(_), .. }) = &mut self.cut {
            *own = joined;
        }
        self
    }

    /// Preprocesses a picture.
    ///
    /// # Errors
    /// [`PictureError::Shape`]. [`PictureError::Bounds`] and [`PictureError::NoBounds`] for invalid bounds of
    /// the request.
    pub fn prepare(&self, picture: Picture, look: Look) -> Result<Prepared, PictureError> {
        self.prepare_within(picture, look, PixelRoom::default())
    }

    /// Preprocesses as [`Processor::prepare`] does, within `room`. If the processor bounds the number of
    /// pixels, the picture is scaled to fit.
    ///
    /// # Errors
    /// As [`Processor::prepare`].
    pub fn prepare_within(
        &self,
        picture: Picture,
        look: Look,
        room: PixelRoom,
    ) -> Result<Prepared, PictureError> {
        let bounded = look.pixels_min.is_some() || look.pixels_max.is_some();
        match &self.cut {
            Cut::Whole(whole) => whole.prepare(picture, self.filter, look, room),
            _ if bounded => Err(PictureError::NoBounds),
            Cut::Tiles(tiles) => tiles.prepare(picture, self.filter, look.detail),
            Cut::Quarters(quarters) => quarters.prepare(picture, self.filter, look.detail),
            Cut::Square(square) => square.prepare(picture, self.filter),
            Cut::Grids(grids) => grids.prepare(picture, self.filter, look.detail),
            Cut::Canvas(canvas) => canvas.prepare(picture, self.filter, look.detail),
        }
    }

    /// Maximum frames of a picture.
    pub fn frames_max(&self) -> usize {
        match &self.cut {
            Cut::Tiles(tiles) => tiles.frames_max(),
            Cut::Quarters(quarters) => quarters.frames_max(),
            Cut::Whole(_) | Cut::Square(_) | Cut::Canvas(_) => 1,
            Cut::Grids(_) => 2,
        }
    }

    /// Side of every frame, or of its squares, in pixels. None if sizes vary.
    pub fn frame_side(&self) -> Option<u32> {
        match &self.cut {
            Cut::Tiles(tiles) => Some(tiles.side),
            Cut::Square(square) => Some(square.side),
            Cut::Grids(grids) => Some(grids.square.side),
            Cut::Canvas(canvas) => Some(canvas.side),
            Cut::Whole(_) | Cut::Quarters(_) => None,
        }
    }

    /// Maximum squares of a frame.
    pub fn squares_max(&self) -> u32 {
        match &self.cut {
            Cut::Grids(grids) => grids.squares_max(),
            Cut::Canvas(canvas) => canvas.tiles,
            _ => 1,
        }
    }

    /// Longest side of a frame in pixels, if the processor bounds sides.
    pub fn longest_side(&self) -> Option<u32> {
        match &self.cut {
            Cut::Quarters(quarters) => quarters.sides.map(|[shortest, longest]| shortest.max(longest)),
            _ => None,
        }
    }

    /// Side of a patch in pixels, and number of patches joined along each side into one row, if the processor
    /// states them.
    pub fn patches(&self) -> Option<(u32, u32)> {
        match &self.cut {
            Cut::Whole(whole) => Some((whole.patch, whole.joined)),
            _ => None,
        }
    }

    /// Scale from bytes to the tower's input.
    pub fn scale(&self) -> &PixelScale {
        &self.scale
    }
}

/// Known classes, without the suffix `ImageProcessor`.
const CLASSES: [&str; 11] = [
    "Idefics2",
    "Idefics3",
    "SmolVLM",
    "Qwen2VL",
    "Gemma3",
    "CLIP",
    "Siglip",
    "Llava",
    "LlavaNext",
    "Pixtral",
    "Mllama",
];

/// Preprocessing by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tiles,
    Quarters,
    Qwen,
    Gemma3,
    Clip,
    Siglip,
    Llava,
    LlavaNext,
    Pixtral,
    Mllama,
}

impl Kind {
    /// Kind of a known class.
    fn of(class: &str) -> Kind {
        match class {
            "Qwen2VL" => Kind::Qwen,
            "Gemma3" => Kind::Gemma3,
            "CLIP" => Kind::Clip,
            "Siglip" => Kind::Siglip,
            "Llava" => Kind::Llava,
            "LlavaNext" => Kind::LlavaNext,
            "Pixtral" => Kind::Pixtral,
            "Mllama" => Kind::Mllama,
            "Idefics2" => Kind::Quarters,
            _ => Kind::Tiles,
        }
    }

    /// Settings of the class.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Kind::Quarters => &["resample", "rescale_factor", "size"],
            Kind::Tiles => &["max_image_size", "resample", "rescale_factor", "size"],
            Kind::Qwen => &[
                "max_pixels",
                "merge_size",
                "min_pixels",
                "patch_size",
                "resample",
                "rescale_factor",
                "size",
                "temporal_patch_size",
            ],
            Kind::Gemma3 => &[
                "do_pan_and_scan",
                "pan_and_scan_max_num_crops",
                "pan_and_scan_min_crop_size",
                "pan_and_scan_min_ratio_to_activate",
                "resample",
                "rescale_factor",
                "size",
            ],
            Kind::Siglip => &["resample", "rescale_factor", "size"],
            Kind::Clip | Kind::Llava => {
                &["crop_size", "do_center_crop", "resample", "rescale_factor", "size"]
            }
            Kind::LlavaNext => {
                &["crop_size", "do_center_crop", "image_grid_pinpoints", "resample", "rescale_factor", "size"]
            }
            Kind::Mllama => &["max_image_tiles", "resample", "rescale_factor", "size"],
            Kind::Pixtral => &["patch_size", "resample", "rescale_factor", "size"],
        }
    }
}

/// Mean and deviation of the colours in CLIP's training.
const CLIP_COLORS: [[f32; 3]; 2] =
    [[0.481_454_67, 0.457_827_5, 0.408_210_72], [0.268_629_55, 0.261_302_6, 0.275_777_1]];

/// Family in a class's name: `Idefics3ImageProcessorFast` is `Idefics3`. Older files name a feature extractor
/// instead.
fn class_of(config: &Map<String, Value>) -> Option<String> {
    let named = |key: &str| config.get(key).and_then(Value::as_str);
    let Some(class) = named("image_processor_type") else {
        return named("feature_extractor_type")?.strip_suffix("FeatureExtractor").map(str::to_owned);
    };
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

    /// Reads one number for each colour.
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

    /// Reads Idefics2's settings: the shortest and the longest side of a frame.
    fn quarters(&self) -> Result<Quarters, ProcessorError> {
        let splits = self.truth("do_image_splitting", false)?;
        if !self.truth("do_resize", true)? {
            return Ok(Quarters { sides: None, splits });
        }
        let Some(value) = self.set("size") else { return Ok(Quarters { sides: Some([378, 980]), splits }) };
        let side =
            |key: &str| value.get(key).and_then(Value::as_u64).filter(|side| (1..=SIDE_MAX).contains(side));
        match (side("shortest_edge"), side("longest_edge")) {
            (Some(shortest), Some(longest)) => {
                Ok(Quarters { sides: Some([shortest as u32, longest as u32]), splits })
            }
            _ => {
                let reason =
                    format!("{value} has no shortest_edge and longest_edge between 1 and {SIDE_MAX}");
                Err(ProcessorError::new("size", reason))
            }
        }
    }

    /// Reads Qwen's settings: pixel bounds, under their own keys or as edges of a size.
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
        let least = pixels("min_pixels", "shortest_edge", 56 * 56)?;
        let most = pixels("max_pixels", "longest_edge", 28 * 28 * 1280)?;
        Ok(Whole {
            patch,
            joined,
            sizes: Sizes::Pixels(least, most),
            resizes: self.truth("do_resize", true)?,
        })
    }

    /// Reads Pixtral's settings: a patch's side, and a picture's longest.
    fn pixtral(&self) -> Result<Whole, ProcessorError> {
        const PATCH: &str = "patch_size";
        let side = |value: &Value| value.as_u64().filter(|side| (1..=SIDE_MAX).contains(side));
        let patch = match self.set(PATCH) {
            None => Some(16),
            Some(Value::Object(sides)) => {
                let [height, width] = ["height", "width"].map(|key| sides.get(key).and_then(side));
                height.filter(|_| height == width)
            }
            Some(value) => side(value),
        };
        let Some(patch) = patch else {
            return Err(ProcessorError::new(PATCH, format!("is no square of 1 to {SIDE_MAX} pixels")));
        };
        Ok(Whole {
            patch: patch as u32,
            joined: 1,
            sizes: Sizes::Longest(self.longest_edge("size", 1024)?),
            resizes: self.truth("do_resize", true)?,
        })
    }

    /// Reads the side of a square given by height and width.
    fn square(&self, key: &str, usual: u32) -> Result<u32, ProcessorError> {
        let Some(value) = self.set(key) else { return Ok(usual) };
        let side = |value: &Value| value.as_u64().filter(|side| (1..=SIDE_MAX).contains(side));
        let [height, width] = ["height", "width"].map(|key| value.get(key).unwrap_or(value));
        match (side(height), side(width)) {
            (Some(height), Some(width)) if height == width => Ok(height as u32),
            _ => Err(ProcessorError::new(key, format!("{value} is no square of 1 to {SIDE_MAX} pixels"))),
        }
    }

    /// Reads Llama 3.2 Vision's settings: tiles of one size.
    fn canvas(&self) -> Result<Canvas, ProcessorError> {
        const TILES: &str = "max_image_tiles";
        for key in ["do_pad", "do_resize"] {
            if !self.truth(key, true)? {
                return Err(ProcessorError::new(key, "whole tiles of one size are wanted"));
            }
        }
        let tiles = self.set(TILES).map_or(Some(4), Value::as_u64).filter(|tiles| (1..=16).contains(tiles));
        let tiles = tiles.ok_or_else(|| ProcessorError::new(TILES, "is no number from 1 to 16"))?;
        Ok(Canvas { side: self.square("size", 224)?, tiles: tiles as u32 })
    }

    /// Reads SigLIP's settings: both sides resized to a square's.
    fn resized(&self) -> Result<Square, ProcessorError> {
        if !self.truth("do_resize", true)? {
            return Err(ProcessorError::new("do_resize", "frames of one size are wanted"));
        }
        Ok(Square { side: self.square("size", 224)?, padded: None, cropped: false })
    }

    /// Reads CLIP's and LLaVA's settings: the shorter side resized to a square's, which is cropped from the
    /// centre.
    fn cropped(&self, pads: bool, mean: [f32; 3]) -> Result<Square, ProcessorError> {
        let side = self.square("crop_size", 224)?;
        for key in ["do_center_crop", "do_resize"] {
            if !self.truth(key, true)? {
                return Err(ProcessorError::new(key, "frames of one size are wanted"));
            }
        }
        let shortest = match self.set("size") {
            None => 224,
            Some(value) => match value.get("shortest_edge").or(Some(value).filter(|value| value.is_u64())) {
                Some(shortest) => shortest.as_u64().unwrap_or(0),
                None => u64::from(self.square("size", 224)?),
            },
        };
        if shortest != u64::from(side) {
            let reason = format!("is {shortest} pixels, and squares of {side} are cut out");
            return Err(ProcessorError::new("size", reason));
        }
        let cropped = self.set("size").is_none_or(|size| size.get("height").is_none());
        let padded = match pads && self.truth("do_pad", false)? {
            true => Some(mean.map(|mean| (f64::from(mean) * 255.0) as u8)),
            false => None,
        };
        Ok(Square { side, padded, cropped })
    }

    /// Reads LLaVA-NeXT's settings: such squares, and sizes of canvases.
    fn grids(&self, mean: [f32; 3]) -> Result<Grids, ProcessorError> {
        const KEY: &str = "image_grid_pinpoints";
        let square = self.cropped(false, mean)?;
        let usual = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]];
        let Some(value) = self.set(KEY) else { return Grids::new(square, usual.to_vec()) };
        let number = |value: &Value| value.as_u64().filter(|&side| side <= SIDE_MAX).map(|side| side as u32);
        let pair = |value: &Value| {
            let numbers = value.as_array()?.iter().map(number).collect::<Option<Vec<u32>>>()?;
            <[u32; 2]>::try_from(numbers).ok()
        };
        let pairs = value.as_array().and_then(|list| list.iter().map(pair).collect::<Option<Vec<_>>>());
        let pairs = pairs.ok_or_else(|| ProcessorError::new(KEY, "is no list of heights and widths"))?;
        Grids::new(square, pairs)
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
