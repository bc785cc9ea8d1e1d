//! A worker and the reader of one job's events: all of them arrive in their order, and neither sleeps for ever. The worker
//! does not join the reader, whose end is checked too: loom takes no unparking of a thread that joins.

use std::task::{Context, Poll};

use loom::thread;

use crate::{
    events::{Receiver, Sender, channel},
    sync::waker,
};

const EVENTS: usize = 2;
const EVENTS_MAX: usize = 1;

/// What the worker's loop does for a job: it looks, runs a step that makes one event, and parks while the job is paused.
fn work(events: &Sender<usize>) {
    let (mut sent, mut is_paused) = (0, false);
    while sent < EVENTS && !events.is_closed() {
        is_paused &= !events.resumes();
        if is_paused {
            thread::park();
            continue;
        }
        events.send(sent);
        sent += 1;
        is_paused = events.must_pause(1);
    }
}

fn next(events: &mut Receiver<usize>) -> Option<usize> {
    let waker = waker(thread::current(), false);
    loop {
        match events.poll_next(&mut Context::from_waker(&waker)) {
            Poll::Ready(event) => return event,
            Poll::Pending => thread::park(),
        }
    }
}

/// A client that reads to the end.
pub(crate) fn all() {
    let (sender, mut receiver) = channel(EVENTS_MAX, waker(thread::current(), true));
    thread::spawn(move || {
        for event in 0..EVENTS {
            assert_eq!(next(&mut receiver), Some(event));
        }
        assert_eq!(next(&mut receiver), None);
    });
    work(&sender);
}

/// A client that leaves after its first event.
pub(crate) fn leaves() {
    let (sender, mut receiver) = channel(EVENTS_MAX, waker(thread::current(), true));
    thread::spawn(move || assert_eq!(next(&mut receiver), Some(0)));
    work(&sender);
}
