//! How many of a model's layers are on a card: what settings say, and who has which where devices share a model. The last
//! layers and the head are a card's, as llama.cpp has it: rows go up once, and what draws tokens is with what they are drawn of.
//! The others are other cards', or the processor's.

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

/// How several cards share a model that generates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SplitMode {
    /// Each has some of the layers, where no card has room for all.
    #[default]
    Layer,
    /// All compute each layer together, each some of its rows.
    Row,
}

/// Who has which layers of a model: a card the last, other devices those before; or cards parts of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// The other devices, each with how many: who has those before the card's first, and so on down to the model's first.
    pub(crate) others: Vec<(DeviceName, usize)>,
    /// Where that cuts the model, from its first layer on.
    pub(crate) cuts: Vec<Cut>,
    /// Of the model.
    pub(crate) layers: usize,
    /// Where cards have parts of each layer: the layers of the cache that are whole on all of them.
    pub(crate) rows: Option<Vec<usize>>,
}

impl Sharing {
    /// So many layers, from the card's on down, on other devices; the card has those that are left.
    ///
    /// # Errors
    /// Why the model cannot be cut there.
    pub(crate) fn of(files: &ModelFiles, others: &[(DeviceName, usize)]) -> Result<Sharing, LoadError> {
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
        Ok(Sharing { others: others.to_vec(), cuts, layers, rows: None })
    }

    /// Parts of each layer on the card and on these others.
    ///
    /// # Errors
    /// Why the model cannot be shared so.
    pub(crate) fn by_rows(
        files: &ModelFiles,
        others: impl Iterator<Item = DeviceName>,
    ) -> Result<Sharing, LoadError> {
        let layers = files.spec.layers.len();
        let whole = files.spec.undivided_caches().map_err(|reason| LoadError::Unsupported {
            file: files.info.name.clone(),
            key: "split_mode".to_owned(),
            value: "row".to_owned(),
            reason,
        })?;
        let others = others.map(|name| (name, layers)).collect();
        Ok(Sharing { others, cuts: Vec::new(), layers, rows: Some(whole) })
    }

    /// Layers on the card.
    pub(crate) fn on_card(&self) -> usize {
        self.layers - self.cuts.last().map_or(0, |cut| cut.layers)
    }

    /// Whether the other devices have anything.
    pub(crate) fn is_some(&self) -> bool {
        self.cuts.iter().any(|cut| cut.layers > 0 || cut.inputs)
    }
}

impl fmt::Display for Sharing {
    /// `20 of 28 layers`, or `rows of 28 layers`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rows {
            None => write!(f, "{} of {} layers", self.on_card(), self.layers),
            Some(_) => write!(f, "rows of {} layers", self.layers),
        }
    }
}

/// A model that devices share, as it is planned.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) sharing: Sharing,
    /// What says what it takes of each.
    pub(crate) planner: Arc<dyn Device>,
    /// Which of the places are the other devices', in that order: cards in the order in which they are tried, then the processor,
    /// so that nobody reserves of them the other way round.
    pub(crate) beside: Vec<usize>,
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
