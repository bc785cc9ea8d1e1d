//! What the programs have in common as processes of a system: settings that can be shown, compared and explained
//! ([`settings`]), what systemd gives them and is told by them ([`systemd`]), and their manual pages ([`documents`]). What a
//! setting means, and which there are, is each program's own.

#![forbid(unsafe_code)]

mod directories;
pub mod documents;
pub mod settings;
pub mod systemd;

pub use directories::without_directories;
