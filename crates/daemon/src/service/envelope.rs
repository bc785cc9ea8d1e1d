//! What is around a message, before and behind a service: its compression and its size. A client that compresses is
//! answered so, and one that only could is not: events are small, and compressing each costs more than it saves. A message
//! over the limit is RESOURCE_EXHAUSTED by this build's own words, whichever layer finds out.

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

/// A service in its envelope.
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

/// The status for a message over the limit, where this is the transport's answer to one. A call that ends before its
/// first message has its status among the headers.
fn too_large(headers: &HeaderMap, message_bytes_max: usize) -> Option<Status> {
    let status = Status::from_header_map(headers)?;
    let over = match status.code() {
        Code::OutOfRange => true,
        Code::ResourceExhausted => status.message().starts_with("Error decompressing"),
        _ => false,
    };
    over.then(|| {
        let message = format!(
            "the message is over the limit of {message_bytes_max} bytes (server.message_bytes_max); send less at once"
        );
        let mut metadata = MetadataMap::new();
        if let Ok(word) = "message_too_large".parse() {
            metadata.insert("error-code", word);
        }
        Status::with_metadata(Code::ResourceExhausted, message, metadata)
    })
}
