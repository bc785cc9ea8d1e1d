//! What a network has on one of two devices, or on both.

use std::cell::{Cell, Ref, RefCell, RefMut};

use crate::{Backend, KvPlace, KvSpec};

const ELSEWHERE: &str = "an op of a device that has not what it names: it was packed in another stage";

/// One of two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    First,
    Second,
}

/// Something that a device has, or each of both.
#[derive(Debug)]
pub enum Placed<X, Y> {
    /// The first device's.
    First(X),
    /// The second device's.
    Second(Y),
    /// One of each.
    Both(X, Y),
}

impl<X, Y> Placed<X, Y> {
    pub(super) fn first(&self) -> &X {
        match self {
            Placed::First(of) | Placed::Both(of, _) => of,
            Placed::Second(_) => panic!("{ELSEWHERE}"),
        }
    }

    pub(super) fn second(&self) -> &Y {
        match self {
            Placed::Second(of) | Placed::Both(_, of) => of,
            Placed::First(_) => panic!("{ELSEWHERE}"),
        }
    }

    /// Of one for each head, one of all heads.
    pub(super) fn joined<P, Q>(
        parts: Vec<Placed<X, Y>>,
        first: impl FnOnce(Vec<X>) -> P,
        second: impl FnOnce(Vec<Y>) -> Q,
    ) -> Placed<P, Q> {
        let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                Placed::First(of) => firsts.push(of),
                Placed::Second(of) => seconds.push(of),
                Placed::Both(one, other) => {
                    firsts.push(one);
                    seconds.push(other);
                }
            }
        }
        match (firsts.is_empty(), seconds.is_empty()) {
            (false, true) => Placed::First(first(firsts)),
            (true, _) => Placed::Second(second(seconds)),
            (false, false) => Placed::Both(first(firsts), second(seconds)),
        }
    }
}

/// Activations with a place on each device that has layers. What the host writes is written to both; what an op writes is on its
/// device alone, until it is read on the other.
pub struct SplitBuffer<A: Backend, B: Backend> {
    first: RefCell<Option<A::Buffer>>,
    second: RefCell<B::Buffer>,
    cols: usize,
    on: Cell<[bool; 2]>, // where the batch's rows are
}

impl<A: Backend, B: Backend> SplitBuffer<A, B> {
    pub(super) fn new(first: Option<A::Buffer>, second: B::Buffer, cols: usize) -> Self {
        let on = Cell::new([first.is_some(), true]);
        Self { first: RefCell::new(first), second: RefCell::new(second), cols, on }
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn is_on(&self, side: Side) -> bool {
        self.on.get()[side as usize]
    }

    pub(super) fn also_on(&self, side: Side) {
        let mut on = self.on.get();
        on[side as usize] = true;
        self.on.set(on);
    }

    pub(super) fn only_on(&self, side: Side) {
        self.on.set([side == Side::First, side == Side::Second]);
    }

    /// The first device's, to be read by one of its ops.
    pub(super) fn first(&self) -> Ref<'_, A::Buffer> {
        Ref::map(self.first.borrow(), |buffer| buffer.as_ref().expect(ELSEWHERE))
    }

    pub(super) fn second(&self) -> Ref<'_, B::Buffer> {
        self.second.borrow()
    }

    /// The first device's, for rows on their way: no op runs meanwhile.
    pub(super) fn first_to_fill(&self) -> RefMut<'_, A::Buffer> {
        RefMut::map(self.first.borrow_mut(), |buffer| buffer.as_mut().expect(ELSEWHERE))
    }

    pub(super) fn second_to_fill(&self) -> RefMut<'_, B::Buffer> {
        self.second.borrow_mut()
    }

    pub(super) fn first_mut(&mut self) -> &mut A::Buffer {
        self.first.get_mut().as_mut().expect(ELSEWHERE)
    }

    pub(super) fn second_mut(&mut self) -> &mut B::Buffer {
        self.second.get_mut()
    }

    /// Both, where there are two.
    pub(super) fn both_mut(&mut self) -> (Option<&mut A::Buffer>, &mut B::Buffer) {
        (self.first.get_mut().as_mut(), self.second.get_mut())
    }
}

/// The cache: each device has that of its layers.
pub struct SplitKv<A: Backend, B: Backend> {
    pub(super) first: Option<A::Kv>,
    pub(super) second: Option<B::Kv>,
    pub(super) caches: usize, // layers of the first
}

impl<A: Backend, B: Backend> SplitKv<A, B> {
    /// Whose a layer is, and which of its layers.
    pub(super) fn place(&self, layer: usize) -> (Side, usize) {
        match layer.checked_sub(self.caches) {
            None => (Side::First, layer),
            Some(layer) => (Side::Second, layer),
        }
    }

    pub(super) fn first(&self) -> &A::Kv {
        self.first.as_ref().expect(ELSEWHERE)
    }

    pub(super) fn second(&self) -> &B::Kv {
        self.second.as_ref().expect(ELSEWHERE)
    }

    pub(super) fn first_mut(&mut self) -> &mut A::Kv {
        self.first.as_mut().expect(ELSEWHERE)
    }

    pub(super) fn second_mut(&mut self) -> &mut B::Kv {
        self.second.as_mut().expect(ELSEWHERE)
    }
}

/// The cache of some of the layers: as many blocks in the same groups, in as few planes as they need. None for no layers.
pub(super) fn kv_of(spec: &KvSpec, layers: std::ops::Range<usize>) -> Option<KvSpec> {
    if layers.is_empty() {
        return None;
    }
    let mut of = KvSpec { layers: spec.layers[layers.clone()].to_vec(), ..spec.clone() };
    if !spec.groups.places.is_empty() {
        let mut planes = vec![0; spec.groups.count()];
        let own = layers.zip(&of.layers).map(|(layer, layout)| {
            let KvPlace { group, .. } = spec.groups.place(layer);
            let plane = planes[group];
            // Layers that keep a state are in none.
            planes[group] += usize::from(!matches!(layout, crate::KvLayout::State(_)));
            KvPlace { group, plane }
        });
        of.groups.places = own.collect();
    }
    Some(of)
}
