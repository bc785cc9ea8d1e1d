//! Reader of a picture processor's settings.

use serde_json::{Map, Value};

use super::SIDE_MAX;
use crate::canvas::Canvas;
use crate::error::ProcessorError;
use crate::quarters::Quarters;
use crate::resize::Filter;
use crate::resolution::{DynamicResolution, SizeRule};
use crate::squares::{Grids, Square};

/// Settings in a model's `preprocessor_config.json`.
pub(super) struct ProcessorSettings<'a> {
    pub config: &'a Map<String, Value>,
}

impl ProcessorSettings<'_> {
    fn set(&self, key: &str) -> Option<&Value> {
        self.config.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn truth(&self, key: &str, usual: bool) -> Result<bool, ProcessorError> {
        match self.set(key) {
            None => Ok(usual),
            Some(value) => {
                value.as_bool().ok_or_else(|| ProcessorError::new(key, "is neither true nor false"))
            }
        }
    }

    pub(super) fn number(&self, key: &str, usual: f64) -> Result<f64, ProcessorError> {
        let number = match self.set(key) {
            None => Some(usual),
            Some(value) => value.as_f64(),
        };
        let finite = number.filter(|number| number.is_finite());
        finite.ok_or_else(|| ProcessorError::new(key, "is no number"))
    }

    /// Reads one number for each colour.
    pub(super) fn colors(&self, key: &str, usual: [f32; 3]) -> Result<[f32; 3], ProcessorError> {
        let Some(value) = self.set(key) else { return Ok(usual) };
        let numbers =
            value.as_array().map(|list| list.iter().filter_map(Value::as_f64).collect::<Vec<f64>>());
        let three = numbers.and_then(|numbers| <[f64; 3]>::try_from(numbers).ok());
        let three = three.filter(|three| three.iter().all(|number| number.is_finite()));
        Ok(three.ok_or_else(|| ProcessorError::new(key, "is no list of three numbers"))?.map(|n| n as f32))
    }

    pub(super) fn longest_edge(&self, key: &str, usual: u32) -> Result<u32, ProcessorError> {
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
    pub(super) fn quarters(&self) -> Result<Quarters, ProcessorError> {
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
    pub(super) fn dynamic(&self) -> Result<DynamicResolution, ProcessorError> {
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
        Ok(DynamicResolution {
            patch,
            joined,
            rule: SizeRule::Pixels(least, most),
            resizes: self.truth("do_resize", true)?,
        })
    }

    /// Reads Pixtral's settings: a patch's side, and a picture's longest.
    pub(super) fn pixtral(&self) -> Result<DynamicResolution, ProcessorError> {
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
        Ok(DynamicResolution {
            patch: patch as u32,
            joined: 1,
            rule: SizeRule::Longest(self.longest_edge("size", 1024)?),
            resizes: self.truth("do_resize", true)?,
        })
    }

    /// Reads the side of a square given by height and width.
    pub(super) fn square(&self, key: &str, usual: u32) -> Result<u32, ProcessorError> {
        let Some(value) = self.set(key) else { return Ok(usual) };
        let side = |value: &Value| value.as_u64().filter(|side| (1..=SIDE_MAX).contains(side));
        let [height, width] = ["height", "width"].map(|key| value.get(key).unwrap_or(value));
        match (side(height), side(width)) {
            (Some(height), Some(width)) if height == width => Ok(height as u32),
            _ => Err(ProcessorError::new(key, format!("{value} is no square of 1 to {SIDE_MAX} pixels"))),
        }
    }

    /// Reads Llama 3.2 Vision's settings: tiles of one size.
    pub(super) fn canvas(&self) -> Result<Canvas, ProcessorError> {
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
    pub(super) fn resized(&self) -> Result<Square, ProcessorError> {
        if !self.truth("do_resize", true)? {
            return Err(ProcessorError::new("do_resize", "frames of one size are wanted"));
        }
        Ok(Square { side: self.square("size", 224)?, padded: None, cropped: false })
    }

    /// Reads CLIP's and LLaVA's settings: the shorter side resized to a square's, which is cropped from the
    /// centre.
    pub(super) fn cropped(&self, pads: bool, mean: [f32; 3]) -> Result<Square, ProcessorError> {
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
    pub(super) fn grids(&self, mean: [f32; 3]) -> Result<Grids, ProcessorError> {
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

    pub(super) fn filter(&self, key: &str, usual: Filter) -> Result<Filter, ProcessorError> {
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
