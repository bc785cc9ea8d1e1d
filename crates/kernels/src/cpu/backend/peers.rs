//! Rows of other CPU backends of the process. Ops are done when they return, so there is nothing to wait for.

use std::ops::Range;

use super::*;
use hanzo_engine_ops::Peers;

impl Peers for CpuBackend {
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
        x: &CpuBuffer,
        columns: Range<usize>,
        out: &mut CpuBuffer,
        first: usize,
    ) -> Result<(), KernelError> {
        let rows = self.batch.rows();
        let (cols, width) = (out.cols, columns.len());
        x.check(rows, x.cols, "x");
        out.check(rows, cols, "out");
        for row in 0..rows {
            let from = &x.data[row * x.cols..][..x.cols][columns.clone()];
            out.data[row * cols + first..][..width].copy_from_slice(from);
        }
        Ok(())
    }
}
