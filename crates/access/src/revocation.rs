//! End of a key while requests with it run. A key that is no longer accepted ends its open streams too.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::watch;

/// Signal that a key is no longer accepted. All readings of the key file that have the key share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Revocation(Arc<watch::Sender<bool>>);

impl Revocation {
    /// Ends all requests with the key.
    pub(crate) fn revoke(&self) {
        self.0.send_replace(true);
    }
}

/// Wait for the end of a request's key.
pub struct KeyEnd(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl KeyEnd {
    /// Waits for the signal. Without a key there is none.
    pub(crate) fn of(revocation: Option<&Revocation>) -> KeyEnd {
        KeyEnd(revocation.map(|Revocation(sender)| {
            let mut receiver = sender.subscribe();
            Box::pin(async move { drop(receiver.wait_for(|revoked| *revoked).await) }) as Pin<Box<_>>
        }))
    }

    /// Whether the key has ended. If not, the task is woken when it does.
    pub fn poll_ended(&mut self, context: &mut Context<'_>) -> bool {
        let Some(future) = &mut self.0 else { return false };
        let ended = future.as_mut().poll(context) == Poll::Ready(());
        if ended {
            self.0 = None;
        }
        ended
    }
}

impl fmt::Debug for KeyEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "KeyEnd(of a key)" } else { "KeyEnd(never)" })
    }
}
