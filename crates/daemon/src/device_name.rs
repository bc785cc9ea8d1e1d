//! Names of devices in settings, and lists of them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Name of a device in settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceName {
    /// The CPU.
    Cpu,
    /// GPU with the driver's index.
    Cuda(usize),
}

/// Devices that models may be loaded on, in order of preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// Every GPU that works, then the CPU.
    #[default]
    Auto,
    /// These devices, in this order.
    These(Vec<DeviceName>),
}

impl Devices {
    /// Whether the device is in the list.
    pub(crate) fn names(&self, name: DeviceName) -> bool {
        match self {
            Devices::Auto => true,
            Devices::These(names) => names.contains(&name),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Cpu => f.write_str("cpu"),
            DeviceName::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Devices::Auto => f.write_str("auto"),
            Devices::These(names) => {
                let names: Vec<String> = names.iter().map(ToString::to_string).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("cuda:").unwrap_or(text).parse().ok()) {
            ("cpu", _) => Ok(DeviceName::Cpu),
            ("cuda", _) => Ok(DeviceName::Cuda(0)),
            (_, Some(ordinal)) => Ok(DeviceName::Cuda(ordinal)),
            _ => Err(format!("{text:?} is no device; there are cpu and cuda:0, cuda:1, …")),
        }
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "auto" {
            return Ok(Devices::Auto);
        }
        let mut names = Vec::new();
        for word in text.split(',').map(str::trim) {
            let name = word.parse::<DeviceName>()?;
            if names.contains(&name) {
                return Err(format!("{name} is named twice"));
            }
            names.push(name);
        }
        // As elsewhere, bare numbers are GPUs; the CPU takes what does not fit on them.
        if text.split(',').all(|word| word.trim().parse::<usize>().is_ok()) {
            names.push(DeviceName::Cpu);
        }
        Ok(Devices::These(names))
    }
}

impl Serialize for Devices {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Devices {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        /// Form of a setting: the environment delivers a single GPU's number as an integer.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum DeviceSetting {
            Ordinal(usize),
            Names(String),
        }
        let names = match DeviceSetting::deserialize(from)? {
            DeviceSetting::Ordinal(ordinal) => ordinal.to_string(),
            DeviceSetting::Names(names) => names,
        };
        names.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named() {
        let of = |text: &str| text.parse::<Devices>().map(|devices| devices.to_string());
        assert_eq!("auto".parse(), Ok(Devices::Auto));
        assert_eq!(of("cuda:1, cpu"), Ok("cuda:1,cpu".to_owned()));
        assert_eq!(of("cuda"), Ok("cuda:0".to_owned()));
        assert_eq!(of("0, 1"), Ok("cuda:0,cuda:1,cpu".to_owned()));
        assert_eq!(of("1,cuda:0"), Ok("cuda:1,cuda:0".to_owned()));
        assert_eq!(of("0,0"), Err("cuda:0 is named twice".to_owned()));
        for (json, said) in [("1", "cuda:1,cpu"), ("\"0,1\"", "cuda:0,cuda:1,cpu")] {
            assert_eq!(
                serde_json::from_str::<Devices>(json).map(|of| of.to_string()).ok().as_deref(),
                Some(said)
            );
        }
        assert_eq!(of("cuda:0,cuda"), Err("cuda:0 is named twice".to_owned()));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu,auto", "cpu,"] {
            let error = of(wrong).expect_err(wrong);
            assert!(error.contains("is no device; there are cpu and cuda:0"), "{error}");
        }
    }
}
