//! String formats as regular expressions. They allow nothing that a validator would refuse: only days of the
//! calendar, seconds that every clock has, and names that are short enough.

use serde_json::{Map, Value, json};

use super::{join, wrong};
use crate::error::CompileError;

const DATE: &str = concat!(
    r"(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    // 29 February: years divisible by 4 and not by 100, or divisible by 400.
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)",
);
const TIME: &str =
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
const BYTE: &str = r"(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])";
const LABEL: &str = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?";
const GROUP: &str = r"[0-9a-fA-F]{1,4}";
const UUID: &str = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}";
const DURATION: &str = concat!(
    r"P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)",
    r"(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?",
    r"|T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))",
);

/// Regular expression of a format, if it can be enforced.
fn expression(format: &str) -> Option<String> {
    let letters = r"[a-zA-Z](?:[a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?";
    Some(match format {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "duration" => DURATION.to_owned(),
        "uuid" => UUID.to_owned(),
        "ipv4" => format!(r"(?:{BYTE}\.){{3}}{BYTE}"),
        "ipv6" => {
            // A double colon stands for at least one group of zeros.
            let compressed = (0..=7).map(|before| {
                let after = 7 - before;
                let left = if before == 0 {
                    String::new()
                } else {
                    format!("{GROUP}(?::{GROUP}){{{}}}", before - 1)
                };
                let most = after.max(1) - 1;
                let right =
                    if after == 0 { String::new() } else { format!("(?:{GROUP}(?::{GROUP}){{0,{most}}})?") };
                format!("{left}::{right}")
            });
            let whole = format!("(?:{GROUP}:){{7}}{GROUP}");
            std::iter::once(whole).chain(compressed).collect::<Vec<_>>().join("|")
        }
        "hostname" => format!(r"(?:{LABEL}\.){{0,4}}{letters}"),
        "email" => {
            let atom = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,30}";
            format!(r"{atom}(?:\.{atom})?@(?:{LABEL}\.){{1,4}}{letters}")
        }
        "uri" => {
            let part = r"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})";
            format!(
                r"[a-zA-Z][a-zA-Z0-9+.-]{{0,30}}://(?:{LABEL}\.){{0,4}}{letters}(?::[1-9][0-9]{{0,3}})?(?:/{part}*)*(?:\?(?:{part}|[/?])*)?(?:#(?:{part}|[/?])*)?"
            )
        }
        _ => return None,
    })
}

/// Replaces a format by its pattern.
pub(super) fn tighten(fields: &mut Map<String, Value>, place: &str) -> Result<(), CompileError> {
    let format = match fields.get("format") {
        None => return Ok(()),
        Some(Value::String(format)) => format.clone(),
        Some(_) => return Err(wrong(&join(place, "format"), "it must be a string")),
    };
    // A format constrains strings only: on a number, `int64` is an annotation.
    let may_be_string = match fields.get("type") {
        None => true,
        Some(Value::Array(types)) => types.iter().any(|name| name == "string"),
        Some(name) => name == "string",
    };
    if may_be_string {
        let Some(expression) = expression(&format) else {
            return Err(wrong(&join(place, "format"), &format!("the format {format:?} cannot be enforced")));
        };
        let pattern = Value::String(format!("^(?:{expression})$"));
        if fields.contains_key("pattern") {
            match fields.entry("allOf").or_insert_with(|| json!([])) {
                Value::Array(all) => all.push(json!({ "pattern": pattern })),
                _ => return Err(wrong(&join(place, "allOf"), "it must be an array of schemas")),
            }
        } else {
            fields.insert("pattern".to_owned(), pattern);
        }
    }
    fields.shift_remove("format");
    Ok(())
}
