//! Tests of the choice of experts.

use super::largest;

// `tests/cpu/moe.rs` needs steps whose down outputs are summed in several runs.
const _: () = assert!(300 * 8 * 512 > super::PARTIAL && 512 > super::PARTIAL_OUTPUTS_MIN);

#[test]
fn the_largest_come_first_and_of_equals_the_first() {
    let chosen = |scores: &[f32], used: usize| {
        let (mut experts, mut top) = (vec![9; used], vec![0.0; used]);
        largest(scores, &mut experts, &mut top).then_some((experts, top))
    };
    assert_eq!(chosen(&[1.0, 3.0, 2.0], 2), Some((vec![1, 2], vec![3.0, 2.0])));
    assert_eq!(chosen(&[1.0, 3.0, 2.0], 3), Some((vec![1, 2, 0], vec![3.0, 2.0, 1.0])));
    assert_eq!(chosen(&[0.0, -0.0, 0.0, 1.0, 1.0], 3), Some((vec![3, 4, 0], vec![1.0, 1.0, 0.0])));
    let low = f32::NEG_INFINITY;
    assert_eq!(chosen(&[low, low, f32::INFINITY], 2), Some((vec![2, 0], vec![f32::INFINITY, low])));
    for at in 0..3 {
        let mut scores = [1.0, 2.0, 3.0];
        scores[at] = f32::NAN;
        assert_eq!(chosen(&scores, 1), None);
    }
}
