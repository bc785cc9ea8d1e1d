//! Rows of numbers in memory.

/// Rows of numbers at a distance from each other. Rows may overlap where they are read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rows<T> {
    /// The numbers from the first row on.
    pub(super) numbers: T,
    /// Numbers from the start of a row to the start of the next.
    pub(super) stride: usize,
}

impl<T> Rows<&mut [T]> {
    /// The rows to read.
    pub(super) fn read(&self) -> Rows<&[T]> {
        Rows { numbers: self.numbers, stride: self.stride }
    }
}
