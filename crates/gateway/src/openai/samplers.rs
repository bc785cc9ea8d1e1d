//! llama.cpp's `samplers`: the named samplers are on, the others off. The engine runs them in a fixed order, so
//! an order that would give another distribution is refused.

use hanzo_engine_proto::v1;

use crate::{
    error::{ApiError, quote},
    fields::Field,
};

/// Names of the samplers, in the order in which they run.
pub(crate) const ORDER: [&str; 9] =
    ["penalties", "dry", "top_n_sigma", "top_k", "temperature", "typ_p", "top_p", "min_p", "xtc"];

/// Letters of the samplers in the notation as one text.
const LETTERS: [(char, &str); 10] = [
    ('e', "penalties"),
    ('d', "dry"),
    ('s', "top_n_sigma"),
    ('k', "top_k"),
    ('t', "temperature"),
    ('y', "typ_p"),
    ('p', "top_p"),
    ('m', "min_p"),
    ('x', "xtc"),
    ('i', "infill"),
];
/// Other orders that are possible.
const ORDERS: &str = "top_n_sigma and top_k may also come after the temperature, and the temperature after typ_p, top_p, min_p and xtc where it \
                      is 1, where those that come before it change nothing (1, 1, 0 and 0), or where of them min_p alone does, the temperature is \
                      given and dynatemp_range is 0; at a temperature of 0 it may come after top_p and min_p";

/// Sampler of a name in any of llama.cpp's spellings. None: it is known and has no effect here.
fn meant(name: &str) -> Result<Option<&'static str>, ()> {
    let bare = |name: &str| name.to_lowercase().replace(['_', '-'], "");
    let name = match &*bare(name) {
        // `infill` has no effect, because the model or a limit ends the completion. `tfs_z` has been removed
        // from llama.cpp.
        "infill" | "tfsz" => return Ok(None),
        "typicalp" | "typ" => "typp".to_owned(),
        "nucleus" => "topp".to_owned(),
        "temp" => "temperature".to_owned(),
        name => name.to_owned(),
    };
    ORDER.iter().find(|known| bare(known) == name).map(|known| Some(*known)).ok_or(())
}

/// Samplers named in the field, in its order.
pub(super) fn named(field: Field<'_>) -> Result<Vec<&'static str>, ApiError> {
    let mut named = Vec::new();
    let mut add = |one: &Field, said: &str, name: Result<Option<&'static str>, ()>, known: String| {
        let name = name.map_err(|()| one.error(format!("{} is not among {known}", quote(said))))?;
        if name.is_some_and(|name| named.contains(&name)) {
            return Err(one.error(format!("{} comes twice", quote(said))));
        }
        named.extend(name);
        Ok(())
    };
    if field.value().is_string() {
        for letter in field.text()?.chars() {
            let name = LETTERS.iter().find(|known| known.0 == letter).ok_or(());
            let known = || LETTERS.map(|(letter, name)| format!("{letter} ({name})")).join(", ");
            add(&field, &letter.to_string(), name.and_then(|(_, name)| meant(name)), known())?;
        }
        return Ok(named);
    }
    for one in field.list()? {
        let name = one.text()?;
        add(&one, &name, meant(&name), format!("{} and infill", ORDER.join(", ")))?;
    }
    Ok(named)
}

/// Whether the request's value makes a sampler a no-op. An unset value may be the model's own default, which
/// counts as on.
fn is_off(name: &str, sampling: &v1::Sampling) -> bool {
    match name {
        "penalties" => {
            sampling.repetition_penalty == Some(1.0)
                && sampling.frequency_penalty == Some(0.0)
                && sampling.presence_penalty == Some(0.0)
        }
        "dry" => sampling.dry_multiplier.unwrap_or(0.0) == 0.0,
        "top_n_sigma" => sampling.top_n_sigma.unwrap_or(0.0) == 0.0,
        "top_k" => sampling.top_k == Some(0),
        "temperature" => sampling.temperature == Some(1.0) && sampling.dynatemp_range.unwrap_or(0.0) == 0.0,
        "typ_p" => sampling.typical_p == Some(1.0),
        "top_p" => sampling.top_p == Some(1.0),
        "min_p" => sampling.min_p == Some(0.0),
        "xtc" => sampling.xtc_probability.unwrap_or(0.0) == 0.0,
        _ => false,
    }
}

/// Arranges the active samplers in an order that the engine supports, or refuses it.
fn order(on: &[&str], sampling: &mut v1::Sampling) -> Result<(), ApiError> {
    let refused = |first: &str, then: &str| {
        let order = ORDER.join(", ");
        let problem =
            format!("{first} before {then} is not supported by this build; the order is {order}; {ORDERS}");
        Err(ApiError::unsupported("samplers", problem))
    };
    let place = |name: &str| ORDER.iter().position(|known| **known == *name);
    let others: Vec<&str> = on.iter().copied().filter(|name| *name != "temperature").collect();
    if let Some(pair) = others.windows(2).find(|pair| place(pair[0]) > place(pair[1])) {
        return refused(pair[0], pair[1]);
    }
    let Some(at) = on.iter().position(|name| *name == "temperature") else { return Ok(()) };
    let fixed = sampling.temperature.filter(|_| sampling.dynatemp_range.unwrap_or(0.0) == 0.0);
    for name in &on[..at] {
        match (*name, fixed, sampling.min_p) {
            // Samplers that look at logits only, or keep the largest, give the same before and after the
            // temperature.
            ("penalties" | "dry" | "top_n_sigma" | "top_k", ..) => {}
            // These keep the most likely token.
            ("top_p" | "min_p", Some(0.0), _) => {}
            // Unset, it is off at llama.cpp, and at temperature 0 only the most likely token counts.
            ("typ_p", Some(0.0), _) if sampling.typical_p.is_none() => {}
            // A bound on p/max before a temperature equals a power of it after the temperature.
            ("min_p", Some(heat), Some(bound)) => sampling.min_p = Some(bound.powf(heat.recip())),
            _ => return refused(name, "temperature"),
        }
    }
    match on[at..].iter().find(|name| matches!(**name, "penalties" | "dry")) {
        Some(late) => refused("temperature", late),
        None => Ok(()),
    }
}

/// Turns off samplers that are not named.
pub(super) fn apply(named: &[&'static str], sampling: &mut v1::Sampling) -> Result<(), ApiError> {
    let on: Vec<&str> = named.iter().copied().filter(|name| !is_off(name, sampling)).collect();
    order(&on, sampling)?;
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

    use crate::{
        declare::Declaration as _, error::ApiError, fields::fields_of, openai::sampling::SamplingFields,
    };

    fn read(body: Value) -> Result<Sampling, ApiError> {
        SamplingFields::read(&mut fields_of(&body, false))?.settings()
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
        // A temperature of 0.5 squares the ratio that a bound is compared with.
        let first = json!({"min_p": 0.25, "temperature": 0.5, "samplers": ["min_p", "temperature"]});
        assert_eq!(read(first).unwrap().min_p, Some(0.0625));
    }

    #[test]
    fn they_are_named_as_llama_cpp_takes_them() {
        for samplers in
            [json!("kpt"), json!(["top-k", "nucleus", "temp"]), json!(["TOPK", "top_p", "temperature"])]
        {
            let on = read(
                json!({"top_k": 7, "top_p": 1.0, "temperature": 0.5, "min_p": 0.3, "samplers": samplers}),
            );
            let on = on.unwrap();
            assert_eq!((on.top_k, on.temperature, on.min_p), (Some(7), Some(0.5), Some(0.0)), "{samplers}");
        }
    }

    #[test]
    fn a_temperature_may_come_last_where_that_changes_nothing_or_can_be_said() {
        let theirs = json!([
            "penalties",
            "dry",
            "top_n_sigma",
            "top_k",
            "typ_p",
            "top_p",
            "min_p",
            "xtc",
            "temperature"
        ]);
        for (temperature, typical_p, top_p, xtc, min_p, expected) in [
            (1.0, 0.5, 0.9, 0.5, 0.25, Ok(0.25)),
            (0.5, 1.0, 1.0, 0.0, 0.25, Ok(0.0625)),
            (0.5, 1.0, 1.0, 0.0, 0.0, Ok(0.0)),
            (0.0, 1.0, 0.9, 0.0, 0.25, Ok(0.25)),
            (0.5, 1.0, 0.9, 0.0, 0.25, Err("top_p before temperature")),
            (0.5, 0.5, 1.0, 0.0, 0.25, Err("typ_p before temperature")),
            (0.5, 1.0, 1.0, 0.5, 0.25, Err("xtc before temperature")),
            // These may remove the most likely token.
            (0.0, 0.5, 1.0, 0.0, 0.0, Err("typ_p before temperature")),
            (0.0, 1.0, 1.0, 0.5, 0.0, Err("xtc before temperature")),
        ] {
            let read = read(json!({
                "temperature": temperature, "typical_p": typical_p, "top_p": top_p, "xtc_probability": xtc,
                "min_p": min_p, "samplers": theirs,
            }));
            match (&read, expected) {
                (Ok(sampling), Ok(bound)) => assert_eq!(sampling.min_p, Some(bound), "{temperature}"),
                (Err(error), Err(says)) => {
                    let said = error.message();
                    assert!(said.contains(says) && said.contains("the order is penalties, dry"), "{said}");
                    assert!(said.ends_with("top_p and min_p"), "cut off: {said}");
                }
                _ => panic!("{temperature} {typical_p} {top_p} {xtc}: {read:?}"),
            }
        }
        read(json!({"temperature": 0.0, "samplers": theirs})).unwrap();
        // The model's default may have any value.
        let open = read(json!({"temperature": 0.5, "samplers": ["top_p", "temperature"]})).unwrap_err();
        assert!(open.message().contains("top_p before temperature"), "{open:?}");
        let heat = read(json!({"min_p": 0.1, "samplers": ["min_p", "temperature"]})).unwrap_err();
        assert!(heat.message().contains("min_p before temperature"), "{heat:?}");
    }

    #[test]
    fn an_order_that_cannot_be_kept_is_refused() {
        for samplers in [
            json!(["top_p", "top_k"]),
            json!(["top_p", "temperature"]),
            json!(["temperature", "penalties"]),
            json!(["top_k", "top_k"]),
            json!(["mystery"]),
            json!("kz"),
            json!([7]),
        ] {
            let problem = read(json!({"temperature": 0.7, "samplers": samplers})).unwrap_err();
            assert!(format!("{problem:?}").contains("samplers"), "{problem:?}");
        }
        read(json!({"temperature": 1.0, "samplers": ["top_p", "temperature"]})).unwrap();
        read(json!({"temperature": 0.7, "samplers": ["temperature", "top_k"]})).unwrap();
    }
}
