//! What a network has on some of several devices.

use std::cell::{Cell, Ref, RefCell, RefMut};

use crate::{Backend, KvPlace, KvSpec};

const ELSEWHERE: &str = "an op of a device that has not what it names: it was packed in another stage";

/// Something that some devices have, each its own.
#[derive(Debug)]
pub struct Placed<X>(Vec<Option<X>>);

impl<X> Placed<X> {
    pub(super) fn nowhere(devices: usize) -> Self {
        Self((0..devices).map(|_| None).collect())
    }

    pub(super) fn put(&mut self, device: usize, of: X) {
        self.0[device] = Some(of);
    }

    /// A device's.
    pub(super) fn at(&self, device: usize) -> &X {
        self.0[device].as_ref().expect(ELSEWHERE)
    }

    /// What each device has.
    pub fn held(&self) -> impl Iterator<Item = Option<&X>> {
        self.0.iter().map(Option::as_ref)
    }

    /// The devices that have one, and it.
    pub(super) fn held_mut(&mut self) -> impl Iterator<Item = (usize, &mut X)> {
        self.0.iter_mut().enumerate().filter_map(|(device, of)| Some((device, of.as_mut()?)))
    }

    /// Of one for each head, one of all heads.
    pub(super) fn joined<P>(
        parts: Vec<Self>,
        devices: usize,
        join: impl Fn(usize, Vec<X>) -> P,
    ) -> Placed<P> {
        let mut of_devices: Vec<Vec<X>> = (0..devices).map(|_| Vec::new()).collect();
        for part in parts {
            for (all, own) in of_devices.iter_mut().zip(part.0) {
                all.extend(own);
            }
        }
        let join = |(device, of): (usize, Vec<X>)| (!of.is_empty()).then(|| join(device, of));
        Placed(of_devices.into_iter().enumerate().map(join).collect())
    }
}

/// Activations with a place on each device that has layers. What the host writes is written to all; what an op writes is on its
/// device alone, until it is read on others.
pub struct ChainBuffer<B: Backend> {
    places: Vec<RefCell<Option<B::Buffer>>>,
    cols: usize,
    on: Cell<u64>, // a bit for each device that has the batch's rows
}

impl<B: Backend> ChainBuffer<B> {
    /// # Panics
    /// Beyond 64 devices.
    pub(super) fn new(buffers: Vec<Option<B::Buffer>>, cols: usize) -> Self {
        assert!(buffers.len() <= u64::BITS as usize, "{} devices", buffers.len());
        let bit = |(device, buffer): (usize, &Option<B::Buffer>)| u64::from(buffer.is_some()) << device;
        let on = buffers.iter().enumerate().map(bit).sum();
        Self { places: buffers.into_iter().map(RefCell::new).collect(), cols, on: Cell::new(on) }
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn is_on(&self, device: usize) -> bool {
        self.on.get() >> device & 1 == 1
    }

    /// The last device that has the batch's rows.
    pub(super) fn somewhere(&self) -> usize {
        self.on.get().ilog2() as usize
    }

    pub(super) fn also_on(&self, device: usize) {
        self.on.set(self.on.get() | 1 << device);
    }

    pub(super) fn only_on(&self, device: usize) {
        self.on.set(1 << device);
    }

    /// A device's, to be read by one of its ops.
    pub(super) fn at(&self, device: usize) -> Ref<'_, B::Buffer> {
        Ref::map(self.places[device].borrow(), |buffer| buffer.as_ref().expect(ELSEWHERE))
    }

    /// A device's, for rows on their way: no op runs meanwhile.
    pub(super) fn to_fill(&self, device: usize) -> RefMut<'_, B::Buffer> {
        RefMut::map(self.places[device].borrow_mut(), |buffer| buffer.as_mut().expect(ELSEWHERE))
    }

    pub(super) fn at_mut(&mut self, device: usize) -> &mut B::Buffer {
        self.places[device].get_mut().as_mut().expect(ELSEWHERE)
    }

    /// A device's, for an op that writes it anew: it is on that device alone then.
    pub(super) fn to_write(&mut self, device: usize) -> &mut B::Buffer {
        self.only_on(device);
        self.at_mut(device)
    }

    /// The devices that have a place for it, and that.
    pub(super) fn places_mut(&mut self) -> impl Iterator<Item = (usize, &mut B::Buffer)> {
        let places = self.places.iter_mut().enumerate();
        places.filter_map(|(device, place)| Some((device, place.get_mut().as_mut()?)))
    }
}

/// The cache: each device has that of its layers.
pub struct ChainKv<B: Backend> {
    pub(super) parts: Vec<Option<B::Kv>>,
    pub(super) ends: Vec<usize>, // of its layers, behind each device but the last
}

impl<B: Backend> ChainKv<B> {
    /// Whose a layer is, and which of its layers.
    pub(super) fn place(&self, layer: usize) -> (usize, usize) {
        let device = self.ends.partition_point(|&end| end <= layer);
        (device, layer - device.checked_sub(1).map_or(0, |before| self.ends[before]))
    }

    /// The devices that have a part, and that.
    pub(super) fn held(&self) -> impl Iterator<Item = (usize, &B::Kv)> {
        self.parts.iter().enumerate().filter_map(|(device, part)| Some((device, part.as_ref()?)))
    }

    pub(super) fn held_mut(&mut self) -> impl Iterator<Item = (usize, &mut B::Kv)> {
        self.parts.iter_mut().enumerate().filter_map(|(device, part)| Some((device, part.as_mut()?)))
    }

    pub(super) fn at(&self, device: usize) -> &B::Kv {
        self.parts[device].as_ref().expect(ELSEWHERE)
    }

    pub(super) fn at_mut(&mut self, device: usize) -> &mut B::Kv {
        self.parts[device].as_mut().expect(ELSEWHERE)
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
