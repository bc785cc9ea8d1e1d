//! mapped
