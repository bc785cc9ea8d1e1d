//! Image processor of a model family as data, read from `preprocessor_config.json`. A setting that is not
//! supported is an error.

mod settings;

use serde_json::{Map, Value};

use crate::canvas::Canvas;
use crate::error::{PictureError, ProcessorError};
use crate::options::{PictureOptions, PixelLimits};
use crate::picture::{Picture, PreparedPicture};
use crate::pixels::PixelScale;
use crate::quarters::Quarters;
use crate::resize::Filter;
use crate::resolution::{DynamicResolution, SizeRule};
use crate::squares::{Grids, Square};
use crate::tiles::Tiles;
use settings::ProcessorSettings;

/// Preprocessing of pictures for a vision tower.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    scale: PixelScale,
    filter: Filter,
    method: FrameMethod,
}

/// Method of turning a picture into frames.
#[derive(Clone, Debug, PartialEq)]
enum FrameMethod {
    /// Tiles of one size: Idefics3 and SmolVLM.
    Tiles(Tiles),
    /// Quarters and the whole, each near its own size: Idefics2.
    Quarters(Quarters),
    /// Whole picture near its own size: Qwen's models, Pixtral and Mistral 3.
    Dynamic(DynamicResolution),
    /// Square of one size: Gemma 3, LLaVA 1.5, CLIP and SigLIP.
    Square(Square),
    /// Canvas of square tiles: Llama 3.2 Vision.
    Canvas(Canvas),
    /// Square, and the whole on a canvas of squares: LLaVA-NeXT.
    Grids(Grids),
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
        let kind = ProcessorKind::of(&class);
        let read = ProcessorSettings { config };
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
        let [mean, deviation] = kind.default_colors();
        let (mean, deviation) = match read.truth("do_normalize", true)? {
            true => (read.colors("image_mean", mean)?, read.colors("image_std", deviation)?),
            false => ([0.0; 3], [1.0; 3]),
        };
        if deviation.contains(&0.0) {
            return Err(ProcessorError::new("image_std", "0 cannot be divided by"));
        }
        let method = match kind {
            ProcessorKind::Tiles => FrameMethod::Tiles(Tiles {
                longest: match read.truth("do_resize", true)? {
                    true => Some(read.longest_edge("size", 4 * 364)?),
                    false => None,
                },
                side: read.longest_edge("max_image_size", 364)?,
                splits: read.truth("do_image_splitting", true)?,
            }),
            ProcessorKind::Quarters => FrameMethod::Quarters(read.quarters()?),
            ProcessorKind::Qwen => FrameMethod::Dynamic(read.dynamic()?),
            ProcessorKind::Pixtral => FrameMethod::Dynamic(read.pixtral()?),
            ProcessorKind::Gemma3 => {
                FrameMethod::Square(Square { side: read.square("size", 224)?, padded: None, cropped: false })
            }
            ProcessorKind::Siglip => FrameMethod::Square(read.resized()?),
            ProcessorKind::Clip | ProcessorKind::Llava => {
                FrameMethod::Square(read.cropped(kind == ProcessorKind::Llava, mean)?)
            }
            ProcessorKind::LlavaNext => FrameMethod::Grids(read.grids(mean)?),
            ProcessorKind::Mllama => FrameMethod::Canvas(read.canvas()?),
        };
        let filter = read.filter("resample", kind.default_filter())?;
        Ok(Processor { scale: PixelScale::new(factor, mean, deviation), filter, method })
    }

    /// Sets the number of patches joined along each side into one row, for models whose image processor does
    /// not state it. Frames then have a whole number of such squares.
    #[must_use]
    pub fn joining(mut self, joined: u32) -> Self {
        if let FrameMethod::Dynamic(DynamicResolution { joined: own, rule: SizeRule::Longest(_), .. }) =
            &mut self.method
        {
            *own = joined;
        }
        self
    }

    /// Preprocesses a picture.
    ///
    /// # Errors
    /// [`PictureError::Shape`]. [`PictureError::Bounds`] and [`PictureError::NoBounds`] for invalid bounds of
    /// the request.
    pub fn prepare(
        &self,
        picture: Picture,
        options: PictureOptions,
    ) -> Result<PreparedPicture, PictureError> {
        self.prepare_within(picture, options, PixelLimits::default())
    }

    /// Preprocesses as [`Processor::prepare`] does, within `limits`. If the processor bounds the number of
    /// pixels, the picture is scaled to fit.
    ///
    /// # Errors
    /// As [`Processor::prepare`].
    pub fn prepare_within(
        &self,
        picture: Picture,
        options: PictureOptions,
        limits: PixelLimits,
    ) -> Result<PreparedPicture, PictureError> {
        match &self.method {
            FrameMethod::Dynamic(dynamic) => dynamic.prepare(picture, self.filter, options, limits),
            _ if options.bounds_pixels() => Err(PictureError::NoBounds),
            FrameMethod::Tiles(tiles) => tiles.prepare(picture, self.filter, options.detail),
            FrameMethod::Quarters(quarters) => quarters.prepare(picture, self.filter, options.detail),
            FrameMethod::Square(square) => square.prepare(picture, self.filter),
            FrameMethod::Grids(grids) => grids.prepare(picture, self.filter, options.detail),
            FrameMethod::Canvas(canvas) => canvas.prepare(picture, self.filter, options.detail),
        }
    }

    /// Maximum frames of a picture.
    pub fn frames_max(&self) -> usize {
        match &self.method {
            FrameMethod::Tiles(tiles) => tiles.frames_max(),
            FrameMethod::Quarters(quarters) => quarters.frames_max(),
            FrameMethod::Dynamic(_) | FrameMethod::Square(_) | FrameMethod::Canvas(_) => 1,
            FrameMethod::Grids(_) => 2,
        }
    }

    /// Side of every frame, or of its squares, in pixels. None if sizes vary.
    pub fn frame_side(&self) -> Option<u32> {
        match &self.method {
            FrameMethod::Tiles(tiles) => Some(tiles.side),
            FrameMethod::Square(square) => Some(square.side),
            FrameMethod::Grids(grids) => Some(grids.square.side),
            FrameMethod::Canvas(canvas) => Some(canvas.side),
            FrameMethod::Dynamic(_) | FrameMethod::Quarters(_) => None,
        }
    }

    /// Maximum squares of a frame.
    pub fn squares_max(&self) -> u32 {
        match &self.method {
            FrameMethod::Grids(grids) => grids.squares_max(),
            FrameMethod::Canvas(canvas) => canvas.tiles,
            _ => 1,
        }
    }

    /// Longest side of a frame in pixels, if the processor bounds sides.
    pub fn longest_side(&self) -> Option<u32> {
        match &self.method {
            FrameMethod::Quarters(quarters) => {
                quarters.sides.map(|[shortest, longest]| shortest.max(longest))
            }
            _ => None,
        }
    }

    /// Side of a patch in pixels, and number of patches joined along each side into one row, if the processor
    /// states them.
    pub fn patches(&self) -> Option<(u32, u32)> {
        match &self.method {
            FrameMethod::Dynamic(dynamic) => Some((dynamic.patch, dynamic.joined)),
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
enum ProcessorKind {
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

impl ProcessorKind {
    /// Kind of a known class.
    fn of(class: &str) -> ProcessorKind {
        match class {
            "Qwen2VL" => ProcessorKind::Qwen,
            "Gemma3" => ProcessorKind::Gemma3,
            "CLIP" => ProcessorKind::Clip,
            "Siglip" => ProcessorKind::Siglip,
            "Llava" => ProcessorKind::Llava,
            "LlavaNext" => ProcessorKind::LlavaNext,
            "Pixtral" => ProcessorKind::Pixtral,
            "Mllama" => ProcessorKind::Mllama,
            "Idefics2" => ProcessorKind::Quarters,
            _ => ProcessorKind::Tiles,
        }
    }

    /// Mean and deviation of the colours if the file states none.
    fn default_colors(self) -> [[f32; 3]; 2] {
        match self {
            ProcessorKind::Tiles
            | ProcessorKind::Quarters
            | ProcessorKind::Gemma3
            | ProcessorKind::Siglip
            | ProcessorKind::Mllama => [[0.5; 3]; 2],
            ProcessorKind::Qwen
            | ProcessorKind::Pixtral
            | ProcessorKind::Clip
            | ProcessorKind::Llava
            | ProcessorKind::LlavaNext => CLIP_COLORS,
        }
    }

    /// Resampling filter if the file states none.
    fn default_filter(self) -> Filter {
        match self {
            ProcessorKind::Tiles => Filter::Lanczos,
            ProcessorKind::Gemma3 | ProcessorKind::Quarters | ProcessorKind::Mllama => Filter::Bilinear,
            ProcessorKind::Qwen
            | ProcessorKind::Pixtral
            | ProcessorKind::Clip
            | ProcessorKind::Siglip
            | ProcessorKind::Llava
            | ProcessorKind::LlavaNext => Filter::Bicubic,
        }
    }

    /// Settings of the class.
    fn keys(self) -> &'static [&'static str] {
        match self {
            ProcessorKind::Quarters => &["resample", "rescale_factor", "size"],
            ProcessorKind::Tiles => &["max_image_size", "resample", "rescale_factor", "size"],
            ProcessorKind::Qwen => &[
                "max_pixels",
                "merge_size",
                "min_pixels",
                "patch_size",
                "resample",
                "rescale_factor",
                "size",
                "temporal_patch_size",
            ],
            ProcessorKind::Gemma3 => &[
                "do_pan_and_scan",
                "pan_and_scan_max_num_crops",
                "pan_and_scan_min_crop_size",
                "pan_and_scan_min_ratio_to_activate",
                "resample",
                "rescale_factor",
                "size",
            ],
            ProcessorKind::Siglip => &["resample", "rescale_factor", "size"],
            ProcessorKind::Clip | ProcessorKind::Llava => {
                &["crop_size", "do_center_crop", "resample", "rescale_factor", "size"]
            }
            ProcessorKind::LlavaNext => {
                &["crop_size", "do_center_crop", "image_grid_pinpoints", "resample", "rescale_factor", "size"]
            }
            ProcessorKind::Mllama => &["max_image_tiles", "resample", "rescale_factor", "size"],
            ProcessorKind::Pixtral => &["patch_size", "resample", "rescale_factor", "size"],
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
