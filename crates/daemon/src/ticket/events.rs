//! The events of one job on their way from its worker to its client, and who wakes whom. A bounded number of them lie
//! between the two. The worker never waits: where the next events might not fit it pauses the job, and the reader that has
//! made room, or leaves, wakes it.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use crate::{
    limits::room_to_resume,
    sync::{AtomicBool, fence, mpsc},
};

/// The worker's end.
pub(crate) struct Sender<T> {
    events: mpsc::Sender<T>,
    paused: Arc<AtomicBool>,
}

/// The client's end. Dropping it is the cancellation.
pub(crate) struct Receiver<T> {
    events: mpsc::Receiver<T>,
    paused: Arc<AtomicBool>,
    worker: Waker,
}

/// The two ends, with room for so many events between them; `worker` is woken when the client reads or leaves.
pub(crate) fn channel<T>(events_max: usize, worker: Waker) -> (Sender<T>, Receiver<T>) {
    let (sender, events) = mpsc::channel(events_max);
    let paused = Arc::new(AtomicBool::new(false));
    (Sender { events: sender, paused: paused.clone() }, Receiver { events, paused, worker })
}

impl<T> Sender<T> {
    /// Whether the client has left.
    pub(crate) fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    /// Whether the job was paused and its client reads again: the pause is over.
    pub(crate) fn resumes(&self) -> bool {
        let room = room_to_resume(self.events.max_capacity());
        let resumes = self.paused.load(Ordering::Relaxed) && self.events.capacity() >= room;
        if resumes {
            self.paused.store(false, Ordering::Relaxed);
        }
        resumes
    }

    /// Sends an event. There is room: the job is paused while another step's events might not fit. That a client left is
    /// seen by the next look.
    pub(crate) fn send(&self, event: T) {
        let _ = self.events.try_send(event);
    }

    /// Whether the job must pause, because there is not room for so many events. Not asked again until it resumed.
    pub(crate) fn must_pause(&self, events: usize) -> bool {
        if self.events.capacity() >= events || self.paused.swap(true, Ordering::Relaxed) {
            return false;
        }
        // Pairs with the fence in `Receiver::poll_next`: either the reader sees `paused` and wakes the worker, or the
        // worker's next look sees the room that the reader made.
        fence(Ordering::SeqCst);
        true
    }
}

impl<T> Receiver<T> {
    /// The next event; none when the worker has dropped its end.
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
        // Closed first: the worker that wakes must see it.
        self.events.close();
        self.worker.wake_by_ref();
    }
}
