//! What a worker's process has said and nobody has read yet. Who reads the stream waits while there is no room.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::Thread,
};

use super::wire::Message;
use crate::limits::WORKER_MESSAGES_MAX;

/// See the module. It belongs to the thread that is woken when something came.
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    owner: Thread,
}

#[derive(Default)]
struct State {
    messages: VecDeque<Message>,
    /// Nothing more comes, and why.
    ended: Option<String>,
    /// Nobody reads any more.
    closed: bool,
}

/// What is found in an inbox.
pub(super) enum Found {
    Message(Message),
    /// Nothing more comes, and why.
    Ended(String),
    Nothing,
}

impl Inbox {
    pub(super) fn new(owner: Thread) -> Inbox {
        Inbox { state: Mutex::default(), changed: Condvar::new(), owner }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole after each line.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message behind the others, once there is room.
    pub(super) fn put(&self, message: Message) {
        let full = |state: &mut State| state.messages.len() >= WORKER_MESSAGES_MAX && !state.closed;
        let mut state = self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        state.messages.push_back(message);
        drop(state);
        self.changed.notify_all();
        self.owner.unpark();
    }

    /// Nothing more comes. The first to say so says why.
    pub(super) fn end(&self, reason: String) {
        self.lock().ended.get_or_insert(reason);
        self.changed.notify_all();
        self.owner.unpark();
    }

    /// Nobody reads any more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.messages.is_empty() && state.ended.is_none()
    }

    /// What is there now.
    pub(super) fn take(&self) -> Found {
        let mut state = self.lock();
        let found = state.messages.pop_front();
        let ended = state.ended.clone();
        drop(state);
        match (found, ended) {
            (Some(message), _) => {
                self.changed.notify_all();
                Found::Message(message)
            }
            (None, Some(reason)) => Found::Ended(reason),
            (None, None) => Found::Nothing,
        }
    }

    /// The next message; waits for it.
    ///
    /// # Errors
    /// Why nothing more comes.
    pub(super) fn wait(&self) -> Result<Message, String> {
        let nothing = |state: &mut State| state.messages.is_empty() && state.ended.is_none();
        drop(self.changed.wait_while(self.lock(), nothing).unwrap_or_else(PoisonError::into_inner));
        match self.take() {
            Found::Message(message) => Ok(message),
            Found::Ended(reason) => Err(reason),
            // One thread reads.
            Found::Nothing => Err("its messages were read by another".to_owned()),
        }
    }
}
