//! Reads a JSON body field by field, so that every error names the field, what it expected and what it got.
//!
//! A field is taken out when it is read; what is left at the end is unknown. `null` counts as absent.

use std::{
    fmt::Display,
    ops::{Bound, RangeBounds, RangeInclusive},
};

use serde_json::{Map, Value};

use crate::error::{ApiError, quote};

/// A JSON object whose fields have not all been read.
#[derive(Debug)]
pub(crate) struct Fields {
    path: String, // of the object: empty for the body
    map: Map<String, Value>,
    lenient: bool,
}

/// A value that is there and is not null, with its path in the body, such as `messages[2].content`.
#[derive(Debug)]
pub(crate) struct Field {
    path: String,
    value: Value,
    lenient: bool,
}

impl Fields {
    /// The body, which must be an object. `lenient`: unknown fields are no error, at any depth.
    pub(crate) fn of_body(body: Value, lenient: bool) -> Result<Fields, ApiError> {
        match body {
            Value::Object(map) => Ok(Fields { path: String::new(), map, lenient }),
            other => Err(ApiError::body(format!("the body must be a JSON object, got {}", describe(&other)))),
        }
    }

    /// Takes a field out.
    pub(crate) fn take(&mut self, name: &str) -> Option<Field> {
        match self.map.remove(name)? {
            Value::Null => None,
            value => Some(Field { path: self.path_of(name), value, lenient: self.lenient }),
        }
    }

    /// Takes out a field that must be there.
    pub(crate) fn require(&mut self, name: &str) -> Result<Field, ApiError> {
        self.take(name).ok_or_else(|| ApiError::field(&self.path_of(name), "required"))
    }

    /// A boolean that is false where it is absent.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        Ok(self.take(name).map(Field::boolean).transpose()?.unwrap_or(false))
    }

    /// Whether a field is there, null or not.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// The path of one of this object's fields.
    pub(crate) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The names of the fields that are left, of an object whose keys are data.
    pub(crate) fn names(&self) -> Vec<String> {
        self.map.keys().cloned().collect()
    }

    /// What is left, of an object that is passed on as it came.
    pub(crate) fn into_map(self) -> Map<String, Value> {
        self.map
    }

    /// The end of reading: a field that is left is an error, unless the reading is lenient.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        let unknown = self.map.iter().find(|(_, value)| !value.is_null());
        match unknown {
            Some((name, _)) if !self.lenient => {
                let short = quote(name);
                let path = self.path_of(short.trim_matches('"'));
                Err(ApiError::field(&path, "unknown field"))
            }
            _ => Ok(()),
        }
    }
}

impl Field {
    /// An error on this field.
    pub(crate) fn error(&self, problem: impl AsRef<str>) -> ApiError {
        ApiError::field(&self.path, problem)
    }

    /// The field's path in the body.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The value as it came.
    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    fn mismatch(&self, expected: &str) -> ApiError {
        self.error(format!("expected {expected}, got {}", describe(&self.value)))
    }

    /// `true` or `false`.
    pub(crate) fn boolean(self) -> Result<bool, ApiError> {
        self.value.as_bool().ok_or_else(|| self.mismatch("a boolean"))
    }

    /// A string.
    pub(crate) fn string(self) -> Result<String, ApiError> {
        match self.value {
            Value::String(text) => Ok(text),
            _ => Err(self.mismatch("a string")),
        }
    }

    /// One of a closed set of words.
    pub(crate) fn word(self, words: &[&'static str]) -> Result<&'static str, ApiError> {
        let text = self.value.as_str().ok_or_else(|| self.mismatch("a string"))?;
        words
            .iter()
            .find(|word| **word == text)
            .copied()
            .ok_or_else(|| self.error(format!("expected one of {}, got {}", words.join(", "), quote(text))))
    }

    /// A finite number in `range`, which also holds after rounding to f32.
    pub(crate) fn number(self, range: impl RangeBounds<f64>) -> Result<f32, ApiError> {
        let wide = self.value.as_f64().ok_or_else(|| self.mismatch("a number"))?;
        let narrow = wide as f32;
        if range.contains(&wide) && range.contains(&f64::from(narrow)) && narrow.is_finite() {
            return Ok(narrow);
        }
        let low = match range.start_bound() {
            Bound::Included(low) => format!("at least {low}"),
            Bound::Excluded(low) => format!("more than {low}"),
            Bound::Unbounded => "a finite 32-bit number".to_owned(),
        };
        let high = match range.end_bound() {
            Bound::Included(high) => format!(" and at most {high}"),
            Bound::Excluded(high) => format!(" and less than {high}"),
            Bound::Unbounded => String::new(),
        };
        Err(self.error(format!("must be {low}{high}, got {wide}")))
    }

    /// An integer in `range`.
    pub(crate) fn integer<T>(self, range: RangeInclusive<T>) -> Result<T, ApiError>
    where
        T: TryFrom<i64> + TryFrom<u64> + PartialOrd + Display + Copy,
    {
        let expected = || format!("an integer from {} to {}", range.start(), range.end());
        let Value::Number(number) = &self.value else {
            return Err(self.mismatch(&expected()));
        };
        let small = number.as_u64().and_then(|n| T::try_from(n).ok());
        small
            .or_else(|| number.as_i64().and_then(|n| T::try_from(n).ok()))
            .filter(|n| range.contains(n))
            .ok_or_else(|| self.error(format!("expected {}, got {number}", expected())))
    }

    /// An object.
    pub(crate) fn object(self) -> Result<Fields, ApiError> {
        match self.value {
            Value::Object(map) => Ok(Fields { path: self.path, map, lenient: self.lenient }),
            _ => Err(self.mismatch("an object")),
        }
    }

    /// The elements of an array, each with its own path.
    pub(crate) fn list(self) -> Result<Vec<Field>, ApiError> {
        match self.value {
            Value::Array(values) => Ok(values
                .into_iter()
                .enumerate()
                .map(|(i, value)| Field { path: format!("{}[{i}]", self.path), value, lenient: self.lenient })
                .collect()),
            _ => Err(self.mismatch("an array")),
        }
    }

    /// An array of token ids. Allocates nothing per element: a body holds millions.
    pub(crate) fn token_ids(self) -> Result<Vec<u32>, ApiError> {
        let Value::Array(values) = &self.value else {
            return Err(self.mismatch("an array of token ids"));
        };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids: Vec<u32> = values.iter().map_while(id).collect();
        match values.get(ids.len()) {
            None => Ok(ids),
            Some(value) => Err(ApiError::field(
                &format!("{}[{}]", self.path, ids.len()),
                format!("expected a token id (an integer from 0 to {}), got {}", u32::MAX, describe(value)),
            )),
        }
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use serde_json::{Value, json};

    use super::{Field, Fields};

    fn field(value: Value) -> Field {
        Field { path: "f".to_owned(), value, lenient: false }
    }

    fn message(error: super::ApiError) -> String {
        error.json()["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn numbers_are_finite_in_range_and_numbers() {
        assert_eq!(field(json!(2)).number(0.0..=2.0).unwrap(), 2.0);
        for (value, expected) in [
            (json!(2.1), "f: must be at least 0 and at most 2, got 2.1"),
            (json!("1"), "f: expected a number, got a string"),
            (json!(true), "f: expected a number, got a boolean"),
        ] {
            assert_eq!(message(field(value).number(0.0..=2.0).unwrap_err()), expected);
        }
        // 1e-60 is above zero as a double and zero as a float.
        assert!(field(json!(1e-60)).number((Bound::Excluded(0.0), Bound::Unbounded)).is_err());
        assert!(field(json!(1e60)).number((Bound::Excluded(0.0), Bound::Unbounded)).is_err());
    }

    #[test]
    fn integers_are_exact() {
        assert_eq!(field(json!(-5)).integer::<i32>(-9..=9).unwrap(), -5);
        assert_eq!(field(json!(u64::MAX)).integer::<u64>(0..=u64::MAX).unwrap(), u64::MAX);
        for value in [json!(1.5), json!(-1), json!(10), json!(1e30), json!("3"), json!([])] {
            assert!(field(value.clone()).integer::<u32>(0..=9).is_err(), "{value}");
        }
    }

    #[test]
    fn what_is_left_is_unknown_and_null_is_absent() {
        let mut fields =
            Fields::of_body(json!({"a": {"b": [1, {"c": 2}]}, "n": null, "gone": null}), false).unwrap();
        assert!(fields.take("n").is_none());
        let mut list = fields.take("a").unwrap().object().unwrap().take("b").unwrap().list().unwrap();
        let inner = list.pop().unwrap().object().unwrap();
        assert_eq!(message(inner.finish().unwrap_err()), "a.b[1].c: unknown field");
        fields.finish().unwrap();
        let fields = Fields::of_body(json!({"x": {"y": 1}}), true);
        fields.unwrap().take("x").unwrap().object().unwrap().finish().unwrap();
    }

    #[test]
    fn token_ids_name_the_first_bad_element() {
        assert_eq!(field(json!([0, u32::MAX])).token_ids().unwrap(), [0, u32::MAX]);
        let error = field(json!([1, 2, -3, "x"])).token_ids().unwrap_err();
        assert!(message(error).starts_with("f[2]: expected a token id"));
    }
}
