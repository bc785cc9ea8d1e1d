//! llama.cpp's `samplers`: those that it names are on, the others off. They always run in one order, so one that would give
//! another distribution is refused.

use hanzo_engine_proto::v1;

use crate::{
    error::{ApiError, quote},
    fields::Field,
};

/// The names, in the order in which they run.
pub(crate) const ORDER: [&str; 9] =
    ["penalties", "dry", "top_n_sigma", "top_k", "temperature", "typ_p", "top_p", "min_p", "xtc"];

/// Turns off what the field does not name.
pub(super) fn apply(field: Field, sampling: &mut v1::Sampling) -> Result<(), ApiError> {
    let mut named: Vec<&str> = Vec::new();
    for one in field.list()? {
        let name = match &*one.text()? {
            // Of its own the first does nothing: a middle ends where the model ends it, or at a limit. The other has left llama.cpp.
            "infill" | "tfs_z" => continue,
            "typical_p" => "typ_p",
            name => *ORDER.iter().find(|known| **known == name).ok_or_else(|| {
                one.error(format!("{} is not among {} and infill", quote(name), ORDER.join(", ")))
            })?,
        };
        if named.contains(&name) {
            return Err(one.error(format!("{} comes twice", quote(name))));
        }
        named.push(name);
    }
    let place = |name: &str| ORDER.iter().position(|known| *known == name);
    // What looks at logits alone, or keeps the first of them, is the same before a temperature and after.
    let rest = || named.iter().filter(|name| **name != "temperature");
    let mut sorted = rest().is_sorted_by_key(|name| place(name));
    let heat = named.iter().position(|name| *name == "temperature").unwrap_or(0);
    let fixed = sampling.temperature.filter(|_| sampling.dynatemp_range.unwrap_or(0.0) == 0.0);
    for name in named.iter().take(heat) {
        sorted &= match (*name, fixed) {
            // Greedy, or no temperature at all.
            (_, Some(0.0 | 1.0)) | ("penalties" | "dry" | "top_n_sigma" | "top_k", _) => true,
            // A bound on p/max before a temperature is a power of it on what comes after.
            ("min_p", Some(heat)) => {
                sampling.min_p = sampling.min_p.map(|p| p.powf(heat.recip()));
                sampling.min_p.is_some()
            }
            _ => false,
        };
    }
    for name in named.iter().skip(heat + 1) {
        sorted &= !matches!(*name, "penalties" | "dry") || !named.contains(&"temperature");
    }
    if !sorted {
        let order = ORDER.join(", ");
        return Err(ApiError::unsupported(
            "samplers",
            format!("this order is not supported by this build; theirs is {order}"),
        ));
    }
    let off = |name: &str| !named.contains(&name);
    if off("penalties") {
        sampling.repetition_penalty = Some(1.0);
        (sampling.frequency_penalty, sampling.presence_penalty) = (Some(0.0), Some(0.0));
    }
    if off("temperature") {
        (sampling.temperature, sampling.dynatemp_range) = (Some(1.0), Some(0.0));
    }
    if off("top_k") {
        sampling.top_k = Some(0);
    }
    for (name, value, neutral) in [
        ("dry", &mut sampling.dry_multiplier, 0.0),
        ("top_n_sigma", &mut sampling.top_n_sigma, 0.0),
        ("typ_p", &mut sampling.typical_p, 1.0),
        ("top_p", &mut sampling.top_p, 1.0),
        ("min_p", &mut sampling.min_p, 0.0),
        ("xtc", &mut sampling.xtc_probability, 0.0),
    ] {
        if off(name) {
            *value = Some(neutral);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hanzo_engine_proto::v1::Sampling;
    use serde_json::{Value, json};

    use crate::{error::ApiError, fields::fields_of};

    fn read(body: Value) -> Result<Sampling, ApiError> {
        super::super::sampling::read(&mut fields_of(&body, false))
    }

    #[test]
    fn those_that_are_not_named_are_off() {
        let vim = json!({"top_k": 40, "top_p": 0.5, "min_p": 0.2, "samplers": ["top_k", "top_p", "infill"]});
        let on = read(vim).unwrap();
        assert_eq!(
            (on.top_k, on.top_p, on.min_p, on.temperature),
            (Some(40), Some(0.5), Some(0.0), Some(1.0))
        );
        assert_eq!((on.xtc_probability, on.repetition_penalty), (Some(0.0), Some(1.0)));
        let none = read(json!({"temperature": 0.0, "top_k": 5, "samplers": []})).unwrap();
        assert_eq!((none.top_k, none.temperature, none.typical_p), (Some(0), Some(1.0), Some(1.0)));
        // A temperature squares what a bound is compared with.
        let first = json!({"min_p": 0.25, "temperature": 0.5, "samplers": ["min_p", "temperature"]});
        assert_eq!(read(first).unwrap().min_p, Some(0.0625));
    }

    #[test]
    fn an_order_that_cannot_be_kept_is_refused() {
        for samplers in [
            json!(["top_p", "top_k"]),
            json!(["top_p", "temperature"]),
            json!(["temperature", "penalties"]),
            json!(["top_k", "top_k"]),
            json!(["mystery"]),
            json!("kp"),
            json!([7]),
        ] {
            let problem = read(json!({"temperature": 0.7, "samplers": samplers})).unwrap_err();
            assert!(format!("{problem:?}").contains("samplers"), "{problem:?}");
        }
        read(json!({"temperature": 1.0, "samplers": ["top_p", "temperature"]})).unwrap();
        read(json!({"temperature": 0.7, "samplers": ["temperature", "top_k"]})).unwrap();
    }
}
