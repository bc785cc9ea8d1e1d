//! Fixed bounds that cannot be configured.

use std::time::Duration;

/// Maximum servers of a configuration file.
pub(crate) const SERVERS_MAX: usize = 64;
/// Maximum bytes of the configuration file.
pub(crate) const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Maximum offered tools of one server.
pub(crate) const TOOLS_OF_SERVER_MAX: usize = 128;
/// Maximum bytes of a tool's description and schema.
pub(crate) const TOOL_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of a tool's name, as models and their APIs accept it.
pub(crate) const TOOL_NAME_BYTES_MAX: usize = 64;
/// Maximum bytes of a result that a model is shown; the rest is cut off.
pub const CALL_RESULT_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of a server's message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Default time for a server to initialise and list its tools.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Default time for a server to answer a call.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum configurable timeout.
pub(crate) const TIMEOUT_S_MAX: u64 = 3600;
/// Pause before a failed server is started again: the first and the longest.
pub(crate) const BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Uptime after which the next failure begins with the first pause again.
pub(crate) const HEALTHY: Duration = Duration::from_secs(60);
/// Interval between checks whether a server is alive.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
/// Time for a process to end after its input has ended, and again after SIGTERM.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum logged bytes of a stderr line.
pub(crate) const STDERR_LINE_BYTES_MAX: usize = 1 << 10;
/// Maximum logged stderr lines a second.
pub(crate) const STDERR_LINES_PER_S: u32 = 20;
