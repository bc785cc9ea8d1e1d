//! Channel for the events of one job from its worker to its client, with wake-ups. It holds a bounded number of
//! events. The worker never waits: it pauses a job whose next events might not fit. A reader that makes room, or
//! disconnects, wakes the worker.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use crate::{
    limits::room_to_resume,
    sync::{AtomicBool, fence, mpsc},
};

/// Worker's end of the channel.
pub(crate) struct Sender<T> {
    events: mpsc::Sender<T>,
    paused: Arc<AtomicBool>,
}

/// Client's end of the channel. Dropping it cancels the job.
pub(crate) struct Receiver<T> {
    events: mpsc::Receiver<T>,
    paused: Arc<AtomicBool>,
    worker: Waker,
}

/// Creates the two ends with room for `events_max` events. `worker` is woken when the client reads or disconnects.
pub(crate) fn channel<T>(events_max: usize, worker: Waker) -> (Sender<T>, Receiver<T>) {
    let (sender, events) = mpsc::channel(events_max);
    let paused = Arc::new(AtomicBool::new(false));
    (Sender { events: sender, paused: paused.clone() }, Receiver { events, paused, worker })
}

impl<T> Sender<T> {
    /// Whether the client has disconnected.
    pub(crate) fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    /// Whether the job was paused and its client reads again; this ends the pause.
    pub(crate) fn resumes(&self) -> bool {
        let room = room_to_resume(self.events.max_capacity());
        let resumes = self.paused.load(Ordering::Relaxed) && self.events.capacity() >= room;
        if resumes {
            self.paused.store(false, Ordering::Relaxed);
        }
        resumes
    }

    /// Sends an event. There is room, since a job whose next events might not fit is paused. A disconnected client
    /// is noticed at the worker's next check.
    pub(crate) fn send(&self, event: T) {
        let _ = self.events.try_send(event);
    }

    /// Whether the job must pause because there is no room for this many events. Not called again until it resumes.
    pub(crate) fn must_pause(&self, events: usize) -> bool {
        if self.events.capacity() >= events || self.paused.swap(true, Ordering::Relaxed) {
            return false;
        }
        // Pairs with the fence in `Receiver::poll_next`. Either the reader sees `paused` and wakes the worker, or
        // the worker's next check sees the room that the reader made.
        fence(Ordering::SeqCst);
        true
    }
}

impl<T> Receiver<T> {
    /// Next event; `None` when the worker has dropped its end.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let polled = Pin::new(&mut self.events).poll_recv(context);
        if let Poll::Ready(Some(_)) = &polled {
            fence(Ordering::SeqCst);
            let room = room_to_resume(self.events.max_capacity());
            if self.paused.load(Ordering::Relaxed) && self.events.capacity() >= room {
                self.worker.wake_by_ref();
            }
        }
        polled
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // Closed first, since the woken worker must see it.
        self.events.close();
        self.worker.wake_by_ref();
    }
}
