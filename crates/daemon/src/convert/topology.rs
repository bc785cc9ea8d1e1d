//! Topology: rules that quantise some of a model's matrices differently from the rest, from a file or from the
//! wire.

use std::{fs::File, io::Read as _, path::Path};

use figment::{
    Figment,
    providers::{Format as _, Toml, Yaml},
};
use hanzo_engine_process::settings;
use hanzo_engine_proto::v1;
use hanzo_engine_runtime::IsqRule;
use serde::Deserialize;

use crate::{Config, error::Error, limits::TOPOLOGY_FILE_BYTES_MAX};

/// Rules of a topology file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    rule: Vec<Rule>,
}

/// Rule of a topology file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    layers: Option<Word>,
    tensors: Option<String>,
    r#type: Word,
}

/// Number or text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number from 0 or a text")]
enum Word {
    Number(u32),
    Text(String),
}

/// Reads a file of rules: YAML if its extension says so, else TOML.
///
/// # Errors
/// `topology: FILE: …`, with the key.
pub(super) fn read(path: &Path) -> Result<Vec<v1::TopologyRule>, String> {
    let wrong = |reason: String| format!("topology: {}: {reason}", path.display());
    let mut text = String::new();
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let read = file.take(TOPOLOGY_FILE_BYTES_MAX + 1).read_to_string(&mut text);
    let bytes = read.map_err(|error| wrong(error.to_string()))?;
    if bytes as u64 > TOPOLOGY_FILE_BYTES_MAX {
        return Err(wrong(format!("it has more than {TOPOLOGY_FILE_BYTES_MAX} bytes")));
    }
    let is_yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    let figment = match is_yaml {
        true => Figment::from(Yaml::string(&text)),
        false => Figment::from(Toml::string(&text)),
    };
    let rules: Rules = figment.extract().map_err(|error| wrong(settings::reason::<Config>(&error)))?;
    let wire = |(at, rule)| wire(rule).map_err(|reason| wrong(format!("rule {}: {reason}", at + 1)));
    rules.rule.into_iter().enumerate().map(wire).collect()
}

fn wire(rule: Rule) -> Result<v1::TopologyRule, String> {
    let layers = match rule.layers {
        None => None,
        Some(Word::Number(layer)) => Some((layer, layer)),
        Some(Word::Text(text)) => {
            let (first, last) = text.split_once('-').unwrap_or((&text, &text));
            match (first.trim().parse(), last.trim().parse()) {
                (Ok(first), Ok(last)) => Some((first, last)),
                _ => return Err(format!("layers: {text:?} is not a number or FIRST-LAST")),
            }
        }
    };
    if rule.tensors.as_deref() == Some("") {
        return Err("tensors: must not be empty".to_owned());
    }
    Ok(v1::TopologyRule {
        layer_first: layers.map(|(first, _)| first),
        layer_last: layers.map(|(_, last)| last),
        tensors: rule.tensors.unwrap_or_default(),
        isq: match rule.r#type {
            Word::Number(bits) => bits.to_string(),
            Word::Text(name) => name,
        },
    })
}

/// Converts the rules of a request.
///
/// # Errors
/// [`Error::Field`] naming the first invalid rule.
pub(super) fn rules(wire: Vec<v1::TopologyRule>) -> Result<Vec<IsqRule>, Error> {
    let rule = |(at, wire): (usize, v1::TopologyRule)| {
        let wrong = |reason: String| Error::field("overrides.topology", format!("rule {}: {reason}", at + 1));
        let v1::TopologyRule { layer_first, layer_last, tensors, isq } = wire;
        Ok(IsqRule {
            layers: match (layer_first, layer_last) {
                (None, None) => None,
                (Some(first), Some(last)) => Some((first, last)),
                _ => return Err(wrong("layer_first and layer_last go together".to_owned())),
            },
            tensors: (!tensors.is_empty()).then_some(tensors),
            isq: match isq.as_str() {
                "stored" => None,
                name => Some(name.parse().map_err(wrong)?),
            },
        })
    };
    wire.into_iter().enumerate().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str) -> Result<Vec<IsqRule>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        read(&path).and_then(|wire| rules(wire).map_err(|error| error.to_string()))
    }

    #[test]
    fn toml_and_yaml_say_the_same() {
        let toml = "[[rule]]\nlayers = \"0-3\"\ntype = \"Q6_K\"\n\
                    [[rule]]\nlayers = 7\ntensors = \"*down*\"\ntype = 4\n\
                    [[rule]]\ntensors = \"output.weight\"\ntype = \"stored\"\n";
        let yaml = "rule:\n- {layers: 0-3, type: Q6_K}\n- {layers: 7, tensors: '*down*', type: 4}\n\
                    - {tensors: output.weight, type: stored}\n";
        let rules = of("a.toml", toml).unwrap();
        assert_eq!(rules, of("a.yaml", yaml).unwrap());
        let told: Vec<String> = rules.iter().map(IsqRule::to_string).collect();
        assert_eq!(
            told,
            ["layers 0-3 Q6_K", "layers 7-7 tensors *down* Q4_K", "tensors output.weight stored"]
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, says) in [
            ("[[rule]]\nlayer = 1\ntype = 4", "layer"),
            ("[[rule]]\nlayers = 1\ntype = 4\ndevice = \"cuda\"", "device"),
            ("[[rules]]\n", "rules"),
            ("[[rule]]\nlayers = 1", "type"),
            ("[[rule]]\nlayers = \"a-b\"\ntype = 4", "rule 1: layers: \"a-b\""),
            ("[[rule]]\nlayers = 1\ntype = \"Q9\"", "Q4_K"),
            ("[[rule]]\ntensors = \"\"\ntype = 4", "tensors"),
            ("x", "a.toml"),
        ] {
            let error = of("a.toml", text).unwrap_err();
            assert!(error.contains(says) && error.len() < 2000, "{says}: {error}");
        }
        let long = "#".repeat(TOPOLOGY_FILE_BYTES_MAX as usize + 1);
        assert!(of("a.toml", &long).unwrap_err().contains("more than"));
        // Aliases that expand exponentially.
        let mut bomb = "a0: &a0 [x]\n".to_owned();
        for level in 1..100 {
            let one = format!("*a{},", level - 1).repeat(20);
            bomb.push_str(&format!("a{level}: &a{level} [{one}]\n"));
        }
        assert!(of("a.yaml", &bomb).is_err());
    }
}
