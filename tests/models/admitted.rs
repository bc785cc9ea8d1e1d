//! Places before a model, taken and given back by several threads: never more than there are, and none is lost.

use std::{sync::Arc, time::Instant};

use loom::thread;

use crate::admission::Admission;

/// Three requests for one place; the one that has it begins, and ends.
pub(crate) fn places() {
    let queue = Admission::new(1);
    let ask = |queue: Arc<Admission>| {
        move || match queue.enter() {
            Ok(place) => {
                drop(place.begin());
            }
            Err(full) => assert_eq!(full.capacity, 1),
        }
    };
    let others: Vec<_> = (0..2).map(|_| thread::spawn(ask(queue.clone()))).collect();
    ask(queue.clone())();
    others.into_iter().for_each(|other| other.join().expect("its checks hold"));
    assert_eq!((queue.waiting(), queue.running()), (0, 0), "a place or a count is lost");
    drop(queue.enter().expect("the place is free again"));
}

/// Two batches of one request begin at the same time: it runs once, and its place is free when both are gone.
pub(crate) fn kept() {
    let queue = Admission::new(1);
    let place = queue.enter().expect("a place").keep();
    let batch = place.clone();
    let other = thread::spawn(move || batch.begin(Instant::now()));
    place.begin(Instant::now());
    assert!(queue.running() <= 1 && queue.waiting() <= 1);
    drop(place);
    other.join().expect("it does not panic");
    assert_eq!((queue.waiting(), queue.running()), (0, 0), "a place or a count is lost");
    drop(queue.enter().expect("the place is free again"));
}
