//! What a fuzzer may call: the readers of gRPC's messages and headers. No program calls them.

use hanzo_engine_proto::v1;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};

use crate::convert::{embed, request, store};

/// Reads what is asked of a generation.
pub fn infer(wire: v1::InferRequest) {
    drop(request::infer(wire));
}

/// Reads what is to be tokenized.
pub fn tokenize(wire: v1::TokenizeRequest) {
    drop(request::tokenize(wire.input, wire.add_special_tokens, wire.parse_special));
}

/// Reads what is to be ranked.
pub fn rerank(wire: v1::RerankRequest) {
    drop(embed::rerank(wire));
}

/// Reads what is to be classified.
pub fn classify(wire: v1::ClassifyRequest) {
    drop(embed::classify(wire));
}

/// Reads what is to be pulled.
pub fn pull(wire: v1::PullRequest) {
    drop(store::pull_request(wire));
}

/// Reads the id of a request and the time it has, which come beside the message.
pub fn headers(bytes: &[u8]) {
    let id = request::request_id(&String::from_utf8_lossy(bytes));
    assert!(!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic()), "{id:?}");
    if let Ok(value) = AsciiMetadataValue::try_from(bytes) {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", value);
        drop(request::timeout(&metadata));
    }
}
