//! What outsiders do to an engine: models' files, requests, clients and disks that are meant to end it, stall it or
//! take what is everybody's. Each module is one kind of attack; after each the daemon must still answer.

mod bloat;
mod fairness;
mod files;
mod memory;
mod numbers;
mod pictures;
mod store;
mod templates;
