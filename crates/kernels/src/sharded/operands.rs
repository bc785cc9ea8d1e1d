//! How an op finds what it names on each rank that computes it.

/// Runs an op on whole rows, on the ranks of the stage. Operands are [`crate::delegated`]'s.
macro_rules! run {
    ($sharded:ident at $kv:ident $layer:ident, $op:ident($($operands:tt)*)) => {
        run!($sharded, $op($($operands)*))
    };
    ($sharded:ident, embed($($operands:tt)*)) => {{
        // Which tokens rows are of no other rank knows.
        let first = 0..1;
        run!($sharded on first, embed($($operands)*))
    }};
    ($sharded:ident, $op:ident($($operands:tt)*)) => {{
        let ranks = $sharded.at();
        run!($sharded on ranks, $op($($operands)*))
    }};
    ($sharded:ident on $ranks:ident, $op:ident($($kind:ident $operand:expr),*)) => {{
        let ranks = $ranks;
        $(operand!(before $sharded ranks $kind $operand);)*
        for at in ranks.clone() {
            $sharded.ranks[at].$op($(operand!(at $kind $operand)),*);
        }
        $(operand!(after ranks $kind $operand);)*
    }};
}

macro_rules! operand {
    (before $sharded:ident $ranks:ident r $of:expr) => {
        $sharded.bring($of, &$ranks)
    };
    (before $sharded:ident $ranks:ident c $of:expr) => {
        $sharded.bring(&*$of, &$ranks);
        $sharded.claim(&*$of)
    };
    (before $sharded:ident $ranks:ident w $of:expr) => {
        $sharded.claim(&*$of)
    };
    (before $sharded:ident $ranks:ident $kind:ident $of:expr) => {};
    (after $ranks:ident c $of:expr) => {
        $of.only_on(&$ranks)
    };
    (after $ranks:ident w $of:expr) => {
        $of.only_on(&$ranks)
    };
    (after $ranks:ident $kind:ident $of:expr) => {};
    ($at:ident $kind:ident $of:expr) => {
        operand_at!($at $kind $of)
    };
}
