//! Quantisation settings of a model: `quantization_config` or `quantization` of `config.json`, or a separate file.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::corrupt;
use crate::error::LoadError;
use crate::load::huggingface::read_config;
use crate::spec::Config;
use crate::tensor::Tensor;

/// Family of quantisation formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Mlx,
    Gptq,
    AwqGemm,
    AwqGemv,
    AwqGemvFast,
    /// Numbers of GPTQ or AWQ in the layout of one device's kernel.
    Marlin,
    CompressedTensors,
    /// `fp8`, `fbgemm_fp8`, `mxfp4` and ModelOpt's formats: the tensors determine the rest.
    Floats,
    BitsAndBytes,
    Hqq,
    Quanto,
    TorchAo,
}

impl Method {
    /// Common name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Method::Mlx => "AFQ",
            Method::Gptq => "GPTQ",
            Method::AwqGemm | Method::AwqGemv | Method::AwqGemvFast => "AWQ",
            Method::Marlin => "Marlin",
            Method::CompressedTensors => "compressed-tensors",
            Method::Floats => "FP8",
            Method::BitsAndBytes => "bitsandbytes",
            Method::Hqq => "HQQ",
            Method::Quanto => "Quanto",
            Method::TorchAo => "TorchAO",
        }
    }
}

/// Settings of a quantised model.
#[derive(Debug)]
pub(crate) struct Settings {
    file: String,
    pub(super) method: Method,
    pub(super) bits: Option<u32>,
    /// Inputs that share a scale. None: all of a row.
    pub(super) group: Option<usize>,
    /// Whether zero points are stored less 1.
    pub(super) zeros_less_one: bool,
    /// Rows and columns that share a scale of 8-bit floats.
    pub(super) block: [usize; 2],
    /// Bits of compressed-tensors' groups of modules.
    pub(super) bits_of_groups: Vec<u32>,
    /// MLX's modules with their own bits and groups.
    modules: BTreeMap<String, (u32, usize)>,
}

/// Supported methods, as `quant_method` names them.
const METHODS: &str = "gptq, awq, auto-round, compressed-tensors, fp8, fbgemm_fp8, mxfp4, mxfp8, modelopt, bitsandbytes, hqq, quanto, \
                       torchao, and MLX's";

impl Settings {
    /// Removes the quantisation settings from a model's configuration and returns them; none if there are none.
    /// `directory` may have them in a separate file.
    ///
    /// # Errors
    /// `Unsupported` for an unsupported format, `Corrupt` for settings that make no sense.
    pub(crate) fn take(config: &mut Config, directory: &Path) -> Result<Option<Self>, LoadError> {
        if let Some(said) = config.object("quantization_config")? {
            let settings = Self::of(said, config.get("quantization").is_some())?;
            config.settings.remove("quantization_config");
            return Ok(Some(settings));
        }
        if let Some(said) = config.object("quantization")? {
            return Self::of(said, true).map(Some);
        }
        for (name, method) in [("quantize_config.json", "gptq"), ("quant_config.json", "awq")] {
            if let Some(mut said) = read_config(directory, name)? {
                said.set("quant_method", said.get("quant_method").cloned().unwrap_or_else(|| method.into()));
                return Self::of(said, false).map(Some);
            }
        }
        if let Some(said) = read_config(directory, "hf_quant_config.json")?
            && let Some(mut said) = said.object("quantization")?
        {
            said.set("quant_method", "modelopt".into());
            return Self::of(said, false).map(Some);
        }
        // The type of each module; the tensors show it too.
        if let Some(mut said) = read_config(directory, "quanto_qmap.json")? {
            said.settings.clear();
            said.set("quant_method", "quanto".into());
            return Self::of(said, false).map(Some);
        }
        Ok(None)
    }

    fn of(said: Config, is_mlx: bool) -> Result<Self, LoadError> {
        let method = said.string("quant_method")?.map(str::to_owned);
        let mut settings = Settings {
            file: said.file.clone(),
            method: Method::Mlx,
            bits: None,
            group: None,
            zeros_less_one: false,
            block: [128, 128],
            bits_of_groups: Vec::new(),
            modules: BTreeMap::new(),
        };
        match method.as_deref() {
            None if is_mlx || said.get("group_size").is_some() => settings.read_mlx(&said)?,
            None => return Err(said.missing("quant_method")),
            Some("gptq") => settings.read_gptq(&said)?,
            Some("awq") => settings.read_awq(&said)?,
            Some("auto-round" | "intel/auto-round") => {
                let packing = said.string("packing_format")?.unwrap_or("auto_round:auto_gptq");
                let floats = ["fp", "mx_fp", "nv_fp"];
                if said.string("data_type")?.is_some_and(|kind| floats.iter().any(|of| kind.starts_with(of)))
                {
                    settings.read_round_floats(&said)?
                } else if packing.contains("awq") {
                    settings.read_awq(&said)?
                } else {
                    settings.read_gptq(&said)?
                }
            }
            Some("compressed-tensors") => settings.read_compressed(&said)?,
            Some("fp8" | "fbgemm_fp8" | "mxfp4" | "mxfp8" | "modelopt" | "modelopt_fp4") => {
                settings.read_floats(&said)?
            }
            Some("bitsandbytes") => settings.method = Method::BitsAndBytes,
            Some("hqq") => settings.method = Method::Hqq,
            Some("quanto") => settings.method = Method::Quanto,
            Some("torchao") => settings.method = Method::TorchAo,
            Some(other) => {
                let reason = format!(
                    "read are {METHODS}; take the model in one of these, in its own precision, or as a GGUF file"
                );
                return Err(said.unsupported("quant_method", other, reason));
            }
        }
        Ok(settings)
    }

    /// Reads bits and the length of groups, with -1 for a whole row.
    fn read_groups(&mut self, said: &Config, [bits, group]: [&str; 2]) -> Result<(), LoadError> {
        self.bits = said.count(bits, 8)?.map(|bits| bits as u32);
        self.group = match said.get(group).and_then(Value::as_i64) {
            Some(-1) => None,
            _ => said.count(group, 1 << 24)?,
        };
        Ok(())
    }

    fn read_mlx(&mut self, said: &Config) -> Result<(), LoadError> {
        let of = |said: &Config| -> Result<(u32, usize), LoadError> {
            // Defaults of a mode.
            let usual = match said.string("mode")? {
                None | Some("affine") => (4, 64),
                Some("mxfp4") => (4, 32),
                Some("mxfp8") => (8, 32),
                Some("nvfp4") => (4, 16),
                Some(mode) => {
                    let reason = "of MLX's modes affine, mxfp4, mxfp8 and nvfp4 are read";
                    return Err(said.unsupported("mode", mode, reason));
                }
            };
            let bits = said.count("bits", 8)?.unwrap_or(usual.0) as u32;
            let group = said.count("group_size", 1 << 16)?.unwrap_or(usual.1);
            if !matches!(bits, 2..=6 | 8) {
                return Err(said.unsupported("bits", bits, "2, 3, 4, 5, 6 and 8 are read"));
            }
            Ok((bits, group))
        };
        let (bits, group) = of(said)?;
        (self.bits, self.group) = (Some(bits), Some(group));
        for (module, value) in &said.settings {
            if let Value::Object(own) = value {
                let own = Config::new(said.file.clone(), own.clone());
                self.modules.insert(module.clone(), of(&own)?);
            }
        }
        Ok(())
    }

    /// Bits and group of an MLX module.
    pub(super) fn mlx_of(&self, stem: &str, weight: &Tensor) -> Result<(u32, usize), LoadError> {
        match (self.modules.get(stem), self.bits, self.group) {
            (Some(&own), ..) => Ok(own),
            (None, Some(bits), Some(group)) => Ok((bits, group)),
            _ => Err(corrupt(weight, "config.json says no bits and no group".into())),
        }
    }

    fn read_gptq(&mut self, said: &Config) -> Result<(), LoadError> {
        self.method = Method::Gptq;
        self.read_groups(said, ["bits", "group_size"])?;
        match said.string("checkpoint_format")? {
            None | Some("gptq") => self.zeros_less_one = true,
            Some("gptq_v2") => {}
            Some("marlin") => self.method = Method::Marlin,
            Some(other) => {
                let reason = "gptq, gptq_v2 and marlin are read; the others are laid out for one device";
                return Err(said.unsupported("checkpoint_format", other, reason));
            }
        }
        if said.bool("is_marlin_format")? == Some(true) {
            self.method = Method::Marlin;
        }
        self.check_marlin(said)
    }

    /// Marlin's first kernel, whose layout this is, supports one number of bits.
    fn check_marlin(&self, said: &Config) -> Result<(), LoadError> {
        match self.bits {
            Some(bits) if self.method == Method::Marlin && bits != 4 => {
                Err(said.unsupported("bits", bits, "Marlin's layout is of 4 bits"))
            }
            _ => Ok(()),
        }
    }

    fn read_awq(&mut self, said: &Config) -> Result<(), LoadError> {
        let short = said.get("w_bit").is_some();
        self.read_groups(said, if short { ["w_bit", "q_group_size"] } else { ["bits", "group_size"] })?;
        if self.bits.is_some_and(|bits| bits != 4) {
            return Err(said.unsupported("bits", self.bits.unwrap_or(0), "AWQ is of 4 bits"));
        }
        let version = said.string("version")?.unwrap_or("gemm").to_lowercase();
        self.method = match version.as_str() {
            "gemm" | "exllama" | "ipex" => Method::AwqGemm,
            "gemv" => Method::AwqGemv,
            "gemv_fast" => Method::AwqGemvFast,
            "marlin" => Method::Marlin,
            _ => {
                return Err(said.unsupported(
                    "version",
                    version,
                    "gemm, gemv, gemv_fast and marlin are read",
                ));
            }
        };
        Ok(())
    }

    fn read_compressed(&mut self, said: &Config) -> Result<(), LoadError> {
        self.method = Method::CompressedTensors;
        let known = [
            "dense",
            "pack-quantized",
            "int-quantized",
            "naive-quantized",
            "float-quantized",
            "nvfp4-pack-quantized",
            "mxfp4-pack-quantized",
            "mxfp8-quantized",
            "mixed-precision",
        ];
        if let Some(format) = said.string("format")?.filter(|format| !known.contains(format)) {
            let reason = format!("{} are read", known.join(", "));
            return Err(said.unsupported("format", format, reason));
        }
        if let Some(sparsity) = said.object("sparsity_config")?
            && let Some(format) = sparsity.string("format")?.filter(|&format| format != "dense")
        {
            return Err(sparsity.unsupported(
                "sparsity_config.format",
                format,
                "sparse weights are not read",
            ));
        }
        if let Some(transform) = said.object("transform_config")?
            && transform.object("config_groups")?.is_some_and(|groups| !groups.settings.is_empty())
        {
            let reason = "activations would have to be rotated before they are multiplied";
            return Err(said.unsupported("transform_config", "config_groups", reason));
        }
        let Some(groups) = said.object("config_groups")? else { return Ok(()) };
        for name in groups.settings.keys() {
            let Some(group) = groups.object(name)? else { continue };
            let Some(weights) = group.object("weights")? else { continue };
            if let Some(bits) = weights.count("num_bits", 16)? {
                let bits = bits as u32;
                if matches!(bits, 2..=6 | 8) && !self.bits_of_groups.contains(&bits) {
                    self.bits_of_groups.push(bits);
                }
            }
            self.read_block(&weights, "block_structure")?;
        }
        Ok(())
    }

    fn read_floats(&mut self, said: &Config) -> Result<(), LoadError> {
        self.method = Method::Floats;
        self.read_block(said, "weight_block_size")?;
        let algorithms =
            ["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8", "NVFP4", "MXFP4", "MIXED_PRECISION"];
        match said.string("quant_algo")?.filter(|algorithm| !algorithms.contains(algorithm)) {
            None => Ok(()),
            Some(other) => Err(said.unsupported("quant_algo", other, "FP8, MXFP8, MXFP4 and NVFP4 are read")),
        }
    }

    /// Reads AutoRound's 8-bit floats, whose groups are blocks of rows and columns, or of a row alone. The tensors
    /// show the packing of 4-bit floats.
    fn read_round_floats(&mut self, said: &Config) -> Result<(), LoadError> {
        self.method = Method::Floats;
        if said.string("data_type")? == Some("nvfp4_v2") {
            return Err(said.unsupported("data_type", "nvfp4_v2", "fp, mx_fp and nv_fp are read"));
        }
        match said.get("group_size") {
            Some(Value::Array(_)) => self.read_block(said, "group_size"),
            _ => Ok(()),
        }
    }

    fn read_block(&mut self, said: &Config, key: &str) -> Result<(), LoadError> {
        let Some(value) = said.get(key) else { return Ok(()) };
        let sides: Option<Vec<usize>> = value.as_array().and_then(|sides| {
            sides
                .iter()
                .map(|side| side.as_u64().map(|side| side as usize).filter(|&side| side > 0))
                .collect()
        });
        match sides.as_deref() {
            Some(&[rows, cols]) => self.block = [rows, cols],
            _ => return Err(said.corrupt(key, "expected two whole numbers above 0")),
        }
        Ok(())
    }

    /// Error for a missing setting.
    pub(super) fn missing(&self, key: &str) -> LoadError {
        LoadError::Missing {
            file: self.file.clone(),
            what: format!("key {key}"),
            hint: " in the settings of quantisation".into(),
        }
    }
}
