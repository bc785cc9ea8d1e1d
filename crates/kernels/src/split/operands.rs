//! How an op finds what it names on the device that computes it.

/// Runs an op on a device. Of its operands `r` is a buffer that is read, `c` one that is changed, `w` one that is written anew, `m`
/// something packed, `u` a buffer that may be anywhere, `o` something packed that there may be, `p` parameters, `k` a cache that is changed, `s` one that is read, and
/// `v` a value.
macro_rules! run {
    ($split:ident on $side:expr, $op:ident($($kind:ident $operand:expr),*)) => {{
        let side = $side;
        $(operand!(before $split side $kind $operand);)*
        match side {
            Side::First => $split.first.$op($(operand!(first $kind $operand)),*),
            Side::Second => $split.second.$op($(operand!(second $kind $operand)),*),
        };
        $(operand!(after side $kind $operand);)*
    }};
    ($split:ident, $op:ident($($operands:tt)*)) => {
        run!($split on $split.side(), $op($($operands)*))
    };
}

macro_rules! operand {
    (before $split:ident $side:ident r $of:expr) => {
        $split.bring($of, $side)
    };
    (before $split:ident $side:ident c $of:expr) => {
        $split.bring(&*$of, $side)
    };
    (before $split:ident $side:ident $kind:ident $of:expr) => {};
    (after $side:ident c $of:expr) => {
        $of.only_on($side)
    };
    (after $side:ident w $of:expr) => {
        $of.only_on($side)
    };
    (after $side:ident $kind:ident $of:expr) => {};
    (first u $of:expr) => {
        &$of.first()
    };
    (second u $of:expr) => {
        &$of.second()
    };
    (first r $of:expr) => {
        &$of.first()
    };
    (second r $of:expr) => {
        &$of.second()
    };
    (first c $of:expr) => {
        $of.first_mut()
    };
    (second c $of:expr) => {
        $of.second_mut()
    };
    (first w $of:expr) => {
        $of.first_mut()
    };
    (second w $of:expr) => {
        $of.second_mut()
    };
    (first m $of:expr) => {
        $of.first()
    };
    (second m $of:expr) => {
        $of.second()
    };
    (first o $of:expr) => {
        $of.map(|of| of.first())
    };
    (second o $of:expr) => {
        $of.map(|of| of.second())
    };
    (first p $of:expr) => {
        &$of.with(|of| of.first())
    };
    (second p $of:expr) => {
        &$of.with(|of| of.second())
    };
    (first k $of:expr) => {
        $of.first_mut()
    };
    (second k $of:expr) => {
        $of.second_mut()
    };
    (first s $of:expr) => {
        $of.first()
    };
    (second s $of:expr) => {
        $of.second()
    };
    (first v $of:expr) => {
        $of
    };
    (second v $of:expr) => {
        $of
    };
}
