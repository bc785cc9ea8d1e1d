//! Reader of JSON requests, field by field. Every error names the field, what was expected and what was found.
//!
//! A field is removed when it is read; the fields left at the end are unknown. `null` counts as absent. Of a
//! repeated name the last value counts. Fields are slices of the body's text, so nothing is built to hold them,
//! and a path is computed only for an error. A list of a million elements costs no memory until it is read.

use std::{
    borrow::Cow,
    fmt::Display,
    ops::{Bound, RangeBounds, RangeInclusive},
};

use crate::{
    error::{ApiError, quote},
    json::{Elements, Json, joined},
    limits::{OBJECT_FIELDS_MAX, QUOTE_CHARS_MAX},
};

/// Body that fields belong to, and whether unknown fields are allowed.
#[derive(Debug, Clone, Copy)]
struct FieldSource<'a> {
    body: Json<'a>,
    lenient: bool,
}

/// JSON object whose fields are being read.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a> {
    source: FieldSource<'a>,
    object: Json<'a>,
    members: Vec<(Cow<'a, str>, Json<'a>)>,
}

/// Value that is present and not null. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<'a> {
    source: FieldSource<'a>,
    value: Json<'a>,
}

impl<'a> Fields<'a> {
    /// Fields of the body, which must be an object. `lenient` allows unknown fields at any depth.
    pub(crate) fn of_body(body: Json<'a>, lenient: bool) -> Result<Fields<'a>, ApiError> {
        if !body.is_object() {
            return Err(ApiError::body(format!("the body must be a JSON object, got {}", describe(body))));
        }
        Field { source: FieldSource { body, lenient }, value: body }.object()
    }

    /// Removes and returns a field.
    pub(crate) fn take(&mut self, name: &str) -> Option<Field<'a>> {
        let is = |member: &(Cow<'a, str>, Json<'a>)| member.0 == name;
        let value = self.members.iter().rfind(|member| is(member))?.1;
        self.members.retain(|member| !is(member));
        (!value.is_null()).then_some(Field { source: self.source, value })
    }

    /// Removes and returns a required field.
    pub(crate) fn require(&mut self, name: &str) -> Result<Field<'a>, ApiError> {
        self.take(name).ok_or_else(|| ApiError::field(&self.path_of(name), "required"))
    }

    /// Removes a boolean field; absent means false.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        Ok(self.take(name).map(Field::boolean).transpose()?.unwrap_or(false))
    }

    /// Whether a field is present, even if null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.0 == name)
    }

    /// Whether a field is present and not null.
    pub(crate) fn gives(&self, name: &str) -> bool {
        self.members.iter().rfind(|member| member.0 == name).is_some_and(|member| !member.1.is_null())
    }

    /// Name of the first remaining field that is not null.
    pub(crate) fn first_given(&self) -> Option<&str> {
        self.members.iter().find(|(_, value)| !value.is_null()).map(|(name, _)| &**name)
    }

    /// Remaining fields that are not null, for objects whose keys are data.
    pub(crate) fn rest(self) -> impl Iterator<Item = Field<'a>> {
        let source = self.source;
        let given = self.members.into_iter().filter(|(_, value)| !value.is_null());
        given.map(move |(_, value)| Field { source, value })
    }

    /// Path of one of this object's fields. It is searched for in the whole body, so use it for errors only.
    pub(crate) fn path_of(&self, name: &str) -> String {
        joined(&self.object.path_in(self.source.body), name)
    }

    /// Names of the remaining fields, without repetitions. For objects whose keys are data.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::with_capacity(self.members.len());
        names.extend(self.members.iter().map(|member| member.0.clone().into_owned()));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whole object as received, including fields already read, to be passed on.
    pub(crate) fn object(&self) -> Json<'a> {
        self.object
    }

    /// Ends the reading. A remaining field is an error unless the reading is lenient.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        let unknown = self.members.iter().find(|(_, value)| !value.is_null());
        match unknown {
            Some((name, _)) if !self.source.lenient => {
                Err(ApiError::field(&self.path_of(name), "unknown field"))
            }
            _ => Ok(()),
        }
    }
}

impl<'a> Field<'a> {
    /// Error about this field.
    pub(crate) fn error(&self, problem: impl AsRef<str>) -> ApiError {
        ApiError::field(&self.path(), problem)
    }

    /// Path of the field in the body, such as `messages[2].content`. It is searched for in the whole body, so
    /// use it for errors only.
    pub(crate) fn path(&self) -> String {
        self.value.path_in(self.source.body)
    }

    /// Value as received.
    pub(crate) fn value(&self) -> Json<'a> {
        self.value
    }

    /// Error about the value's type.
    pub(crate) fn mismatch(&self, expected: &str) -> ApiError {
        self.error(format!("expected {expected}, got {}", describe(self.value)))
    }

    /// Reads a boolean.
    pub(crate) fn boolean(self) -> Result<bool, ApiError> {
        self.value.as_bool().ok_or_else(|| self.mismatch("a boolean"))
    }

    /// Reads a string.
    pub(crate) fn string(self) -> Result<String, ApiError> {
        Ok(self.text()?.into_owned())
    }

    /// Reads a string without copying it, unless it contains escapes.
    pub(crate) fn text(self) -> Result<Cow<'a, str>, ApiError> {
        self.value.as_str().ok_or_else(|| self.mismatch("a string"))
    }

    /// Reads one of several words.
    pub(crate) fn word(self, words: &[&'static str]) -> Result<&'static str, ApiError> {
        let text = self.text()?;
        words
            .iter()
            .find(|word| **word == text)
            .copied()
            .ok_or_else(|| self.error(format!("expected one of {}, got {}", words.join(", "), quote(&text))))
    }

    /// Reads a finite number in `range`. The value rounded to f32 must be in `range` too.
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
        Err(self.error(format!("must be {low}{high}, got {}", shown(self.value))))
    }

    /// Reads an integer in `range`. A float without a fraction counts as one, as in JSON.
    pub(crate) fn integer<T>(self, range: RangeInclusive<T>) -> Result<T, ApiError>
    where
        T: TryFrom<i64> + TryFrom<u64> + PartialOrd + Display + Copy,
    {
        let expected = || format!("an integer from {} to {}", range.start(), range.end());
        if !self.value.is_number() {
            return Err(self.mismatch(&expected()));
        }
        let small = self.value.as_u64().and_then(|n| T::try_from(n).ok());
        small
            .or_else(|| self.value.as_i64().or_else(|| whole(self.value)).and_then(|n| T::try_from(n).ok()))
            .filter(|n| range.contains(n))
            .ok_or_else(|| self.error(format!("expected {}, got {}", expected(), shown(self.value))))
    }

    /// Reads an object.
    pub(crate) fn object(self) -> Result<Fields<'a>, ApiError> {
        let members = self.value.members().ok_or_else(|| self.mismatch("an object"))?;
        let members: Vec<_> = members.take(OBJECT_FIELDS_MAX + 1).collect();
        if members.len() > OBJECT_FIELDS_MAX {
            let problem = format!("has more than {OBJECT_FIELDS_MAX} fields");
            let path = self.path();
            return Err(match path.as_str() {
                "" => ApiError::body(format!("the body {problem}")),
                path => ApiError::field(path, problem),
            });
        }
        Ok(Fields { source: self.source, object: self.value, members })
    }

    /// Reads an array of at most `max` elements; `what` names them in the error. A longer one is refused before
    /// anything is built of it, because a request must not take many times its size in memory.
    pub(crate) fn list_up_to(self, max: usize, what: &str) -> Result<ElementList<'a>, ApiError> {
        self.list()?.up_to(max, what, self)
    }

    /// Reads an array, element by element.
    pub(crate) fn list(self) -> Result<ElementList<'a>, ApiError> {
        self.as_list().ok_or_else(|| self.mismatch("an array"))
    }

    /// Elements, if the value is an array. Use this or [`Field::value`] for a value that may also have another
    /// type: building an error searches for its path, which would be wasted.
    pub(crate) fn as_list(self) -> Option<ElementList<'a>> {
        Some(ElementList { source: self.source, elements: self.value.elements()?, counted: 0 })
    }

    /// Reads an array of token ids. Allocates nothing per element, because a body may hold millions.
    pub(crate) fn token_ids(self) -> Result<Vec<u32>, ApiError> {
        let mut elements = self.value.elements().ok_or_else(|| self.mismatch("an array of token ids"))?;
        let mut ids = Vec::new();
        let id = |value: Json<'_>| match value.as_u64() {
            Some(id) => u32::try_from(id).ok(),
            None => u32::try_from(whole(value)?).ok(),
        };
        for value in elements.by_ref() {
            match id(value) {
                Some(id) => ids.push(id),
                None => {
                    let expected = format!("a token id (an integer from 0 to {})", u32::MAX);
                    return Err(Field { value, ..self }.mismatch(&expected));
                }
            }
        }
        Ok(ids)
    }
}

/// Elements of an array; an element may be null.
#[derive(Debug, Clone)]
pub(crate) struct ElementList<'a> {
    source: FieldSource<'a>,
    elements: Elements<'a>,
    counted: usize,
}

impl<'a> Iterator for ElementList<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        self.counted = self.counted.saturating_sub(1);
        Some(Field { source: self.source, value: self.elements.next()? })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.counted, None)
    }
}

impl ElementList<'_> {
    /// Checks that the list of `field` has at most `max` elements: see [`Field::list_up_to`].
    pub(crate) fn up_to(mut self, max: usize, what: &str, field: Field) -> Result<Self, ApiError> {
        self.counted = self.elements.clone().take(max + 1).count();
        match self.counted > max {
            true => Err(field.error(format!("has more than {max} {what}"))),
            false => Ok(self),
        }
    }
}

/// Integer value of a float such as 42.0, if it is exact.
fn whole(value: Json<'_>) -> Option<i64> {
    const EXACT: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    value.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= EXACT).map(|float| float as i64)
}

fn describe(value: Json<'_>) -> String {
    match () {
        () if value.is_null() => "null".to_owned(),
        () if value.is_boolean() => "a boolean".to_owned(),
        () if value.is_string() => "a string".to_owned(),
        () if value.is_array() => "an array".to_owned(),
        () if value.is_object() => "an object".to_owned(),
        () => format!("the number {}", shown(value)),
    }
}

/// Number as written, shortened: it may be a megabyte of digits.
fn shown(value: Json<'_>) -> String {
    let digits = value.as_number().unwrap_or_default();
    match digits.get(..QUOTE_CHARS_MAX) {
        Some(start) if digits.len() > QUOTE_CHARS_MAX => format!("{start}…"),
        _ => digits.to_owned(),
    }
}

/// Value of `read`, and the number of path searches that it made.
#[cfg(test)]
pub(crate) fn searches<T>(body: &serde_json::Value, read: impl FnOnce(Fields<'static>) -> T) -> (T, usize) {
    let fields = fields_of(body, false);
    let before = crate::json::SEARCHES.get();
    let value = read(fields);
    (value, crate::json::SEARCHES.get() - before)
}

/// Fields of JSON that is leaked, so that it outlives the test.
#[cfg(test)]
pub(crate) fn fields_of(body: &serde_json::Value, lenient: bool) -> Fields<'static> {
    let text: &'static str = Box::leak(body.to_string().into_boxed_str());
    let body = Json::parse(text).unwrap_or_else(|fault| panic!("{fault:?}"));
    Fields::of_body(body, lenient).unwrap_or_else(|error| panic!("{error:?}"))
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use serde_json::{Value, json};

    use super::{Field, OBJECT_FIELDS_MAX, fields_of};

    fn field(value: Value) -> Field<'static> {
        fields_of(&json!({"f": value}), false).take("f").unwrap()
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
        // 1e-60 is above zero as an f64 and zero as an f32.
        assert!(field(json!(1e-60)).number((Bound::Excluded(0.0), Bound::Unbounded)).is_err());
        assert!(field(json!(1e60)).number((Bound::Excluded(0.0), Bound::Unbounded)).is_err());
    }

    #[test]
    fn integers_are_exact() {
        assert_eq!(field(json!(-5)).integer::<i32>(-9..=9).unwrap(), -5);
        assert_eq!(field(json!(u64::MAX)).integer::<u64>(0..=u64::MAX).unwrap(), u64::MAX);
        let others = [json!(10.0), json!(-1.0), json!("3"), json!([])];
        for value in [json!(1.5), json!(-1), json!(10), json!(1e30)].into_iter().chain(others) {
            assert!(field(value.clone()).integer::<u32>(0..=9).is_err(), "{value}");
        }
        // A float without a fraction counts as an integer.
        assert_eq!(field(json!(1.0)).integer::<u32>(0..=9).unwrap(), 1);
        assert_eq!(field(json!(-9.0)).integer::<i32>(-9..=9).unwrap(), -9);
        assert_eq!(field(json!(1e3)).integer::<u64>(0..=9999).unwrap(), 1000);
        assert!(field(json!(1e17)).integer::<u64>(0..=u64::MAX).is_err(), "not exact");
    }

    #[test]
    fn what_is_left_is_unknown_and_null_is_absent() {
        let mut fields = fields_of(&json!({"a": {"b": [1, {"c": 2}]}, "n": null, "gone": null}), false);
        assert!(fields.take("n").is_none());
        let list = fields.take("a").unwrap().object().unwrap().take("b").unwrap().list().unwrap();
        let inner = list.last().unwrap().object().unwrap();
        assert_eq!(message(inner.finish().unwrap_err()), "a.b[1].c: unknown field");
        fields.finish().unwrap();
        fields_of(&json!({"x": {"y": 1}}), true).take("x").unwrap().object().unwrap().finish().unwrap();
    }

    #[test]
    fn of_a_name_that_comes_twice_the_last_counts() {
        let body = super::Json::parse(r#"{"a":1,"\u0061":2,"b":3}"#).unwrap();
        let mut fields = super::Fields::of_body(body, false).unwrap();
        assert_eq!(fields.take("a").unwrap().integer(0..=9).unwrap(), 2);
        assert!(!fields.has("a") && fields.has("b"));
        assert_eq!(message(fields.finish().unwrap_err()), "b: unknown field");
    }

    #[test]
    fn an_object_has_a_bounded_number_of_fields() {
        let members = |count: usize| (0..count).map(|i| (i.to_string(), json!(0))).collect::<Value>();
        assert!(field(members(OBJECT_FIELDS_MAX)).object().is_ok());
        let error = field(members(OBJECT_FIELDS_MAX + 1)).object().unwrap_err();
        assert_eq!(message(error), format!("f: has more than {OBJECT_FIELDS_MAX} fields"));
    }

    #[test]
    fn a_list_is_counted_before_it_is_read() {
        let list = field(json!([1, 2, 3])).list_up_to(3, "things").unwrap();
        assert_eq!(list.size_hint().0, 3);
        assert_eq!(list.map(|one| one.integer(0..=9).unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
        let error = field(json!([1, "x", 3])).list_up_to(2, "things").unwrap_err();
        assert_eq!(message(error), "f: has more than 2 things");
        assert!(field(json!({})).list_up_to(2, "things").is_err());
    }

    #[test]
    fn token_ids_name_the_first_bad_element() {
        assert_eq!(field(json!([0, u32::MAX, 7.0])).token_ids().unwrap(), [0, u32::MAX, 7]);
        let error = field(json!([1, 2, -3, "x"])).token_ids().unwrap_err();
        assert!(message(error).starts_with("f[2]: expected a token id"));
    }
}
