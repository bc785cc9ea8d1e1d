//! Bucket bounds of histograms.

/// Bucket bounds for waiting times and whole requests, in seconds.
pub(super) const SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0];
/// Bucket bounds for the time of one token, in seconds.
pub(super) const TOKEN_SECONDS: &[f64] =
    &[0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5];
/// Bucket bounds for scheduling decisions before a step, in seconds.
pub(super) const DECISION_SECONDS: &[f64] =
    &[0.000_005, 0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01];
/// Bucket bounds for lengths, in tokens.
pub(super) const TOKENS: &[f64] = &[
    1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0,
    131072.0,
];
/// Bucket bounds for batches, in inputs.
pub(super) const INPUTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
