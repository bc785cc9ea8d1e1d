//! The reference as a rank of tensor parallelism. Ops are done when they return, so there is nothing to wait for.

use std::ops::Range;

use super::{ReferenceBackend, ReferenceBuffer};
use crate::{KernelError, Peers};

impl Peers for ReferenceBackend {
    type Mark = ();

    fn mark(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    fn follow(&mut self, (): &()) -> Result<(), KernelError> {
        Ok(())
    }

    fn start(&self) -> Result<(), KernelError> {
        Ok(())
    }

    fn take_columns(
        &mut self,
        x: &ReferenceBuffer,
        columns: Range<usize>,
        out: &mut ReferenceBuffer,
        first: usize,
    ) -> Result<(), KernelError> {
        for row in 0..self.step().rows() {
            out.row_mut(row)[first..][..columns.len()].copy_from_slice(&x.row(row)[columns.clone()]);
        }
        Ok(())
    }
}
