//! The suite passes what is right.
use crate::reference::ReferenceBackend;
#[test]
fn the_reference_conforms() {
    super::check_all(ReferenceBackend::new);
}
