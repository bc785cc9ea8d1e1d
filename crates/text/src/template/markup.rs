//! Methods of strings that count as HTML: Jinja2's `Markup`, made by `safe` and `escape`. Operators are in
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

/// `text.method(…)`. The result counts as HTML too, and inserted text is escaped.
#[inline(never)]
pub(super) fn call(run: &mut Run<'_>, text: &Text, method: &str, args: CallArgs) -> Outcome<Value> {
    if !text.is_markup() {
        return strings::call(run, text, method, args);
    }
    let found = match method {
        "join" => {
            let [items] = args.bind(method, ["iterable"])?;
            let Some(items) = items else { return fail("join needs a list") };
            items.defined()?;
            let items = items.items(run.meter)?.into_iter();
            let items =
                items.map(|item| Ok(Value::Text(print::to_text(run.meter, &item)?.escaped(run.meter)?)));
            let items = Value::list(items.collect::<Outcome<_>>()?)?;
            strings::call(run, text, method, CallArgs::of(vec![items]))?
        }
        "replace" | "center" | "ljust" | "rjust" => {
            let meter = run.meter;
            let escaped = |value: Value| match value {
                Value::Text(text) => text.escaped(meter).map(Value::Text),
                other => Ok(other),
            };
            // Inserted text: the second argument, or one by name.
            let mut args = args;
            let second = args.positional.iter_mut().skip(1).take(1);
            let named = args.named.iter_mut().filter(|(name, _)| matches!(&**name, "new" | "fillchar"));
            for value in second.chain(named.map(|(_, value)| value)) {
                *value = escaped(std::mem::replace(value, Value::None))?;
            }
            strings::call(run, text, method, args)?
        }
        _ => strings::call(run, text, method, args)?,
    };
    Ok(match found {
        Value::Text(made) => Value::Text(made.marked(true)),
        other => other,
    })
}
