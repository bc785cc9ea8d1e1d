//! Generated code of `proto/hanzo/engine/v1`: messages, clients and servers. The proto files are the
//! documentation. Written by hand are the file descriptor set for reflection, and the codec that bounds requests.

mod bounded;

/// Package `hanzo.engine.v1`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("hanzo.engine.v1");

    /// Compiled contract with its comments, for gRPC reflection.
    pub static FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/engine_descriptor.bin"));
}
