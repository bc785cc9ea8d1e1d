//! Access control over HTTP and gRPC: connections, TLS, API keys with their permissions and limits, and defence
//! against guessed keys. The gateway words refusals for HTTP and the daemon for its contract; gRPC statuses,
//! which both use, are made here.
//!
//! [`Access`] holds the accepted keys: one of the settings ([`Secret`]), and those of a file ([`KeysFile`])
//! that is reloaded when it changes. [`connections`] accepts connections on a port, with [`ServerTls`] if TLS
//! is on. [`Access::admit`] turns the keys of a request into a [`Pass`], or a [`Refusal`]. [`check_origin`]
//! refuses requests of foreign web pages.

mod access;
mod crowd;
mod dial;
mod file;
mod follow;
mod guesses;
mod key;
mod listen;
mod models;
mod opening;
mod origin;
mod pass;
mod pinned;
mod rate;
mod refusal;
mod regular;
mod reservation;
mod revocation;
mod secret;
mod spend;
mod tls;
mod transcript;

pub use access::{Access, AccessError, AccessSettings, KEYS_GRACE, KeysFault, PresentedKeys};
pub use crowd::Idle;
pub use dial::{channel, lazy_channel, lazy_channel_at, mistaken_server, with_key};
pub use file::{FileError, KeysFile, Record};
pub use follow::Follow;
pub use guesses::client_of;
pub use key::Key;
pub use listen::{Connection, Limits, Permit, Stream, connections, connections_until};
pub use opening::OpeningStream;
pub use origin::{ForeignPage, check_origin};
pub use pass::{Pass, RemainingLimits, RunningRequest};
pub use pinned::pinned;
pub use rate::Level;
pub use refusal::{Refusal, TokensFault};
pub use reservation::{INPUTS_OVER, InputsNeed, Need, Reservation, bound_inputs, inputs_bound};
pub use revocation::KeyEnd;
pub use secret::Secret;
pub use spend::{ForwardReservation, ForwardedNeed, MeteredEvents, Spend};
pub use tls::{ClientTls, ServerTls, TlsError, TlsSettings};
pub use transcript::TranscriptSpend;
