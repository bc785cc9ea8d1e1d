//! Bounds that no configuration changes.

use std::time::Duration;

/// Servers of one file.
pub(crate) const SERVERS_MAX: usize = 64;
/// Bytes of that file.
pub(crate) const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Tools of one server that are offered.
pub(crate) const TOOLS_OF_SERVER_MAX: usize = 128;
/// Bytes of one tool's description and schema.
pub(crate) const TOOL_BYTES_MAX: usize = 64 << 10;
/// Bytes of a tool's name, as models and their APIs take it.
pub(crate) const TOOL_NAME_BYTES_MAX: usize = 64;
/// Bytes of a result that a model is shown; what is more is cut off.
pub const CALL_RESULT_BYTES_MAX: usize = 64 << 10;
/// Bytes of a message of a server.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// In which a server must have said what it is and which tools it has.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(30);
/// In which a call must be answered, unless its server's configuration says otherwise.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest that a configuration may say.
pub(crate) const TIMEOUT_S_MAX: u64 = 3600;
/// How long a server that failed is left alone, at first and at most.
pub(crate) const BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// A server that has worked for so long begins with the first pause again.
pub(crate) const HEALTHY: Duration = Duration::from_secs(60);
/// How often it is looked whether a server is still there.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
/// In which a process whose input has ended must end, and again after it was asked to.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a line of a process's stderr that are logged, and lines in a second.
pub(crate) const STDERR_LINE_BYTES_MAX: usize = 1 << 10;
/// See [`STDERR_LINE_BYTES_MAX`].
pub(crate) const STDERR_LINES_PER_S: u32 = 20;
