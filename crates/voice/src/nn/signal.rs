//! Signals: f32 values of shape `(rows, cols)`.

/// Signal of several channels, one row for each time step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Signal {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) data: Vec<f32>, // (rows, cols)
}

impl Signal {
    pub(crate) fn zeros(rows: usize, cols: usize) -> Signal {
        Signal { rows, cols, data: vec![0.0; rows * cols] }
    }

    pub(crate) fn from_data(rows: usize, cols: usize, data: Vec<f32>) -> Signal {
        assert_eq!(data.len(), rows * cols, "as many numbers as the shape says");
        Signal { rows, cols, data }
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..][..self.cols]
    }

    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.cols..][..self.cols]
    }

    /// Concatenates the channels of signals with the same number of rows.
    pub(crate) fn beside(parts: &[&Signal]) -> Signal {
        let rows = parts[0].rows;
        assert!(parts.iter().all(|part| part.rows == rows), "signals as long as each other");
        let cols = parts.iter().map(|part| part.cols).sum();
        let mut data = Vec::with_capacity(rows * cols);
        for row in 0..rows {
            parts.iter().for_each(|part| data.extend_from_slice(part.row(row)));
        }
        Signal { rows, cols, data }
    }

    /// Appends the same values to every row.
    pub(crate) fn beside_each(&self, numbers: &[f32]) -> Signal {
        let cols = self.cols + numbers.len();
        let mut data = Vec::with_capacity(self.rows * cols);
        for row in 0..self.rows {
            data.extend_from_slice(self.row(row));
            data.extend_from_slice(numbers);
        }
        Signal { rows: self.rows, cols, data }
    }

    /// Repeats each row as often as `counts` says.
    pub(crate) fn repeated(&self, counts: &[usize]) -> Signal {
        assert_eq!(counts.len(), self.rows, "a count a row");
        let rows = counts.iter().sum();
        let mut data = Vec::with_capacity(rows * self.cols);
        for (row, &count) in counts.iter().enumerate() {
            (0..count).for_each(|_| data.extend_from_slice(self.row(row)));
        }
        Signal { rows, cols: self.cols, data }
    }

    pub(crate) fn add(&mut self, other: &Signal) {
        assert_eq!((self.rows, self.cols), (other.rows, other.cols), "signals of one shape");
        self.data.iter_mut().zip(&other.data).for_each(|(sum, &other)| *sum += other);
    }

    pub(crate) fn scale(&mut self, factor: f32) {
        self.data.iter_mut().for_each(|value| *value *= factor);
    }
}
