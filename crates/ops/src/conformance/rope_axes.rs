//! Checks of `rope` and `rope_to_cache` for rows with three positions.

use super::bounds::{CaseErrors, hold, same_bits};
use super::random::Random;
use super::rig::{Rig, ok, rows_batch, whole_batch};
use super::rope::{LIMITS, turn_slack};
use crate::reference::{ReferenceBackend, formulas};
use crate::{
    AnyBackend, AttentionParams, Batch, HeadShape, KvLayout, KvSpec, KvType, QkvParams, Rope, RopeAxes,
    RopeKind, Rounding, StepLimits,
};

/// Heads of these checks. `AXES_PAIRS` is the number of their pairs.
const AXES_SHAPE: HeadShape = HeadShape { heads: 2, kv_heads: 1, head_dim: 40 };
const AXES_ROWS: usize = 11;
const AXES_PAIRS: usize = 18;
/// Upper bound of positions.
const AXES_POSITIONS: u32 = 90;

/// Rows with three positions, and the assignment of positions to pairs.
struct AxesCase {
    kind: RopeKind,
    axes: RopeAxes,
    inv_freq: Vec<f32>,
    x: Vec<f32>, // (AXES_ROWS, qkv_width)
    places: Vec<[u32; 3]>,
}

impl AxesCase {
    fn all(rounding: Rounding, random: &mut Random) -> Vec<AxesCase> {
        let kinds = [RopeKind::Neox, RopeKind::Interleaved].into_iter().cycle().take(4);
        let case = |(index, kind)| {
            let mut x = random.normals(AXES_ROWS * AXES_SHAPE.qkv_width());
            hold(rounding, &mut x);
            let place = |_| std::array::from_fn(|_| random.below(AXES_POSITIONS as usize) as u32);
            AxesCase {
                kind,
                axes: RopeAxes { sections: [8, 6, 4], interleaved: index >= 2 },
                inv_freq: (0..AXES_PAIRS as i32).map(|pair| 0.9f32.powi(pair)).collect(),
                x,
                places: (0..AXES_ROWS).map(place).collect(),
            }
        };
        kinds.enumerate().map(case).collect()
    }

    fn name(&self, op: &str) -> String {
        format!("{op} by three positions, {:?}, {:?}", self.kind, self.axes)
    }

    fn rig(&self, backend: AnyBackend) -> Rig {
        let (rows, width) = (AXES_ROWS, AXES_SHAPE.qkv_width());
        Rig::new(backend, &StepLimits { rows, width, heads: AXES_SHAPE, ..LIMITS })
    }

    /// Three equal positions for each row.
    fn as_text() -> Vec<[u32; 3]> {
        (0..AXES_ROWS as u32).map(|at| [at; 3]).collect()
    }

    fn params<'a, V>(&self, inv_freq: &'a V, axes: Option<RopeAxes>) -> QkvParams<&'a V> {
        let rope = Some(Rope { kind: self.kind, inv_freq, magnitude: 1.25, axes, long: None });
        QkvParams { rope, ..QkvParams::plain(AXES_SHAPE) }
    }

    /// Checks the first `cols` columns of rows against the formula.
    fn check(&self, what: &str, rounding: Rounding, cols: usize, found: &[f32]) {
        let (width, dim) = (AXES_SHAPE.qkv_width(), AXES_SHAPE.head_dim);
        let mut errors = CaseErrors::of_operands(what.to_owned(), rounding);
        for (row, places) in self.places.iter().enumerate() {
            let mut expected = self.x[row * width..][..width].to_vec();
            for head in expected[..cols].chunks_exact_mut(dim) {
                let position = |pair: usize| places[self.axes.of_pair(pair)];
                formulas::rotate_by(head, self.kind, &self.inv_freq, 1.25, position);
            }
            for col in 0..cols {
                let (head, element) = (col / dim * dim, col % dim);
                let rope = Some((self.kind, &self.inv_freq[..]));
                let slack = turn_slack(rope, &expected[head..], element, AXES_POSITIONS);
                errors.check(row, col, found[row * width + col], expected[col], 0.0, slack);
            }
        }
        errors.finish();
    }
}

/// Checks rows with three positions: `rope` rotates each pair by its axis; with three equal positions the bits are
/// those of one.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_rope_axes(make: &dyn Fn() -> AnyBackend) {
    let width = AXES_SHAPE.qkv_width();
    for case in AxesCase::all(make().facts().rounding, &mut Random::new(91)) {
        let mut rig = case.rig(make());
        let (what, inv_freq) = (case.name("rope"), rig.vector(&case.inv_freq));
        let mut run = |positions: Vec<[u32; 3]>, axes: Option<RopeAxes>| {
            let mut qkv = rig.upload(&case.x, width);
            let batch = Batch { axes: positions, ..whole_batch(&[AXES_ROWS as u32]) };
            rig.step(&batch, |rig| rig.backend.rope(&mut qkv, &case.params(&inv_freq, axes)));
            rig.download(&what, &qkv, AXES_ROWS, width)
        };
        let found = run(case.places.clone(), Some(case.axes));
        let [text, plain] = [run(AxesCase::as_text(), Some(case.axes)), run(Vec::new(), None)];
        case.check(
            &what,
            rig.rounding,
            (AXES_SHAPE.heads + AXES_SHAPE.kv_heads) * AXES_SHAPE.head_dim,
            &found,
        );
        same_bits(&what, &text, &plain, width);
    }
}

/// Same as [`check_rope_axes`] for `rope_to_cache`: queries by the formula, keys through attention over them.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_rope_to_cache_axes(make: &dyn Fn() -> AnyBackend) {
    let q_width = AXES_SHAPE.q_width();
    for case in AxesCase::all(make().facts().rounding, &mut Random::new(92)) {
        let mut rig = case.rig(make());
        let (what, all) = (case.name("rope_to_cache"), Some(case.axes));
        let (found, attended) = rope_and_attend(&mut rig, &case, case.places.clone(), all);
        let mut reference = case.rig(AnyBackend::new(ReferenceBackend::new()));
        let (_, expected) = rope_and_attend(&mut reference, &case, case.places.clone(), all);
        let text = rope_and_attend(&mut rig, &case, AxesCase::as_text(), all);
        let plain = rope_and_attend(&mut rig, &case, Vec::new(), None);
        case.check(&what, rig.rounding, q_width, &found);
        let what = format!("attention over keys turned by three positions, {what}");
        let mut errors = CaseErrors::of_operands(what.clone(), rig.rounding);
        for (i, (&found, &expected)) in attended.iter().zip(&expected).enumerate() {
            // The bound of stored keys in the plain case of `rope_to_cache`.
            errors.check(i / q_width, i % q_width, found, expected, 0.0, 0.03);
        }
        errors.finish();
        let queries = |rows: &[f32]| -> Vec<f32> {
            rows.chunks_exact(AXES_SHAPE.qkv_width()).flat_map(|row| row[..q_width].iter().copied()).collect()
        };
        same_bits(&what, &queries(&text.0), &queries(&plain.0), q_width);
        same_bits(&what, &text.1, &plain.1, q_width);
    }
}

/// `[q | k | v]` after `rope_to_cache`, of which only the queries are compared, and attention over the stored keys.
fn rope_and_attend(
    rig: &mut Rig,
    case: &AxesCase,
    positions: Vec<[u32; 3]>,
    axes: Option<RopeAxes>,
) -> (Vec<f32>, Vec<f32>) {
    let HeadShape { kv_heads, head_dim, .. } = AXES_SHAPE;
    let layers = vec![KvLayout::Heads { kv_heads, head_dim, window: None }];
    let mut kv =
        ok("kv", rig.backend.kv(&KvSpec { layers, blocks: 1, kv_type: KvType::F16, ..KvSpec::default() }));
    let inv_freq = rig.vector(&case.inv_freq);
    let (width, q_width) = (AXES_SHAPE.qkv_width(), AXES_SHAPE.q_width());
    let (mut qkv, mut out) = (rig.upload(&case.x, width), rig.blank(AXES_ROWS, q_width));
    let batch = Batch { axes: positions, ..rows_batch(&[0; AXES_ROWS]) };
    let params = AttentionParams::of(AXES_SHAPE, 1.0 / (head_dim as f32).sqrt());
    rig.step(&batch, |rig| {
        rig.backend.rope_to_cache(&mut qkv, &case.params(&inv_freq, axes), &mut kv, 0);
        rig.backend.attention(&qkv, &params, &kv, 0, &mut out);
    });
    let what = "rope_to_cache by three positions";
    (rig.download(what, &qkv, AXES_ROWS, width), rig.download(what, &out, AXES_ROWS, q_width))
}
