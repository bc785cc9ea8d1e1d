//! Pooling, prompts and read-outs, without a network.
