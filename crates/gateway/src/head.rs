//! What goes with a call to the engine beside its message: by when it must end, and which trace it is part of.

use hanzo_engine_telemetry::TraceContext;
use tokio::time::Instant;
use tonic::Request;

/// The head of a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Head {
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: Option<TraceContext>,
}

impl Head {
    /// A call that the engine ends at the deadline too.
    pub(crate) fn over<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        }
        if let Some(trace) = &self.trace {
            trace.tell(request.metadata_mut().as_mut());
        }
        request
    }
}
