//! Distribution of a model's layers over devices. As in llama.cpp, a GPU gets the last layers and the head. Rows
//! are then uploaded once, and sampling is on the device that has the logits. The other layers are on other GPUs or
//! the CPU.

use std::{fmt, str::FromStr};

use hanzo_engine_ops::PipelineCut;
use hanzo_engine_runtime::{LoadError, ModelFiles};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::device_name::DeviceName;

/// Number of layers of a generative model that run on GPUs; the CPU has the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many as fit.
    #[default]
    Auto,
    /// This number, or all if the model has fewer.
    Count(u32),
}

/// Count that means every layer.
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
        enum LayerSetting {
            Count(u32),
            Word(String),
        }
        match LayerSetting::deserialize(from)? {
            LayerSetting::Count(count) => Ok(GpuLayers::Count(count)),
            LayerSetting::Word(word) => word.parse().map_err(D::Error::custom),
        }
    }
}

/// Way in which several GPUs share a generative model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SplitMode {
    /// Each GPU has some of the layers, if no single GPU has room for all.
    #[default]
    Layer,
    /// All GPUs compute each layer together; each has some of its rows (tensor parallelism).
    Row,
}

/// Distribution of a model's layers: the last ones on a GPU and the earlier ones on other devices, or parts of each
/// layer on all GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerDistribution {
    /// Other devices with their layer counts, from the layers just before the GPU's first down to the model's
    /// first.
    pub(crate) others: Vec<(DeviceName, usize)>,
    /// Boundaries between the devices, in order of layers.
    pub(crate) cuts: Vec<PipelineCut>,
    /// Number of layers of the model.
    pub(crate) layers: usize,
    /// If GPUs have parts of each layer: the cache layers that are whole on all of them.
    pub(crate) rows: Option<Vec<usize>>,
}

impl LayerDistribution {
    /// Places layers on other devices, from those just before the GPU's down. The GPU gets the remaining ones.
    ///
    /// # Errors
    /// If the model cannot be cut there.
    pub(crate) fn of(
        files: &ModelFiles,
        others: &[(DeviceName, usize)],
    ) -> Result<LayerDistribution, LoadError> {
        let layers = files.spec.layers.len();
        let elsewhere = others.iter().map(|(_, count)| count).sum::<usize>().min(layers);
        let unsupported = |reason| LoadError::Unsupported {
            file: files.info.name.clone(),
            key: "gpu_layers".to_owned(),
            value: (layers - elsewhere).to_string(),
            reason,
        };
        let mut end = 0;
        let ends = others.iter().rev().map(|(_, count)| {
            end = (end + count).min(layers);
            end
        });
        let cuts = ends.map(|end| files.spec.cut(end)).collect::<Result<_, _>>().map_err(unsupported)?;
        Ok(LayerDistribution { others: others.to_vec(), cuts, layers, rows: None })
    }

    /// Splits each layer over the GPU and these others.
    ///
    /// # Errors
    /// If the model cannot be split by rows.
    pub(crate) fn by_rows(
        files: &ModelFiles,
        others: impl Iterator<Item = DeviceName>,
    ) -> Result<LayerDistribution, LoadError> {
        let layers = files.spec.layers.len();
        let whole = files.spec.undivided_caches().map_err(|reason| LoadError::Unsupported {
            file: files.info.name.clone(),
            key: "split_mode".to_owned(),
            value: "row".to_owned(),
            reason,
        })?;
        let others = others.map(|name| (name, layers)).collect();
        Ok(LayerDistribution { others, cuts: Vec::new(), layers, rows: Some(whole) })
    }

    /// Number of layers on the GPU.
    pub(crate) fn on_card(&self) -> usize {
        self.layers - self.cuts.last().map_or(0, |cut| cut.layers)
    }

    /// Whether other devices hold any layer or the input embedding.
    pub(crate) fn is_some(&self) -> bool {
        self.cuts.iter().any(|cut| cut.layers > 0 || cut.inputs)
    }
}

impl fmt::Display for LayerDistribution {
    /// `20 of 28 layers`, or `rows of 28 layers`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rows {
            None => write!(f, "{} of {} layers", self.on_card(), self.layers),
            Some(_) => write!(f, "rows of {} layers", self.layers),
        }
    }
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
