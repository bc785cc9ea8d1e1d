//! JSON of a model's files, with a bound on the number of values. A value in memory takes many times its bytes in a
//! file (`[]` takes 2 bytes there), so a bound on file size alone does not bound memory. Unrequested keys are
//! skipped and take no memory. The parser bounds the nesting of kept values to 128 levels.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Number, Value};

/// Parses an object of at most `values_max` values, names included. With `keys`, only those keys of the outermost
/// level are kept and counted.
///
/// # Errors
/// The parser's, and one that names the bound.
pub fn object(
    bytes: &[u8],
    values_max: usize,
    keys: Option<&[&str]>,
) -> Result<Map<String, Value>, serde_json::Error> {
    let left = Cell::new(values_max);
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let object = Object { left: &left, values_max, keys }.deserialize(&mut parser)?;
    parser.end()?;
    Ok(object)
}

/// A value that holds at most `MAX` values.
#[derive(Clone, Debug)]
pub struct Small<const MAX: usize>(pub Value);

impl<'de, const MAX: usize> Deserialize<'de> for Small<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let left = Cell::new(MAX);
        Tree { left: &left, values_max: MAX }.deserialize(deserializer).map(Small)
    }
}

/// Reads a list of at most `MAX` items.
pub fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>, const MAX: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct List<T, const MAX: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                if list.len() == MAX {
                    return Err(too_many(MAX, "items"));
                }
                list.push(item);
            }
            Ok(list)
        }
    }
    deserializer.deserialize_seq(List::<T, MAX>(PhantomData))
}

/// Reads an object of at most `MAX` entries.
pub fn entries<'de, K, V, D, const MAX: usize>(deserializer: D) -> Result<HashMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Eq + Hash,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct Entries<K, V, const MAX: usize>(PhantomData<(K, V)>);
    impl<'de, K, V, const MAX: usize> Visitor<'de> for Entries<K, V, MAX>
    where
        K: Deserialize<'de> + Eq + Hash,
        V: Deserialize<'de>,
    {
        type Value = HashMap<K, V>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<HashMap<K, V>, A::Error> {
            let mut map = HashMap::new();
            while let Some((key, value)) = items.next_entry()? {
                if map.len() == MAX {
                    return Err(too_many(MAX, "entries"));
                }
                map.insert(key, value);
            }
            Ok(map)
        }
    }
    deserializer.deserialize_map(Entries::<K, V, MAX>(PhantomData))
}

/// Whether the JSON value at the start of the text holds at most `values_max` values, names included. Keeps
/// nothing.
///
/// # Errors
/// The parser's, and one that names the bound.
pub fn fits(bytes: &[u8], values_max: usize) -> Result<(), serde_json::Error> {
    let left = Cell::new(values_max);
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    ValueCounter { left: &left, values_max }.deserialize(&mut parser)
}

fn too_many<E: Error>(max: usize, of: &str) -> E {
    E::custom(format_args!("more than {max} {of}, which is the most that is read"))
}

fn spend<E: Error>(left: &Cell<usize>, values_max: usize) -> Result<(), E> {
    match left.get().checked_sub(1) {
        Some(rest) => {
            left.set(rest);
            Ok(())
        }
        None => Err(too_many(values_max, "values")),
    }
}

/// Object of which only the chosen outermost keys are kept.
struct Object<'a> {
    left: &'a Cell<usize>,
    values_max: usize,
    keys: Option<&'a [&'a str]>,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let Object { left, values_max, keys } = self;
        let mut object = Map::new();
        while let Some(key) = items.next_key::<String>()? {
            if keys.is_some_and(|keys| !keys.contains(&key.as_str())) {
                items.next_value::<IgnoredAny>()?;
                continue;
            }
            spend(left, values_max)?;
            object.insert(key, items.next_value_seed(Tree { left, values_max })?);
        }
        Ok(object)
    }
}

/// Any value, within the number of values left.
#[derive(Clone, Copy)]
struct Tree<'a> {
    left: &'a Cell<usize>,
    values_max: usize,
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        spend(self.left, self.values_max)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(truth.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, items: A) -> Result<Value, A::Error> {
        let object = Object { left: self.left, values_max: self.values_max, keys: None };
        object.visit_map(items).map(Value::Object)
    }
}

/// Counts a value's parts against the limit and discards the value.
#[derive(Clone, Copy)]
struct ValueCounter<'a> {
    left: &'a Cell<usize>,
    values_max: usize,
}

impl<'de> DeserializeSeed<'de> for ValueCounter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        spend(self.left, self.values_max)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueCounter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_key::<IgnoredAny>()?.is_some() {
            spend(self.left, self.values_max)?;
            items.next_value_seed(self)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_counted_before_they_are_made() {
        let text = br#"{"a": [1, -2, 0.5, "x", null, true], "b": {"c": {}}}"#;
        let whole: Map<String, Value> = serde_json::from_slice(text).unwrap();
        // Three names, three containers and six other values.
        assert_eq!(object(text, 12, None).unwrap(), whole);
        let error = object(text, 11, None).unwrap_err().to_string();
        assert!(error.contains("more than 11 values"), "{error}");
        assert!(fits(text, 13).is_ok() && fits(text, 12).is_err());
        assert_eq!(
            object(text, 3, Some(&["b"])).unwrap_err().to_string().split(',').next(),
            Some("more than 3 values")
        );
        assert_eq!(Value::Object(object(text, 4, Some(&["b"])).unwrap()), json!({"b": {"c": {}}}));
        assert!(serde_json::from_slice::<Small<2>>(b"[0, 1]").is_err());
        assert_eq!(serde_json::from_slice::<Small<3>>(b"[0, 1]").unwrap().0, json!([0, 1]));
    }

    #[test]
    fn what_is_no_object_or_goes_on_behind_it_is_refused() {
        for text in ["[]", "{} {}", "{", "1", ""] {
            assert!(object(text.as_bytes(), 100, None).is_err(), "{text}");
        }
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(object(deep.as_bytes(), 1 << 20, None).unwrap_err().to_string().contains("recursion"));
        // Skipped values are not parsed recursively.
        assert!(object(deep.as_bytes(), 1 << 20, Some(&[])).unwrap().is_empty());
    }
}
