//! Placement of a model that fits on no single device. It is split over several GPUs, or over GPUs with as many
//! layers as fit and the CPU for the others. The memory of a split is planned to the byte on each device, as for a
//! single device; this module chooses the split. Layers go to devices in the configured order, the last ones to the
//! first device.

use std::sync::Arc;

use hanzo_engine_runtime::ModelFiles;

use super::OpenedFiles;
use crate::{device::Device, gpu_layers::LayerDistribution, limits::CONTEXT_BESIDE_OTHERS, models::Models};

/// More memory than any plan can need.
const PLENTY: u64 = u64::MAX / 2;

/// Precision of the search for the longest context, as a fraction of it.
const CONTEXT_PART: usize = 32;

/// Planned model that several devices share.
#[derive(Clone)]
pub(crate) struct SharedPlan {
    pub(crate) sharing: LayerDistribution,
    /// Planner of the memory on each device.
    pub(crate) planner: Arc<dyn Device>,
    /// Places of the other devices in the same order: GPUs in the configured order, then the CPU. The fixed order
    /// prevents reservations in opposite order by two loads.
    pub(crate) beside: Vec<usize>,
}

impl OpenedFiles {
    /// Puts as many layers on these GPUs as fit, or exactly `layers` of them, and the others on the CPU. Returns
    /// whether that is possible.
    pub(super) fn share(
        &mut self,
        models: &Models,
        cards: &[usize],
        processor: usize,
        layers: Option<usize>,
    ) -> bool {
        // The first GPUs may be too small for any layer.
        (0..cards.len()).any(|first| self.share_from(models, &cards[first..], processor, layers))
    }

    fn share_from(
        &mut self,
        models: &Models,
        cards: &[usize],
        processor: usize,
        layers: Option<usize>,
    ) -> bool {
        let places: Vec<usize> = cards.iter().copied().chain([processor]).collect();
        let Some(most) = self.most(models, &places) else { return false };
        // As many layers as leave room for a useful context, otherwise as many as fit at all.
        let tried = [most.min(CONTEXT_BESIDE_OTHERS), 1];
        let shared = tried.into_iter().find_map(|tokens| self.fill(models, &places, tokens, layers));
        self.goes_to(places[0], shared)
    }

    /// Puts parts of each layer on all of these GPUs. Returns whether they fit.
    pub(super) fn share_rows(&mut self, models: &Models, cards: &[usize]) -> bool {
        let (Some(files), Some((&first, beside))) = (self.files.decoder(), cards.split_first()) else {
            return false;
        };
        if beside.is_empty() {
            return false;
        }
        let names = beside.iter().map(|&place| models.places[place].device.name());
        let sharing = match LayerDistribution::by_rows(files, names) {
            Ok(sharing) => sharing,
            Err(error) => {
                tracing::info!(model = self.name, "not by rows: {error}");
                return false;
            }
        };
        let Some(planner) = models.places[first].device.sharing(&sharing) else { return false };
        let room: Vec<u64> = cards.iter().map(|&place| models.places[place].budget.total_bytes()).collect();
        if let Err(error) = self.choose_on(models, &*planner, &room) {
            tracing::info!(model = self.name, "not by rows: {error}");
            return false;
        }
        self.goes_to(first, Some(SharedPlan { sharing, planner, beside: beside.to_vec() }))
    }

    /// Splits all layers over as few of these GPUs as possible. A useful context should fit, otherwise any context.
    /// Among the choices it takes the one with the longest context, then puts as many layers as possible on the
    /// first GPU. Returns whether they fit.
    pub(super) fn share_cards(&mut self, models: &Models, cards: &[usize]) -> bool {
        let pairs = cards
            .iter()
            .enumerate()
            .flat_map(|(at, &beside)| cards[..at].iter().map(move |&card| vec![card, beside]));
        let more = (3..=cards.len()).map(|count| cards[..count].to_vec());
        let together: Vec<Vec<usize>> = pairs.chain(more).collect();
        let found = [CONTEXT_BESIDE_OTHERS, 1].into_iter().find_map(|tokens| {
            let longest = |places: &Vec<usize>| self.longest(models, places, tokens);
            together.iter().find_map(|places| Some((places[0], longest(places)?)))
        });
        let Some((place, shared)) = found else { return false };
        self.goes_to(place, Some(shared))
    }

    /// Split over these places with the longest context, which has at least this many tokens or the model's
    /// maximum.
    fn longest(&self, models: &Models, places: &[usize], tokens: usize) -> Option<SharedPlan> {
        let most = self.most(models, places)?;
        let fill = |tokens| self.fill(models, places, tokens, None);
        let (mut fits, mut beyond) = (tokens.min(most), most + 1);
        let mut best = fill(fits)?;
        let mut next = most;
        while beyond - fits > (fits / CONTEXT_PART).max(1) {
            match fill(next) {
                Some(shared) => (fits, best) = (next, shared),
                None => beyond = next,
            }
            next = fits + (beyond - fits) / 2;
        }
        Some(best)
    }

    fn goes_to(&mut self, place: usize, shared: Option<SharedPlan>) -> bool {
        let Some(shared) = shared else { return false };
        tracing::info!(model = self.name, "on {}", shared.planner.describe());
        (self.place, self.shared) = (place, Some(shared));
        true
    }

    /// Longest context in these places if memory were unlimited.
    fn most(&self, models: &Models, places: &[usize]) -> Option<usize> {
        let shared = shared_on(models, self.files.decoder()?, &places[..2], &[0])
            .or_else(|| shared_on(models, self.files.decoder()?, &places[..2], &[1]))?;
        self.context(models, &shared, &[PLENTY; 2])
    }

    /// Context length of a split with this much free memory.
    fn context(&self, models: &Models, shared: &SharedPlan, free: &[u64]) -> Option<usize> {
        let size = self.choose_on(models, &*shared.planner, free).ok()?;
        Some(size.engine.context_tokens_max())
    }

    /// Split over these places. Each gets as many layers as leave room for a context of this many tokens, and the
    /// last place gets the rest. `before` fixes the number of layers before the last place. `None` if the places
    /// are too small, or the first is too small for any layer.
    fn fill(
        &self,
        models: &Models,
        places: &[usize],
        tokens: usize,
        before: Option<usize>,
    ) -> Option<SharedPlan> {
        let files = self.files.decoder()?;
        let layers = files.spec.layers.len();
        let total = |place: &usize| models.places[*place].budget.total_bytes();
        let (last, firsts) = places.split_last()?;
        // Places that get layers, with the number of layers left after each.
        let (mut kept, mut left) = (Vec::new(), Vec::new());
        let mut rest = layers;
        for (at, &place) in firsts.iter().enumerate() {
            let have: Vec<usize> = kept.iter().copied().chain([place]).collect();
            let room: Vec<u64> = have.iter().map(total).chain([PLENTY]).collect();
            let behind = [have, vec![firsts.get(at + 1).copied().unwrap_or(*last)]].concat();
            let split = |count: usize| {
                let left: Vec<usize> = left.iter().copied().chain([rest - count]).collect();
                shared_on(models, files, &behind, &counts(&left)).filter(|shared| shared.sharing.is_some())
            };
            let most = before.map_or(rest, |before| before - (layers - rest));
            let possible: Vec<usize> = (1..=most).filter(|&count| split(count).is_some()).collect();
            let fits = |count: &usize| {
                let shared = split(*count);
                shared.and_then(|shared| self.context(models, &shared, &room)).is_some_and(|of| of >= tokens)
            };
            match possible.partition_point(fits).checked_sub(1).map(|at| possible[at]) {
                Some(count) => {
                    rest -= count;
                    kept.push(place);
                    left.push(rest);
                }
                None if at == 0 => return None,
                None => {}
            }
        }
        if before.is_some_and(|before| layers - rest != before) {
            return None;
        }
        kept.push(*last);
        let shared = shared_on(models, files, &kept, &counts(&left))?;
        let room: Vec<u64> = kept.iter().map(total).collect();
        self.context(models, &shared, &room).is_some_and(|of| of >= tokens).then_some(shared)
    }
}

/// Number of layers of each place but the first, from the number left after each.
fn counts(left: &[usize]) -> Vec<usize> {
    let next = left.iter().skip(1).chain([&0]);
    left.iter().zip(next).map(|(left, next)| left - next).collect()
}

/// Plan for a model whose last layers are on the first of these places, a GPU, and `counts` layers on each of the
/// others, down to the first layer. `None` if it cannot be cut there, or the devices cannot share.
pub(super) fn shared_on(
    models: &Models,
    files: &ModelFiles,
    places: &[usize],
    counts: &[usize],
) -> Option<SharedPlan> {
    let (card, beside) = places.split_first()?;
    let names = beside.iter().map(|&place| models.places[place].device.name());
    let others: Vec<_> = names.zip(counts.iter().copied()).collect();
    let sharing = LayerDistribution::of(files, &others).ok()?;
    let planner = models.places[*card].device.sharing(&sharing)?;
    Some(SharedPlan { sharing, planner, beside: beside.to_vec() })
}
