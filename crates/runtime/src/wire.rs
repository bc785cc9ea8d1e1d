//! Serialisation of kernel types for jobs and events that go to a worker process. The kernels crate does not know
//! serde.

/// Log probabilities of tokens, field by field.
pub(crate) mod logprobs {
    use hanzo_engine_ops::TokenLogprob;
    use serde::{Deserialize, Deserializer, Serializer};

    type Written = (u32, f32, Vec<(u32, f32)>);

    pub(crate) fn serialize<S: Serializer>(scores: &[TokenLogprob], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(scores.iter().map(|score| (score.token, score.logprob, &score.top)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<TokenLogprob>, D::Error> {
        let read = |(token, logprob, top)| TokenLogprob { token, logprob, top };
        Ok(Vec::<Written>::deserialize(from)?.into_iter().map(read).collect())
    }
}

/// Log probability of a token, field by field.
pub(crate) mod logprob {
    use hanzo_engine_ops::TokenLogprob;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(score: &TokenLogprob, to: S) -> Result<S::Ok, S::Error> {
        (score.token, score.logprob, &score.top).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<TokenLogprob, D::Error> {
        let (token, logprob, top) = Deserialize::deserialize(from)?;
        Ok(TokenLogprob { token, logprob, top })
    }
}

/// The type of a cache, by its name.
pub(crate) mod kv_type {
    use hanzo_engine_ops::KvType;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(kv_type: &KvType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(kv_type.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<KvType, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
