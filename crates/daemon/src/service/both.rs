//! Combination of two services, such as Engine and Store, for calls from inside this process. These bypass the
//! router, so the call's path selects the service.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use tonic::{
    body::Body,
    codegen::{
        Service,
        http::{Request, Response},
    },
    server::NamedService,
};

/// Pair of services; the first receives all calls that are not the other's.
#[derive(Clone)]
pub(crate) struct Both<E, S> {
    pub(crate) first: E,
    pub(crate) other: S,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<E, S> Service<Request<Body>> for Both<E, S>
where
    E: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    E::Future: Send + 'static,
    S: NamedService + Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        match self.first.poll_ready(context) {
            Poll::Ready(Ok(())) => self.other.poll_ready(context),
            waits => waits,
        }
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        let service = request.uri().path().trim_start_matches('/').split('/').next();
        if service == Some(S::NAME) {
            return Box::pin(self.other.call(request));
        }
        Box::pin(self.first.call(request))
    }
}
