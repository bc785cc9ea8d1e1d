//! Methods of strings that are taken for written in HTML: Jinja2's `Markup`, which `safe` and `escape` make. Operators are in
//! `operators.rs`, formats in `format.rs`.

use super::{
    eval::CallArgs,
    meter::{Outcome, fail},
    print,
    run::Run,
    strings,
    text::Text,
    value::Value,
};

/// `text.method(…)`. What a string in HTML makes is in HTML too, and what it takes is escaped, but for what it is searched or split by.
#[inline(never)]
pub(super) fn call(run: &mut Run<'_>, text: &Text, method: &str, args: CallArgs) -> Outcome<Value> {
    if !text.is_markup() {
        return strings::call(run, text, method, args);
    }
    let found = match method {
        "split" | "rsplit" | "splitlines" | "partition" | "rpartition" | "format" | "format_map" => {
            strings::call(run, text, method, args)?
        }
        "join" => {
            let [items] = args.bind(method, ["iterable"])?;
            let Some(items) = items else { return fail("join needs a list") };
            items.defined()?;
            let items = items.items(run.meter)?.into_iter();
            let items = items.map(|item| Ok(Value::Text(print::to_text(run.meter, &item)?.escaped(run.meter)?)));
            let items = Value::list(items.collect::<Outcome<_>>()?)?;
            strings::call(run, text, method, CallArgs::of(vec![items]))?
        }
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" => {
            strings::call(run, text, method, args)?
        }
        _ => {
            let meter = run.meter;
            let escaped = |value: Value| match value {
                Value::Text(text) => text.escaped(meter).map(Value::Text),
                other => Ok(other),
            };
            let positional = args.positional.into_iter().map(escaped).collect::<Outcome<_>>()?;
            let named = args.named.into_iter().map(|(name, value)| Ok((name, escaped(value)?)));
            let args = CallArgs { positional, named: named.collect::<Outcome<_>>()? };
            strings::call(run, text, method, args)?
        }
    };
    Ok(match found {
        Value::Text(made) => Value::Text(made.marked(true)),
        other => other,
    })
}
