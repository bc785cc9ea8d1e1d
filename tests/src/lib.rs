//! Shared by the tests: a running daemon and gateway on free ports, and a plain HTTP client.
