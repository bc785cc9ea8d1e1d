//! Message framing around a service: compression and size limits. Responses are compressed only if the request was.
//! A client that merely supports compression gets none: events are small, and compressing each costs more than it
//! saves. A message over the limit gives RESOURCE_EXHAUSTED with this program's own text, whichever layer detects
//! it.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use tonic::{
    Code, Status,
    body::Body,
    codegen::{
        Service,
        http::{HeaderMap, Request, Response, header::HeaderName},
    },
    metadata::MetadataMap,
    server::NamedService,
};

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// Service with compression and size limits.
#[derive(Clone)]
pub(crate) struct Envelope<S> {
    pub(crate) service: S,
    pub(crate) message_bytes_max: usize,
}

impl<S: NamedService> NamedService for Envelope<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Envelope<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let headers = request.headers_mut();
        if headers.get(ENCODING).is_none_or(|encoding| encoding == "identity") {
            headers.remove(ACCEPT_ENCODING);
        }
        let answer = self.service.call(request);
        let message_bytes_max = self.message_bytes_max;
        Box::pin(async move {
            let Ok(answer) = answer.await;
            Ok(too_large(answer.headers(), message_bytes_max).map_or(answer, Status::into_http))
        })
    }
}

/// Status for a message over the limit, if this is the transport's response to one. A call that fails before its
/// first message has the status in its headers.
fn too_large(headers: &HeaderMap, message_bytes_max: usize) -> Option<Status> {
    let status = Status::from_header_map(headers)?;
    let over = match status.code() {
        Code::OutOfRange => true,
        Code::ResourceExhausted => status.message().starts_with("Error decompressing"),
        _ => false,
    };
    over.then(|| over_limit(message_bytes_max))
}

/// Status for a message over the limit.
pub(super) fn over_limit(message_bytes_max: usize) -> Status {
    let message = format!(
        "the message is over the limit of {message_bytes_max} bytes (server.message_bytes_max); send less at once"
    );
    let mut metadata = MetadataMap::new();
    if let Ok(word) = "message_too_large".parse() {
        metadata.insert("error-code", word);
    }
    Status::with_metadata(Code::ResourceExhausted, message, metadata)
}
