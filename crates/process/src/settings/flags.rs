//! Flags of settings: one argument of the command line for each, and the layer of settings that the given ones make.

use std::{marker::PhantomData, path::PathBuf, str::FromStr as _};

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, ValueHint,
    builder::{PathBufValueParser, StringValueParser, TypedValueParser, ValueParser},
    value_parser,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{DeclaredSettings, LogFormat, parse_bytes};

/// Program that has flags for settings.
pub trait Program {
    /// Name of the program.
    const NAME: &'static str;
    /// Names of its flags, in the order of `--help`. Flags that are missing here come last.
    const ORDER: &'static [&'static str];
}

/// Flag of a program for a setting.
#[derive(Clone, Debug)]
pub struct Flag {
    program: &'static str,
    /// Description in `--help`.
    pub help: &'static str,
    pub(super) arg: Arg,
}

impl Flag {
    pub(super) fn new<P: Program>(
        name: &str,
        value: &str,
        help: &'static str,
        typed: fn(Arg) -> Arg,
    ) -> Flag {
        let value = if value.is_empty() { name.to_uppercase().replace('-', "_") } else { value.to_owned() };
        let (id, long) = (name.replace('-', "_"), name.replace('_', "-"));
        let arg = Arg::new(id).long(long).help(help).display_order(P::ORDER.len());
        let arg = typed(arg);
        let arg = if matches!(arg.get_action(), ArgAction::SetTrue) { arg } else { arg.value_name(value) };
        Flag { program: P::NAME, help, arg }
    }

    /// Value that the command line or the flag's variable gives. A switch named `no-…` turns its setting off.
    fn given(&self, matches: &ArgMatches) -> Option<Value> {
        let id = self.arg.get_id().as_str();
        match self.arg.get_action() {
            ArgAction::SetTrue => matches.get_flag(id).then(|| json!(!id.starts_with("no_"))),
            ArgAction::Append => matches.get_many(id).map(|values| Value::Array(values.cloned().collect())),
            _ => matches.get_one(id).cloned(),
        }
    }
}

/// Type of a setting that flags can set.
pub trait FlagType {
    /// The argument, with its action, and with a parser that makes the setting's value.
    fn typed(arg: Arg) -> Arg;
}

/// Parser of a setting's value, from a parser of its type.
pub fn parser<P: TypedValueParser>(of_type: P) -> ValueParser
where
    P::Value: Serialize,
{
    ValueParser::new(of_type.try_map(serde_json::to_value))
}

/// Argument that is any text.
pub fn text(arg: Arg) -> Arg {
    arg.value_parser(parser(StringValueParser::new()))
}

/// Argument that is a number of bytes.
pub fn bytes(arg: Arg) -> Arg {
    arg.value_parser(parser(parse_bytes))
}

/// Makes types of settings [`FlagType`](crate::settings::FlagType)s, by their parsers.
#[macro_export]
macro_rules! flag_types {
    ($($type:ty: $parser:expr),* $(,)?) => {
        $(impl $crate::settings::FlagType for $type {
            fn typed(arg: ::clap::Arg) -> ::clap::Arg {
                arg.value_parser($crate::settings::parser($parser))
            }
        })*
    };
}

flag_types!(
    LogFormat: value_parser!(LogFormat),
    u16: value_parser!(u16),
    u32: value_parser!(u32),
    u64: value_parser!(u64),
    usize: usize::from_str,
    String: StringValueParser::new(),
);

impl FlagType for f32 {
    fn typed(arg: Arg) -> Arg {
        // A number that is not finite becomes its name, because JSON has no such numbers.
        let value = |number: f32| if number.is_finite() { json!(number) } else { json!(number.to_string()) };
        arg.value_parser(ValueParser::new(move |text: &str| text.parse().map(value)))
    }
}

impl FlagType for PathBuf {
    fn typed(arg: Arg) -> Arg {
        arg.value_parser(parser(PathBufValueParser::new())).value_hint(ValueHint::AnyPath)
    }
}

impl FlagType for bool {
    fn typed(arg: Arg) -> Arg {
        arg.action(ArgAction::SetTrue)
    }
}

impl FlagType for Vec<String> {
    fn typed(arg: Arg) -> Arg {
        text(arg).action(ArgAction::Append)
    }
}

impl<T: FlagType> FlagType for Option<T> {
    fn typed(arg: Arg) -> Arg {
        T::typed(arg)
    }
}

/// Settings of `T` that are given by flags of the program `P`. Among other arguments it is the last, because it puts
/// all into the order of `--help`.
#[derive(Debug)]
pub struct FlagLayer<T, P> {
    /// Tree of the values that were given.
    pub values: Map<String, Value>,
    of: PhantomData<fn() -> (T, P)>,
}

fn flags<T: DeclaredSettings, P: Program>() -> impl Iterator<Item = (&'static str, Flag)> {
    let of_setting =
        |setting: super::SettingSpec| setting.flags.into_iter().map(move |flag| (setting.key, flag));
    T::settings().into_iter().flat_map(of_setting).filter(|(_, flag)| flag.program == P::NAME)
}

impl<T, P> FlagLayer<T, P> {
    /// Sets the value of a key.
    pub fn set(&mut self, key: &str, value: Value) {
        let (sections, name) = key.rsplit_once('.').map_or(("", key), |(sections, name)| (sections, name));
        let mut at = &mut self.values;
        for section in sections.split('.').filter(|section| !section.is_empty()) {
            let table = at.entry(section).or_insert_with(|| Value::Object(Map::new()));
            // Every section is a table, because all keys are declared.
            let Value::Object(table) = table else { return };
            at = table;
        }
        at.insert(name.to_owned(), value);
    }
}

impl<T: DeclaredSettings, P: Program> FromArgMatches for FlagLayer<T, P> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut layer = FlagLayer { values: Map::new(), of: PhantomData };
        layer.update_from_arg_matches(matches)?;
        Ok(layer)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for (key, flag) in flags::<T, P>() {
            if let Some(value) = flag.given(matches) {
                self.set(key, value);
            }
        }
        Ok(())
    }
}

impl<T: DeclaredSettings, P: Program> Args for FlagLayer<T, P> {
    fn augment_args(command: Command) -> Command {
        let place = |arg: &Arg| P::ORDER.iter().position(|name| arg.get_long() == Some(*name));
        command.args(flags::<T, P>().map(|(_, flag)| flag.arg)).mut_args(|arg| match place(&arg) {
            Some(place) => arg.display_order(place),
            None => arg,
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
