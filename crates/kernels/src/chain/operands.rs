//! How an op finds what it names on the device that computes it.

/// Runs an op on a device: that of the stage, or of a layer of the cache. Operands are [`crate::delegated`]'s, and `u` a buffer
/// that may be anywhere.
macro_rules! run {
    ($chain:ident on $at:expr, $op:ident($($kind:ident $operand:expr),*)) => {{
        let at = $at;
        $(operand!(before $chain at $kind $operand);)*
        $chain.devices[at].$op($(operand!(at $kind $operand)),*);
        $(operand!(after at $kind $operand);)*
    }};
    ($chain:ident at $kv:ident $layer:ident, $op:ident($($operands:tt)*)) => {{
        let (at, $layer) = $kv.place($layer);
        run!($chain on at, $op($($operands)*))
    }};
    ($chain:ident, $op:ident($($operands:tt)*)) => {
        run!($chain on $chain.at(), $op($($operands)*))
    };
}

macro_rules! operand {
    (before $chain:ident $at:ident r $of:expr) => {
        $chain.bring($of, $at)
    };
    (before $chain:ident $at:ident c $of:expr) => {
        $chain.bring(&*$of, $at)
    };
    (before $chain:ident $at:ident $kind:ident $of:expr) => {};
    (after $at:ident c $of:expr) => {
        $of.only_on($at)
    };
    (after $at:ident w $of:expr) => {
        $of.only_on($at)
    };
    (after $at:ident $kind:ident $of:expr) => {};
    ($at:ident $kind:ident $of:expr) => {
        operand_at!($at $kind $of)
    };
}
