//! Kinds of values in declarations: how a value is read, and its JSON Schema.

use std::{
    fmt::Display,
    marker::PhantomData,
    ops::{Bound, RangeBounds, RangeInclusive},
};

use serde_json::{Value, json};

use super::{Declaration, Schemas, notation};
use crate::{error::ApiError, fields::Field};

/// Reads and describes the value of a field.
pub(crate) trait Kind<'a> {
    type Value;

    /// Reads the value, which is not null.
    fn read(&self, field: Field<'a>) -> Result<Self::Value, ApiError>;

    /// Schema of the accepted values.
    fn schema(&self, schemas: &mut Schemas) -> Value;

    /// Value of an absent field, if it has one.
    fn absent(&self) -> Option<Self::Value> {
        None
    }
}

/// Type that can be read in one way only.
pub(crate) trait Natural<'a>: Sized {
    /// Value of an absent field, if it has one.
    const ABSENT: Option<Self> = None;

    /// Reads the value, which is not null.
    fn of(field: Field<'a>) -> Result<Self, ApiError>;

    /// Schema of the accepted values.
    fn schema(schemas: &mut Schemas) -> Value;
}

/// Kind of a type that is [`Natural`].
pub(crate) struct Plain<T>(PhantomData<T>);

impl<T> Plain<T> {
    pub(crate) fn new() -> Plain<T> {
        Plain(PhantomData)
    }
}

impl<'a, T: Natural<'a>> Kind<'a> for Plain<T> {
    type Value = T;

    fn read(&self, field: Field<'a>) -> Result<T, ApiError> {
        T::of(field)
    }

    fn schema(&self, schemas: &mut Schemas) -> Value {
        T::schema(schemas)
    }

    fn absent(&self) -> Option<T> {
        T::ABSENT
    }
}

impl Natural<'_> for bool {
    const ABSENT: Option<bool> = Some(false);

    fn of(field: Field<'_>) -> Result<bool, ApiError> {
        field.boolean()
    }

    fn schema(_: &mut Schemas) -> Value {
        json!({"type": "boolean"})
    }
}

impl Natural<'_> for String {
    fn of(field: Field<'_>) -> Result<String, ApiError> {
        field.string()
    }

    fn schema(_: &mut Schemas) -> Value {
        json!({"type": "string"})
    }
}

impl<'a, T: Declaration<'a>> Natural<'a> for T {
    fn of(field: Field<'a>) -> Result<T, ApiError> {
        let mut fields = field.object()?;
        let read = T::read(&mut fields)?;
        if !T::OPEN {
            fields.finish()?;
        }
        Ok(read)
    }

    fn schema(schemas: &mut Schemas) -> Value {
        schemas.add::<T>()
    }
}

/// Finite number in a range, as f32.
pub(crate) struct Number<R>(pub(crate) R);

impl<'a, R: RangeBounds<f64> + Clone> Kind<'a> for Number<R> {
    type Value = f32;

    fn read(&self, field: Field<'a>) -> Result<f32, ApiError> {
        field.number(self.0.clone())
    }

    fn schema(&self, _: &mut Schemas) -> Value {
        let mut schema = json!({"type": "number"});
        match self.0.start_bound() {
            Bound::Included(low) => schema["minimum"] = shown(low),
            Bound::Excluded(low) => schema["exclusiveMinimum"] = shown(low),
            Bound::Unbounded => {}
        }
        if let Bound::Included(high) = self.0.end_bound() {
            schema["maximum"] = shown(high);
        }
        schema
    }
}

/// Integer in a range. A float without a fraction counts as one.
pub(crate) struct Integer<T>(pub(crate) RangeInclusive<T>);

impl<'a, T> Kind<'a> for Integer<T>
where
    T: TryFrom<i64> + TryFrom<u64> + PartialOrd + Display + Copy,
{
    type Value = T;

    fn read(&self, field: Field<'a>) -> Result<T, ApiError> {
        field.integer(self.0.clone())
    }

    fn schema(&self, _: &mut Schemas) -> Value {
        json!({"type": "integer", "minimum": shown(self.0.start()), "maximum": shown(self.0.end())})
    }
}

/// Number in JSON: an integer wherever it is one.
fn shown(number: impl Display) -> Value {
    serde_json::from_str(&number.to_string()).unwrap_or_default()
}

/// Word out of several.
pub(crate) struct Words<const N: usize>(pub(crate) [&'static str; N]);

impl<'a, const N: usize> Kind<'a> for Words<N> {
    type Value = &'static str;

    fn read(&self, field: Field<'a>) -> Result<&'static str, ApiError> {
        field.word(&self.0)
    }

    fn schema(&self, _: &mut Schemas) -> Value {
        json!({"enum": self.0.as_slice()})
    }
}

/// Value in a given [`notation`] that stays raw: the code reads it later, because its meaning depends on other fields or
/// settings. It holds a part of the body.
pub(crate) struct Raw(pub(crate) &'static str);

impl<'a> Kind<'a> for Raw {
    type Value = Field<'a>;

    fn read(&self, field: Field<'a>) -> Result<Field<'a>, ApiError> {
        Ok(field)
    }

    fn schema(&self, _: &mut Schemas) -> Value {
        notation(self.0)
    }
}

/// Value in a given [`notation`] that a function reads.
pub(crate) struct Read<F>(pub(crate) &'static str, pub(crate) F);

impl<'a, T, F: Fn(Field<'a>) -> Result<T, ApiError>> Kind<'a> for Read<F> {
    type Value = T;

    fn read(&self, field: Field<'a>) -> Result<T, ApiError> {
        (self.1)(field)
    }

    fn schema(&self, _: &mut Schemas) -> Value {
        notation(self.0)
    }
}
