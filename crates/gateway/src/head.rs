//! Metadata of a call to the engine: its deadline and its trace.

use hanzo_engine_telemetry::TraceContext;
use tokio::time::Instant;
use tonic::Request;

/// Metadata of a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Head {
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: Option<TraceContext>,
}

impl Head {
    /// Wraps a message in a call. The engine ends it at the deadline too.
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
