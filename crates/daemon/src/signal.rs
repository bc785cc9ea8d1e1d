//! The signals that end the program: the first asks for a graceful end, the second takes it at once.

use std::io;

/// Completes at the first SIGTERM or Ctrl-C. After that a second one exits the process at once, with status 130.
///
/// # Errors
/// When the system does not let signals be caught.
pub fn shutdown() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut signals = Signals::catch()?;
    Ok(async move {
        signals.next().await;
        tokio::spawn(async move {
            signals.next().await;
            std::process::exit(130);
        });
    })
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn catch() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn catch() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            // No signal can come: wait for ever.
            std::future::pending::<()>().await;
        }
    }
}
