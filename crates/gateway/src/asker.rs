//! Identity of a request: its id, its permissions and its records.

use hanzo_engine_access::Pass;
use hanzo_engine_telemetry::TraceContext;

use crate::{record::Record, request_id::RequestId};

/// Requester: the request's id, the permissions of its key, and its record. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    pub(crate) id: RequestId,
    pub(crate) pass: Pass,
    pub(crate) record: Record,
    pub(crate) trace: Option<TraceContext>,
}
