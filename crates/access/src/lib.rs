//! Who may ask an engine, over HTTP and gRPC alike: connections and TLS, keys and what each may use, how often, and how
//! wrong ones are met. The words of HTTP are the gateway's, those of the contract the daemon's; statuses of gRPC, which both
//! speak, are made here.
//!
//! [`Access`] holds the keys of a process: one that was set ([`Secret`]), and those of a file ([`KeysFile`]) that is read
//! again when it changes. [`connections`] accepts on a port, with [`ServerTls`] where it is spoken. [`Access::admit`] makes a [`Pass`] of what a request presents, or a [`Refusal`].
//! [`check_origin`] refuses the requests of foreign web pages.

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
mod reservation;
mod secret;
mod spend;
mod tls;
mod transcript;

pub use access::{Access, AccessError, KEYS_GRACE, KeysFault, Presented, Settings};
pub use crowd::Idle;
pub use dial::{channel, lazy_channel, lazy_channel_at, mistaken_server, with_key};
pub use file::{FileError, KeysFile, Record};
pub use follow::Follow;
pub use guesses::client_of;
pub use key::Key;
pub use listen::{Connection, Limits, Permit, Stream, connections, connections_until};
pub use opening::Opening;
pub use origin::{ForeignPage, check_origin};
pub use pass::{Pass, Running, Standing};
pub use pinned::pinned;
pub use rate::Level;
pub use refusal::{Refusal, TokensFault};
pub use reservation::{Need, Reservation};
pub use secret::Secret;
pub use spend::{ForwardReservation, ForwardedNeed, MeteredEvents, Spend};
pub use tls::{ClientTls, ServerTls, TlsError, TlsSettings};
pub use transcript::TranscriptSpend;
