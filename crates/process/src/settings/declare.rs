//! Declaration of settings: [`settings!`](crate::settings!) makes a structure of settings, with its defaults, the
//! facts of each setting, and the reload of those that can change.

use std::{marker::PhantomData, ops::RangeInclusive};

use serde_json::Value;

use super::flags::{Flag, FlagType, Program};
use super::programs::{EngineDaemon, EngineGateway, ModelCommand, Serve};

/// Help of a flag that is the same as the one declared before.
pub const SAME: &str = "";

/// A setting, with all that is declared of it.
#[derive(Clone, Debug)]
pub struct SettingSpec {
    /// Full key, such as `server.grpc_port`.
    pub key: &'static str,
    /// Documentation, as the reference has it.
    pub doc: &'static str,
    /// Whether a reload applies it.
    pub is_reloaded: bool,
    /// Whether it is a key, which is read verbatim from the environment and never shown.
    pub is_secret: bool,
    /// Environment variables beside the program's own for the key; the first one set is used.
    pub variables: &'static [&'static str],
    /// Source under `serve`.
    pub shared: Option<SharedSetting>,
    /// Bounds of its value.
    pub bounds: Option<Bounds>,
    /// Value in the shipped file, if there is no default.
    pub example: Option<Value>,
    /// Flags of the programs.
    pub flags: Vec<Flag>,
    pub(super) flag_name: &'static str,
}

/// Setting of the daemon that `serve` uses for the gateway too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedSetting {
    /// Key of the daemon's setting.
    pub key: &'static str,
    /// Whether a variable of the gateway's own goes before it.
    pub is_overridden: bool,
}

/// Bounds of a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Valid values; up to `u64::MAX` is no upper bound.
    pub range: RangeInclusive<u64>,
    /// Error text, instead of one made of the numbers.
    pub text: &'static str,
}

/// Structure of settings that [`settings!`](crate::settings!) declares, or that consists of such structures.
pub trait DeclaredSettings: Sized {
    /// Every setting, in order.
    fn settings() -> Vec<SettingSpec>;

    /// These settings, with the reloadable ones of `read`.
    fn reloaded(&self, read: &Self) -> Self;
}

/// Declaration of a setting of type `T`.
#[must_use]
pub struct Declaration<T> {
    setting: SettingSpec,
    of: PhantomData<T>,
}

impl<T> Declaration<T> {
    /// Setting without flags, which takes effect at the start.
    pub fn new(key: &'static str, doc: &'static str) -> Self {
        let setting = SettingSpec {
            key,
            doc: doc.trim(),
            is_reloaded: false,
            is_secret: false,
            variables: &[],
            shared: None,
            bounds: None,
            example: None,
            flags: Vec::new(),
            flag_name: key.rsplit('.').next().unwrap_or(key),
        };
        Self { setting, of: PhantomData }
    }

    /// Declaration without its type.
    pub fn setting(self) -> SettingSpec {
        self.setting
    }

    /// A reload applies it.
    pub fn reloaded(mut self) -> Self {
        self.setting.is_reloaded = true;
        self
    }

    /// Key that is read verbatim from the first of these variables that is set, and never shown.
    pub fn secret(mut self, variables: &'static [&'static str]) -> Self {
        self.setting.is_secret = true;
        self.variables(variables)
    }

    /// Environment variables beside the program's own.
    pub fn variables(mut self, variables: &'static [&'static str]) -> Self {
        self.setting.variables = variables;
        self
    }

    /// `serve` takes it from the daemon's setting `key`, unless the gateway has a variable of its own.
    pub fn shared(mut self, key: &'static str) -> Self {
        self.setting.shared = Some(SharedSetting { key, is_overridden: true });
        self
    }

    /// `serve` takes it from the daemon's setting `key` if that is set.
    pub fn same(mut self, key: &'static str) -> Self {
        self.setting.shared = Some(SharedSetting { key, is_overridden: false });
        self
    }

    /// Bounds of a number; up to `u64::MAX` is no upper bound.
    pub fn within(self, range: RangeInclusive<u64>) -> Self {
        self.bounded(range, "")
    }

    /// Bounds of a number, with the text of the error.
    pub fn bounded(mut self, range: RangeInclusive<u64>, text: &'static str) -> Self {
        self.setting.bounds = Some(Bounds { range, text });
        self
    }

    /// Value that the shipped file shows, because there is no default.
    pub fn example(mut self, value: impl Into<Value>) -> Self {
        self.setting.example = Some(value.into());
        self
    }

    /// Name of its flags, such as `max-context`, instead of the key's last part.
    pub fn named(mut self, flag_name: &'static str) -> Self {
        self.setting.flag_name = flag_name;
        self
    }

    /// Flag of program `P`, with a parser of its own. `value` is the name of its value in the help; empty: the
    /// flag's name in capitals.
    pub fn flag<P: Program>(
        mut self,
        value: &str,
        help: &'static str,
        typed: fn(clap::Arg) -> clap::Arg,
    ) -> Self {
        let help = if help == SAME { self.setting.flags.last().map_or("", |flag| flag.help) } else { help };
        self.setting.flags.push(Flag::new::<P>(self.setting.flag_name, value, help, typed));
        self
    }

    /// Changes the flags that are declared so far.
    pub fn with(mut self, change: fn(clap::Arg) -> clap::Arg) -> Self {
        for flag in &mut self.setting.flags {
            flag.arg = change(flag.arg.clone());
        }
        self
    }
}

impl<T: FlagType> Declaration<T> {
    /// Flag of `engined`; see [`Declaration::flag`].
    pub fn engined(self, value: &str, help: &'static str) -> Self {
        self.flag::<EngineDaemon>(value, help, T::typed)
    }

    /// Flag of `engine-gateway`; see [`Declaration::flag`].
    pub fn gateway(self, value: &str, help: &'static str) -> Self {
        self.flag::<EngineGateway>(value, help, T::typed)
    }

    /// Flag of `hanzo-engine serve`; see [`Declaration::flag`].
    pub fn serve(self, value: &str, help: &'static str) -> Self {
        self.flag::<Serve>(value, help, T::typed)
    }

    /// Flag of the commands that load a model; see [`Declaration::flag`].
    pub fn load(self, value: &str, help: &'static str) -> Self {
        self.flag::<ModelCommand>(value, help, T::typed)
    }
}

/// Value of the key among the values of all settings.
pub fn value<'a>(key: &str, all: &'a Value) -> Option<&'a Value> {
    key.split('.').try_fold(all, |at, name| at.get(name))
}

/// First setting whose value is out of its bounds: its key, the bounds and the value.
pub fn out_of_bounds(settings: &[SettingSpec], all: &Value) -> Option<(&'static str, Bounds, u64)> {
    settings.iter().find_map(|setting| {
        let (bounds, value) = (setting.bounds.as_ref()?, value(setting.key, all)?.as_u64()?);
        (!bounds.range.contains(&value)).then(|| (setting.key, bounds.clone(), value))
    })
}

/// Declares a structure of settings. A field is its documentation, `name: type = default`, and after `=>` its facts,
/// which are methods of [`Declaration`](crate::settings::Declaration). The text after the structure's name goes before
/// the keys.
#[macro_export]
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        $vis:vis struct $name:ident($section:literal) {
            $(
                $(#[doc = $doc:literal])*
                $(#[serde($($serde:tt)*)])?
                $field:ident: $type:ty = $default:expr
                $(=> $($fact:ident $(::<$program:ty>)? ($($detail:expr),*)).+)?;
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        $vis struct $name {
            $($(#[doc = $doc])* $(#[serde($($serde)*)])? $vis $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::settings::DeclaredSettings for $name {
            fn settings() -> Vec<$crate::settings::SettingSpec> {
                use $crate::settings::Declaration;
                vec![$(
                    Declaration::<$type>::new(concat!($section, stringify!($field)), concat!($($doc),*))
                        $($(.$fact $(::<$program>)? ($($detail),*))+)?
                        .setting(),
                )*]
            }

            fn reloaded(&self, read: &Self) -> Self {
                let settings = Self::settings();
                let is_taken = |key| settings.iter().any(|one| one.key == key && one.is_reloaded);
                let taken = |key| if is_taken(key) { read } else { self };
                Self { $($field: taken(concat!($section, stringify!($field))).$field.clone(),)* }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};
    use serde_json::json;

    use crate::settings::{DeclaredSettings as _, EngineDaemon, FlagLayer, SAME, Serve, out_of_bounds};

    settings! {
        /// Settings of a test.
        pub(crate) struct Sample("sample.") {
            /// Port to
            /// listen on.
            port: u16 = 7 => engined("", "Port to use").serve("PORT", SAME).with(|arg| arg.short('p'));
            /// Names.
            names: Vec<String> = Vec::new() => named("name").serve("", "Name; repeatable");
            /// Whether there is a page.
            page: bool = true => reloaded().named("no-page").serve("", "Leave the page out");
            /// Seconds.
            drain_s: u64 = 30 => reloaded().within(1..=60);
        }
    }

    #[test]
    fn one_list_makes_defaults_keys_reloads_and_bounds() {
        let settings = Sample::settings();
        let keys: Vec<_> = settings.iter().map(|setting| setting.key).collect();
        assert_eq!(keys, ["sample.port", "sample.names", "sample.page", "sample.drain_s"]);
        assert_eq!(settings[0].doc, "Port to listen on.");
        let read = Sample { port: 8, drain_s: 61, ..Sample::default() };
        assert_eq!(Sample::default().reloaded(&read), Sample { drain_s: 61, ..Sample::default() });
        let out = out_of_bounds(&settings, &json!({"sample": read})).map(|(key, _, value)| (key, value));
        assert_eq!(out, Some(("sample.drain_s", 61)));
        assert_eq!(out_of_bounds(&settings, &json!({"sample": Sample::default()})), None);
    }

    #[test]
    fn a_program_has_the_flags_that_are_declared_for_it() {
        let given = |words: &[&str]| {
            let command = FlagLayer::<Sample, Serve>::augment_args(Command::new("serve"));
            let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
            FlagLayer::<Sample, Serve>::from_arg_matches(&matches)
                .map(|layer| json!(layer.values))
                .map_err(|error| error.to_string())
        };
        assert_eq!(given(&["serve"]), Ok(json!({})));
        let words = ["serve", "-p", "0", "--no-page", "--name", "a", "--name", "b"];
        assert_eq!(given(&words), Ok(json!({"sample": {"port": 0, "names": ["a", "b"], "page": false}})));
        let refused = given(&["serve", "--port", "70000"]).unwrap_err();
        assert!(refused.contains("'--port <PORT>': 70000 is not in 0..=65535"), "{refused}");
        let mut command = FlagLayer::<Sample, EngineDaemon>::augment_args(Command::new("engined"));
        let help = command.render_help().to_string();
        assert!(help.contains("--port <PORT>  Port to use") && !help.contains("page"), "{help}");
    }
}
