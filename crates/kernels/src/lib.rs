//! The CPU backend of the engine, for x86-64 and aarch64: [`cpu::CpuBackend`] runs the ops of `hanzo_engine_ops`.

pub mod cpu;
