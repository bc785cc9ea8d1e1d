//! Convolutions over grids: sounds, pictures, and pictures over time.

/// Use of a packed kernel. Devices lay a kernel out for its convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelUse {
    /// Sizes of the convolution. The extents of the input do not count, except that they tell lines from other grids.
    pub params: ConvParams,
    /// Whether it is transposed.
    pub transposed: bool,
}

/// Sizes of a convolution over the grid of a sequence. A grid has three axes: depth, height, width. An axis that is not there
/// has extent 1 on all sides, as [`ConvParams::plane`] and [`ConvParams::line`] make it. The sequence's rows are the grid's
/// places, the last axis running fastest, and their columns are the channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvParams {
    /// Extents of the input. Their product is the places of each sequence of the batch; where rows hold several places, it may be
    /// less. A last extent of 0 stands for as many places as the sequence has ([`ConvParams::along`]).
    pub input: [usize; 3],
    /// Extents of the kernel.
    pub kernel: [usize; 3],
    /// Places from one output to the next; of a transposed convolution from one input's outputs to the next's.
    pub stride: [usize; 3],
    /// Zeros before and behind the input; of a transposed convolution places of the output that are cut off at either end.
    pub padding: [[usize; 2]; 3],
    /// Places from one tap of the kernel to the next.
    pub dilation: [usize; 3],
    /// Groups of neighbouring channels that are convolved apart from each other. A divisor of the channels of both sides.
    pub groups: usize,
}

impl ConvParams {
    /// A convolution of one group with stride 1, without padding and dilation.
    pub fn new(input: [usize; 3], kernel: [usize; 3]) -> Self {
        let ones = [1; 3];
        Self { input, kernel, stride: ones, padding: [[0; 2]; 3], dilation: ones, groups: 1 }
    }

    /// The same over pictures of so many rows and columns.
    pub fn plane([height, width]: [usize; 2], [rows, cols]: [usize; 2]) -> Self {
        Self::new([1, height, width], [1, rows, cols])
    }

    /// The same over lines of `length` places.
    pub fn line(length: usize, taps: usize) -> Self {
        Self::new([1, 1, length], [1, 1, taps])
    }

    /// The same along sequences of any length.
    pub fn along(taps: usize) -> Self {
        Self::line(0, taps)
    }

    /// The same for a sequence of so many rows, each of which holds so many places.
    ///
    /// # Panics
    /// If the extents are those of another number of places. The last of several places of a row may be left over.
    #[inline]
    pub fn of(&self, rows: usize, places: usize) -> Self {
        let (mut input, held) = (self.input, rows * places);
        if input[2] == 0 {
            input[2] = held / (input[0] * input[1]);
        }
        let wanted: usize = input.iter().product();
        assert!(
            wanted == held || wanted < held && places > 1,
            "{wanted} places of a grid in {rows} rows of {places}"
        );
        Self { input, ..*self }
    }

    /// Whether it is a convolution along lines.
    #[inline]
    pub fn is_line(&self) -> bool {
        self.input[..2] == [1; 2] && self.kernel[..2] == [1; 2] && self.padding[..2] == [[0; 2]; 2]
    }

    /// Place at the other side of a tap, `at * stride + tap * dilation - padding`; none outside of `extents`.
    #[inline]
    pub fn moved(&self, extents: [usize; 3], at: [usize; 3], tap: [usize; 3]) -> Option<[usize; 3]> {
        let mut place = [0; 3];
        for axis in 0..3 {
            let whole = at[axis] * self.stride[axis] + tap[axis] * self.dilation[axis];
            let own = whole.checked_sub(self.padding[axis][0])?;
            place[axis] = Some(own).filter(|&own| own < extents[axis])?;
        }
        Some(place)
    }

    /// Taps of a channel.
    #[inline]
    pub fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Places that an axis of the kernel covers.
    #[inline]
    fn covered(&self, axis: usize) -> usize {
        self.dilation[axis] * (self.kernel[axis] - 1) + 1
    }

    /// Extents of a convolution's output.
    ///
    /// # Panics
    /// If the kernel covers more than the padded input.
    #[inline]
    pub fn output(&self) -> [usize; 3] {
        std::array::from_fn(|axis| {
            let padded = self.input[axis] + self.padding[axis].iter().sum::<usize>();
            assert!(padded >= self.covered(axis), "a kernel larger than its input");
            (padded - self.covered(axis)) / self.stride[axis] + 1
        })
    }

    /// Extents of a transposed convolution's output. Libraries' `output_padding` is padding less at the end.
    ///
    /// # Panics
    /// If more is cut off than there is.
    #[inline]
    pub fn output_transposed(&self) -> [usize; 3] {
        std::array::from_fn(|axis| {
            let all = (self.input[axis] - 1) * self.stride[axis] + self.covered(axis);
            let cut = self.padding[axis].iter().sum();
            all.checked_sub(cut).filter(|&left| left > 0).expect("padding smaller than the output")
        })
    }
}

/// Places of a grid, in their order.
#[inline]
pub fn places([depth, height, width]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..depth * height * width).map(move |at| place_of(at, [depth, height, width]))
}

/// Place with a number.
#[inline]
pub fn place_of(at: usize, [_, height, width]: [usize; 3]) -> [usize; 3] {
    [at / width / height, at / width % height, at % width]
}

/// Number of a place.
#[inline]
pub fn number_of([z, y, x]: [usize; 3], [_, height, width]: [usize; 3]) -> usize {
    (z * height + y) * width + x
}
