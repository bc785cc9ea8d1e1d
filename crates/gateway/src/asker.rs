//! Who asks, and under which id: what a handler knows of a request besides its body.

use hanzo_engine_access::Pass;

use crate::request_id::RequestId;

/// One request's id, and what its key may do. Cloning it is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    pub(crate) id: RequestId,
    pub(crate) pass: Pass,
}
