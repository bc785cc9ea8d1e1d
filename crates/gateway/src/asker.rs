//! Who asks, and under which id: what a handler knows of a request besides its body.

use hanzo_engine_access::Pass;
use hanzo_engine_telemetry::TraceContext;

use crate::{record::Record, request_id::RequestId};

/// One request's id, what its key may do, and what is known of it. Cloning it is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    pub(crate) id: RequestId,
    pub(crate) pass: Pass,
    pub(crate) record: Record,
    pub(crate) trace: Option<TraceContext>,
}
