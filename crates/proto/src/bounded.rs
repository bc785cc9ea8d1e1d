//! Codec that checks a request before it is decoded. Two bytes of a message can encode an empty nested message,
//! which takes over a hundred bytes in memory. Therefore requests that would take many times their size in
//! memory are refused first.

use std::{
    any::type_name,
    collections::{BTreeMap, HashMap},
    marker::PhantomData,
    sync::LazyLock,
};

use prost::{Message, bytes::Buf as _};
use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};
use tonic::{
    Code, Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
    metadata::MetadataMap,
};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use crate::v1::FILE_DESCRIPTOR_SET;

/// Approximate bytes of overhead in memory for a string or a message.
const PART_BYTES: usize = 160;
/// Maximum bytes of a number in memory.
const NUMBER_BYTES: usize = 8;
/// Memory that a request may take, as a multiple of its size.
const TIMES_MAX: usize = 5;
/// Bytes that any request may take in addition.
const SPARE_BYTES: usize = 32 << 20;
/// Maximum nesting of messages. prost's own limit is 100.
const DEPTH_MAX: usize = 100;

/// Protobuf codec with bounded requests.
#[derive(Debug, Clone)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        BoundedCodec(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> BoundedDecoder<U> {
        BoundedDecoder(ProstCodec::<T, U>::raw_decoder(BufferSettings::default()))
    }
}

/// Decoder of [`BoundedCodec`].
#[derive(Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        check(type_name::<U>(), buffer.chunk())?;
        self.0.decode(buffer)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Refuses a request that would take far more memory than its size.
fn check(rust_type: &str, message: &[u8]) -> Result<(), Status> {
    let name = rust_type.rsplit("::").next().unwrap_or(rust_type);
    let Some(shape) = name.ends_with("Request").then(|| SHAPES.get(name)).flatten() else { return Ok(()) };
    let most = message.len().saturating_mul(TIMES_MAX).saturating_add(SPARE_BYTES);
    if memory(shape, message, DEPTH_MAX) <= most {
        return Ok(());
    }
    let mut metadata = MetadataMap::new();
    metadata.insert("error-code", tonic::metadata::MetadataValue::from_static("message_too_large"));
    let reason = format!(
        "the {name} has too many parts: its {} bytes would take over {} MiB of memory; send less at once",
        message.len(),
        most >> 20
    );
    Err(Status::with_metadata(Code::ResourceExhausted, reason, metadata))
}

/// Types of a message's fields that take memory, by field number.
type Shape = BTreeMap<u64, Field>;

#[derive(Debug)]
enum Field {
    Text,
    Number,
    Message(String),
}

/// Shapes of all messages of the contract, by name.
static SHAPES: LazyLock<HashMap<String, Shape>> = LazyLock::new(|| {
    let mut shapes = HashMap::new();
    // The descriptor is compiled into this program, and a test decodes it.
    let files = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap_or_default().file;
    files.iter().flat_map(|file| &file.message_type).for_each(|message| add(message, &mut shapes));
    shapes
});

fn add(message: &DescriptorProto, shapes: &mut HashMap<String, Shape>) {
    message.nested_type.iter().for_each(|nested| add(nested, shapes));
    let kind = |kind: Type, name: &str| match kind {
        Type::Message => Field::Message(name.rsplit('.').next().unwrap_or(name).to_owned()),
        Type::String | Type::Bytes => Field::Text,
        _ => Field::Number,
    };
    let fields = message.field.iter().map(|field| {
        let number = u64::try_from(field.number()).unwrap_or_default();
        (number, kind(field.r#type(), field.type_name()))
    });
    shapes.insert(message.name().to_owned(), fields.collect());
}

/// Approximate bytes of memory that a message takes. A malformed message is measured up to its fault; decoding
/// refuses it.
fn memory(shape: &Shape, mut message: &[u8], depth: usize) -> usize {
    let mut total = 0_usize;
    while !message.is_empty() {
        let Some(key) = varint(&mut message) else { return total };
        let field = shape.get(&(key >> 3));
        let content = match key & 7 {
            0 => varint(&mut message).map(|_| None),
            1 => skip(&mut message, 8).map(|_| None),
            2 => varint(&mut message)
                .and_then(|length| skip(&mut message, usize::try_from(length).ok()?))
                .map(Some),
            5 => skip(&mut message, 4).map(|_| None),
            _ => None,
        };
        let Some(content) = content else { return total };
        let bytes = match (field, content) {
            (Some(Field::Message(name)), Some(content)) if depth > 0 => {
                let within =
                    SHAPES.get(name).map_or(content.len(), |shape| memory(shape, content, depth - 1));
                within.saturating_add(PART_BYTES)
            }
            (Some(Field::Number), Some(packed)) => {
                // Each number ends with a byte whose highest bit is 0, or has a fixed size.
                packed.iter().filter(|byte| **byte < 0x80).count().saturating_mul(NUMBER_BYTES / 2)
            }
            (Some(Field::Number), None) => NUMBER_BYTES,
            // Strings of more than a few bytes share the message's own memory or are copied once.
            (_, Some(content)) => content.len().saturating_add(PART_BYTES),
            (_, None) => 0,
        };
        total = total.saturating_add(bytes);
    }
    total
}

fn skip<'a>(message: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (content, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some(content)
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{SHAPES, check, memory};
    use crate::v1::{
        Chat, EmbedInput, EmbedRequest, InferRequest, Message, RerankRequest, Sampling, StopConditions,
        TokenIds, embed_input::Input, infer_request::Prompt,
    };

    fn checked<M: prost::Message>(message: &M) -> Result<(), tonic::Status> {
        check(std::any::type_name::<M>(), &message.encode_to_vec())
    }

    fn chat(messages: Vec<Message>) -> InferRequest {
        let chat = Chat { messages, ..Chat::default() };
        InferRequest { prompt: Some(Prompt::Chat(chat)), ..InferRequest::default() }
    }

    #[test]
    fn parts_that_would_take_many_times_their_bytes_are_refused() {
        let many = 1_000_000;
        let stop = StopConditions { strings: vec![String::new(); many], ..StopConditions::default() };
        let sampling = Sampling { dry_sequence_breakers: vec![String::new(); many], ..Sampling::default() };
        for request in [
            chat(vec![Message::default(); many]),
            InferRequest { stop: Some(stop), ..InferRequest::default() },
            InferRequest { sampling: Some(sampling), ..InferRequest::default() },
        ] {
            let status = checked(&request).unwrap_err();
            assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
            assert!(status.message().starts_with("the InferRequest has too many parts"), "{status}");
        }
        assert!(
            checked(&EmbedRequest { inputs: vec![EmbedInput::default(); many], ..EmbedRequest::default() })
                .is_err()
        );
        assert!(
            checked(&RerankRequest { documents: vec![String::new(); many], ..RerankRequest::default() })
                .is_err()
        );
    }

    #[test]
    fn requests_within_their_limits_pass() {
        let inputs = |text: &str| {
            let input = EmbedInput { input: Some(Input::Text(text.to_owned())) };
            EmbedRequest { inputs: vec![input; 65_536], ..EmbedRequest::default() }
        };
        checked(&inputs("")).unwrap();
        checked(&inputs("a sentence of some words")).unwrap();
        checked(&chat(vec![Message { role: "user".to_owned(), ..Message::default() }; 16_384])).unwrap();
        let ids = |id: u32| {
            let tokens = Some(Prompt::Tokens(TokenIds { ids: vec![id; 8 << 20] }));
            InferRequest { prompt: tokens, ..InferRequest::default() }
        };
        checked(&ids(1)).unwrap();
        checked(&ids(u32::MAX)).unwrap();
        let bias = (0..200_000).map(|id| (id, 1.0)).collect();
        let sampling = Some(Sampling { logit_bias: bias, ..Sampling::default() });
        checked(&InferRequest { sampling, ..InferRequest::default() }).unwrap();
        let text = Some(Prompt::Text("x".repeat(30 << 20)));
        checked(&InferRequest { prompt: text, ..InferRequest::default() }).unwrap();
    }

    #[test]
    fn broken_messages_are_measured_up_to_their_fault() {
        let shape = &SHAPES["InferRequest"];
        assert!(shape.len() > 20);
        for broken in [&[0xff; 40][..], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], &[0x0a], &[0x0b, 0x0b]] {
            assert!(memory(shape, broken, 100) < 10_000);
        }
    }
}
