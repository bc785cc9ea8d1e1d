//! Serialisation of settings that are written as names.

/// [`KvType`] as its name.
pub(super) mod kv_type {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::config::KvType;

    pub(crate) fn serialize<S: Serializer>(kv_type: &KvType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(kv_type.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<KvType, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// [`Speculation`] as its name.
pub(super) mod speculation {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::config::Speculation;

    pub(crate) fn serialize<S: Serializer>(speculation: &Speculation, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(speculation.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Speculation, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// [`WeightType`] as its name.
pub(super) mod weights {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::config::WeightType;

    pub(crate) fn serialize<S: Serializer>(weights: &WeightType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(weights.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<WeightType, D::Error> {
        let name = String::deserialize(from)?;
        WeightType::ALL.into_iter().find(|weights| weights.name() == name).ok_or_else(|| {
            D::Error::custom(format!("there are no weights of type {name:?}; there are stored and q8_0"))
        })
    }
}
