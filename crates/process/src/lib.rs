//! Shared code of the programs as processes: settings that can be shown, compared and explained ([`settings`]),
//! communication with systemd ([`systemd`]), memory of the heap ([`heap`]), manual pages ([`documents`]), and tasks
//! ([`tasks`]). Each program defines its own settings.

#![deny(unsafe_code)]

mod directories;
pub mod documents;
#[allow(unsafe_code)] // calls of the C library's allocator
pub mod heap;
pub mod settings;
pub mod systemd;
pub mod tasks;

pub use directories::without_directories;
