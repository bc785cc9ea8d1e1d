//! Ranks of the reference: a wrong order of parts is found out, and runs of parts are laid out as devices read them. The CPU
//! backend's tests try ranks op by op.

use super::*;
use crate::reference::ReferenceBackend;
use crate::{AnyBackend, conformance};

#[test]
#[should_panic(expected = "decoder")]
fn parts_in_a_wrong_order_are_found_out() {
    conformance::briefly(|| {
        conformance::check_decoder(&|| {
            let ranks = [(); 2].map(|()| ReferenceBackend::default());
            let ranks = TensorParallel::new(ranks.into(), Vec::new());
            AnyBackend::of_executor(TensorParallel { astray: true, ..ranks.keeping_both() })
        });
    });
}

#[test]
fn runs_of_parts_stand_one_behind_the_other() {
    let layout = Layout::of([64, 32, 32].into_iter(), 4).unwrap();
    assert_eq!(layout.widths().collect::<Vec<_>>(), [64, 32, 32]);
    let columns = |rank| layout.columns(rank, 4).collect::<Vec<_>>();
    assert_eq!(columns(0), [(0..16, 0), (16..24, 64), (24..32, 96)]);
    assert_eq!(columns(3), [(0..16, 48), (16..24, 88), (24..32, 120)]);
    assert_eq!(Layout::of([64, 36].into_iter(), 4), None, "part of a tile");
    assert_eq!(Layout::of([64; 9].into_iter(), 4), None, "more parts than are looked at");
}
