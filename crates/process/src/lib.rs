//! Shared code of the programs as processes: settings that can be shown, compared and explained ([`settings`]),
//! communication with systemd ([`systemd`]), and manual pages ([`documents`]). Each program defines its own
//! settings.

#![forbid(unsafe_code)]

mod directories;
pub mod documents;
pub mod settings;
pub mod systemd;

pub use directories::without_directories;
