//! Entry points for fuzzers: the parsers of gRPC messages and headers. No program calls them.

use hanzo_engine_proto::v1;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};

use crate::convert::{embed, job, request, store};

/// Converts a generation request.
pub fn infer(wire: v1::InferRequest) {
    drop(job::check(wire));
}

/// Converts a tokenization request.
pub fn tokenize(wire: v1::TokenizeRequest) {
    drop(request::tokenize(wire.input, wire.add_special_tokens, wire.parse_special));
}

/// Converts a reranking request.
pub fn rerank(wire: v1::RerankRequest) {
    drop(embed::rerank(wire));
}

/// Converts a classification request.
pub fn classify(wire: v1::ClassifyRequest) {
    drop(embed::classify(wire));
}

/// Converts a pull request.
pub fn pull(wire: v1::PullRequest) {
    drop(store::pull_request(wire));
}

/// Parses a request's id and timeout, which arrive as headers.
pub fn headers(bytes: &[u8]) {
    let id = request::request_id(&String::from_utf8_lossy(bytes));
    assert!(!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic()), "{id:?}");
    if let Ok(value) = AsciiMetadataValue::try_from(bytes) {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", value);
        drop(request::timeout(&metadata));
    }
}
