//! Access control of a service on the network: authenticates the caller, checks the key's permissions and its rate
//! limits. Calls from inside this process do not pass through it.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use hanzo_engine_access::{Access, KeyEnd, Pass, PresentedKeys, Refusal, RunningRequest, check_origin};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Service,
        http::{HeaderMap, Request, Response},
    },
    server::NamedService,
    transport::server::TcpConnectInfo,
};

use crate::metrics::Metrics;

/// Calls that compute, which count against a key's limits.
const WORK: [&str; 8] =
    ["Infer", "Embed", "Rerank", "Classify", "Tokenize", "Detokenize", "Transcribe", "Speak"];
/// Calls that only read. All others need the operator's permission.
const LOOK: [&str; 7] = ["Stats", "List", "Show", "Watch", "ListAdapters", "Voices", "ServerReflectionInfo"];

/// Service behind access control.
#[derive(Clone)]
pub(crate) struct GuardedService<S> {
    pub(crate) service: S,
    pub(crate) access: Arc<Access>,
    pub(crate) metrics: Arc<Metrics>,
}

impl<S: NamedService> NamedService for GuardedService<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> GuardedService<S> {
    fn let_in(&self, request: &Request<Body>) -> Result<(Pass, RunningRequest), Refusal> {
        let from = request.extensions().get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        let presented = PresentedKeys::of(request.headers());
        let pass = self.access.admit(&presented, from.map(|address| address.ip()))?;
        let call = request.uri().path().rsplit('/').next().unwrap_or_default();
        if WORK.contains(&call) {
            let running = pass.enter()?;
            return Ok((pass, running));
        }
        if !LOOK.contains(&call) {
            pass.admin(call)?;
        }
        Ok((pass, RunningRequest::default()))
    }
}

impl<S> Service<Request<Body>> for GuardedService<S>
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
        if check_origin(&[], request.uri(), request.headers()).is_err() {
            let refused = Status::permission_denied("web pages of other origins may not call this server");
            return Box::pin(std::future::ready(Ok(refused.into_http())));
        }
        match self.let_in(&request) {
            Err(refusal) => {
                self.metrics.refused(&refusal);
                Box::pin(std::future::ready(Ok(Status::from(refusal).into_http())))
            }
            Ok((pass, running)) => {
                let key_end = pass.key_end();
                request.extensions_mut().insert(pass);
                let answer = self.service.call(request);
                Box::pin(async move {
                    let Ok(answer) = answer.await;
                    Ok(answer.map(|body| Body::new(GuardedBody { body, key_end, _running: running })))
                })
            }
        }
    }
}

/// Body of a response. Its call counts as running until it is fully written, and ends with its key.
struct GuardedBody {
    body: Body,
    key_end: KeyEnd,
    _running: RunningRequest,
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.key_end.poll_ended(context) {
            self.body = Body::empty();
            let mut trailers = HeaderMap::new();
            let written = Status::from(Refusal::Wrong).add_header(&mut trailers);
            return Poll::Ready(Some(written.map(|()| Frame::trailers(trailers))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
