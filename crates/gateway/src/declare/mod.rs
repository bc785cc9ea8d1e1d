//! Declarations of requests. `fields!` turns one list of fields into a struct, its reader and its JSON Schema.
//!
//! ```text
//! fields! {
//!     /// Body of `POST /v1/completions`.
//!     pub(crate) struct CompletionRequest<'a> inert [&COMMON, &COMPLETION] {
//!         ..generation: GenerationFields<'a>,
//!         /// Text or tokens to continue.
//!         prompt: Field<'a> = Raw("string | string[1..]"),
//!         /// Text behind the gap.
//!         suffix?: String,
//!         /// Share of the likeliest tokens.
//!         top_p?: f32 = Number(0.0..=1.0),
//!     }
//! }
//! ```
//!
//! - `name?: T` may be absent, and is an `Option<T>`. `name: T` is required, except a `bool`: absent means false.
//! - The text behind `=` is a [`Kind`], which reads and describes the value. A type with one reading needs none.
//! - `..name: Group` includes the fields of another declaration. Groups stand first and are read first.
//!   `..name if "field": Group` reads them only if that field is given, and is an `Option<Group>`.
//! - `inert` names tables of fields that have no function here, with their accepted values: see `unsupported`.
//! - `open struct` ignores all other fields. Elsewhere the caller's [`Fields::finish`] refuses them.
//! - Doc comments are the descriptions in the schema.

mod kinds;
mod notation;

use serde_json::{Map, Value, json};

pub(crate) use self::{
    kinds::{Integer, Kind, Natural, Number, Plain, Raw, Read, Words},
    notation::notation,
};
use crate::{
    error::ApiError,
    fields::Fields,
    unsupported::{self, Known},
};

/// Struct that `fields!` has declared.
pub(crate) trait Declaration<'a>: Sized {
    /// Name of the schema.
    const NAME: &'static str;
    /// Lines of the doc comment.
    const ABOUT: &'static [&'static str];
    /// Whether other fields are ignored.
    const OPEN: bool;

    /// Reads the declared fields, and removes them from `fields`.
    fn read(fields: &mut Fields<'a>) -> Result<Self, ApiError>;

    /// Appends the schema of each declared field.
    fn describe(schemas: &mut Schemas, all: &mut Vec<FieldSchema>);
}

/// Schema of a declared field.
#[derive(Debug)]
pub(crate) struct FieldSchema {
    pub(crate) name: &'static str,
    pub(crate) required: bool,
    pub(crate) schema: Value,
}

impl FieldSchema {
    /// Schema of a field that has a kind, with the lines of its doc comment.
    pub(crate) fn of<'a>(
        name: &'static str,
        required: bool,
        kind: &impl Kind<'a>,
        about: &[&str],
        schemas: &mut Schemas,
    ) -> FieldSchema {
        let mut schema = kind.schema(schemas);
        schema["description"] = joined(about).into();
        FieldSchema { name, required: required && kind.absent().is_none(), schema }
    }
}

/// Text of a doc comment.
fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Schemas that others refer to, by name.
#[derive(Debug, Default)]
pub(crate) struct Schemas {
    pub(crate) named: Map<String, Value>,
}

impl Schemas {
    /// Adds the schema of a struct and of everything in it. Returns a reference to it.
    pub(crate) fn add<'a, T: Declaration<'a>>(&mut self) -> Value {
        if !self.named.contains_key(T::NAME) {
            // The placeholder ends the recursion of a struct that contains itself.
            self.named.insert(T::NAME.to_owned(), Value::Null);
            let schema = self.object::<T>();
            self.named.insert(T::NAME.to_owned(), schema);
        }
        json!({"$ref": format!("#/components/schemas/{}", T::NAME)})
    }

    /// Schemas of a struct's fields, including those of its groups.
    pub(crate) fn fields<'a, T: Declaration<'a>>(&mut self) -> Vec<FieldSchema> {
        let mut all = Vec::new();
        T::describe(self, &mut all);
        all
    }

    fn object<'a, T: Declaration<'a>>(&mut self) -> Value {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for field in self.fields::<T>() {
            required.extend(field.required.then_some(field.name));
            // A table's entry counts only for a field that nothing reads.
            properties.entry(field.name).or_insert(field.schema);
        }
        let mut object = json!({"type": "object", "properties": properties, "description": joined(T::ABOUT)});
        if !required.is_empty() {
            object["required"] = json!(required);
        }
        if !T::OPEN {
            object["additionalProperties"] = json!(false);
        }
        object
    }
}

/// Name of a field, without the mark of a raw identifier.
pub(crate) fn field_name(identifier: &'static str) -> &'static str {
    identifier.strip_prefix("r#").unwrap_or(identifier)
}

/// Reads a field that may be absent.
pub(crate) fn optional<'a, T, K: Kind<'a, Value = T>>(
    fields: &mut Fields<'a>,
    name: &str,
    kind: &K,
) -> Result<Option<T>, ApiError> {
    fields.take(name).map(|field| kind.read(field)).transpose()
}

/// Reads a field that is required, unless its kind has a value for an absent one.
pub(crate) fn required<'a, T, K: Kind<'a, Value = T>>(
    fields: &mut Fields<'a>,
    name: &str,
    kind: &K,
) -> Result<T, ApiError> {
    match kind.absent() {
        Some(absent) => Ok(optional(fields, name, kind)?.unwrap_or(absent)),
        None => kind.read(fields.require(name)?),
    }
}

/// Appends the fields of tables.
pub(crate) fn describe_inert(tables: &[&[Known]], all: &mut Vec<FieldSchema>) {
    let schemas = unsupported::schemas(tables);
    all.extend(schemas.map(|(name, schema)| FieldSchema { name, required: false, schema }));
}

/// Declares a request or a part of one: see the module.
macro_rules! fields {
    (@struct $open:literal [$($about:literal)*] [$($derive:ident)*] $vis:vis $name:ident $life:lifetime [$($generic:tt)*]
        $(inert [$($table:expr),*])? {
            $(..$group:ident $(if $when:literal)?: $of:ty,)*
            $($(#[doc = $doc:literal])* $(#[expect($($expect:tt)*)])? $field:ident $(?: $optional:ty)? $(: $given:ty)? $(= $kind:expr)?,)*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug $(, $derive)*)]
        $vis struct $name $($generic)* {
            $(pub(crate) $group: $crate::declare::fields!(@group $of $(, $when)?),)*
            $($(#[doc = $doc])* $(#[expect($($expect)*)])? pub(crate) $field: $(Option<$optional>)? $($given)?,)*
        }

        impl<$life> $crate::declare::Declaration<$life> for $name $($generic)* {
            const NAME: &'static str = stringify!($name);
            const ABOUT: &'static [&'static str] = &[$($about),*];
            const OPEN: bool = $open;

            #[allow(unused_variables, reason = "a struct may have no fields")]
            fn read(
                fields: &mut $crate::fields::Fields<$life>,
            ) -> Result<Self, $crate::error::ApiError> {
                let read = Self {
                    $($group: $crate::declare::fields!(@read fields $life $of $(, $when)?),)*
                    $($field: {
                        let kind = $crate::declare::fields!(@kind [$($optional)? $($given)?] $($kind)?);
                        let name = $crate::declare::field_name(stringify!($field));
                        $($crate::declare::optional::<$optional, _>(fields, name, &kind)?)?
                        $($crate::declare::required::<$given, _>(fields, name, &kind)?)?
                    },)*
                };
                $($crate::unsupported::refuse(fields, &[$($table),*])?;)?
                Ok(read)
            }

            #[allow(unused_variables, reason = "a struct may have no fields")]
            fn describe(
                schemas: &mut $crate::declare::Schemas,
                all: &mut Vec<$crate::declare::FieldSchema>,
            ) {
                $(<$of as $crate::declare::Declaration<$life>>::describe(schemas, all);)*
                $({
                    let kind = $crate::declare::fields!(@kind [$($optional)? $($given)?] $($kind)?);
                    let name = $crate::declare::field_name(stringify!($field));
                    let given: &[&str] = &[$(stringify!($given))?];
                    let about = &[$($doc),*];
                    all.push($crate::declare::FieldSchema::of(name, !given.is_empty(), &kind, about, schemas));
                })*
                $($crate::declare::describe_inert(&[$($table),*], all);)?
            }
        }
    };
    (@group $of:ty) => { $of };
    (@group $of:ty, $when:literal) => { Option<$of> };
    (@read $fields:ident $life:lifetime $of:ty) => {
        <$of as $crate::declare::Declaration<$life>>::read($fields)?
    };
    (@read $fields:ident $life:lifetime $of:ty, $when:literal) => {
        match $fields.gives($when) {
            true => Some(<$of as $crate::declare::Declaration<$life>>::read($fields)?),
            false => None,
        }
    };
    (@kind [$type:ty]) => { $crate::declare::Plain::<$type>::new() };
    (@kind [$type:ty] $kind:expr) => { $kind };
    (@lifetime $open:literal $about:tt $derive:tt $vis:vis $name:ident<$life:lifetime> $($rest:tt)*) => {
        $crate::declare::fields!(@struct $open $about $derive $vis $name $life [<$life>] $($rest)*);
    };
    (@lifetime $open:literal $about:tt $derive:tt $vis:vis $name:ident $($rest:tt)*) => {
        $crate::declare::fields!(@struct $open $about $derive $vis $name 'f [] $($rest)*);
    };
    ($(#[doc = $about:literal])* $(#[derive($($derive:ident),*)])? $vis:vis open struct $($rest:tt)*) => {
        $crate::declare::fields!(@lifetime true [$($about)*] [$($($derive)*)?] $vis $($rest)*);
    };
    ($(#[doc = $about:literal])* $(#[derive($($derive:ident),*)])? $vis:vis struct $($rest:tt)*) => {
        $crate::declare::fields!(@lifetime false [$($about)*] [$($($derive)*)?] $vis $($rest)*);
    };
}
pub(crate) use fields;
