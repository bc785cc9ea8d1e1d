//! How many of a model's layers are on a card: what settings say, and who has which where two devices share a model. The last
//! layers and the head are the card's, as llama.cpp has it: rows go up once, and what draws tokens is with what they are drawn of.
//! The others are the processor's, or another card's.

use std::{fmt, str::FromStr, sync::Arc};

use hanzo_engine_kernels::Cut;
use hanzo_engine_runtime::{LoadError, ModelFiles};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{device::Device, places::DeviceName};

/// Layers of a model that generates that are on a card; the others are the processor's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many as fit.
    #[default]
    Auto,
    /// So many, or all where it has fewer.
    Count(u32),
}

/// Every layer.
const ALL: u32 = u32::MAX;

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            GpuLayers::Auto => f.write_str("auto"),
            GpuLayers::Count(ALL) => f.write_str("all"),
            GpuLayers::Count(count) => count.fmt(f),
        }
    }
}

impl FromStr for GpuLayers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(GpuLayers::Auto),
            "all" => Ok(GpuLayers::Count(ALL)),
            _ => text.parse().map(GpuLayers::Count).map_err(|_| {
                format!("{text:?} is no number of layers; there are auto, all, and numbers from 0 on")
            }),
        }
    }
}

impl Serialize for GpuLayers {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match *self {
            GpuLayers::Count(count) if count != ALL => to.serialize_u32(count),
            _ => to.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for GpuLayers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Said {
            Count(u32),
            Word(String),
        }
        match Said::deserialize(from)? {
            Said::Count(count) => Ok(GpuLayers::Count(count)),
            Said::Word(word) => word.parse().map_err(D::Error::custom),
        }
    }
}

/// Who has which layers of a model: another device the first, a card the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    pub(crate) cut: Cut,
    /// The other device.
    pub(crate) with: DeviceName,
    /// Of the model.
    pub(crate) layers: usize,
}

impl Sharing {
    /// So many layers on the card, fewer than there are, and the first on this device.
    ///
    /// # Errors
    /// Why the model cannot be cut there.
    pub(crate) fn of(files: &ModelFiles, on_card: usize, with: DeviceName) -> Result<Sharing, LoadError> {
        let layers = files.spec.layers.len();
        let unsupported = |reason| LoadError::Unsupported {
            file: files.info.name.clone(),
            key: "gpu_layers".to_owned(),
            value: on_card.to_string(),
            reason,
        };
        let cut = files.spec.cut(layers.saturating_sub(on_card)).map_err(unsupported)?;
        Ok(Sharing { cut, with, layers })
    }

    /// Layers on the card.
    pub(crate) fn on_card(&self) -> usize {
        self.layers - self.cut.layers
    }
}

impl fmt::Display for Sharing {
    /// `20 of 28 layers`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} layers", self.on_card(), self.layers)
    }
}

/// A model that two devices share, as it is planned.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) sharing: Sharing,
    /// What says what it takes of each.
    pub(crate) planner: Arc<dyn Device>,
    /// Which of the places is the other device's; it is behind the card's, so that nobody reserves of both the other way round.
    pub(crate) beside: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_counted_in_words_and_numbers() {
        for (text, layers) in [
            ("auto", GpuLayers::Auto),
            ("0", GpuLayers::Count(0)),
            ("20", GpuLayers::Count(20)),
            ("all", GpuLayers::Count(ALL)),
        ] {
            assert_eq!(text.parse(), Ok(layers));
            assert_eq!(layers.to_string(), text);
            let json = serde_json::to_value(layers).unwrap();
            assert_eq!(json.is_number(), text.parse::<u32>().is_ok());
            assert_eq!(serde_json::from_value::<GpuLayers>(json).unwrap(), layers);
        }
        for wrong in ["", "-1", "some", "1.5"] {
            let error = wrong.parse::<GpuLayers>().unwrap_err();
            assert!(error.contains("auto, all, and numbers"), "{error}");
        }
    }
}
