//! The signals a program is told things by: SIGTERM, SIGQUIT and Ctrl-C end it, the first one gracefully, the second at
//! once; SIGHUP has it read its settings again, and never ends it.

use std::io;

/// Has `act` done at each SIGHUP, from now on. Where there is no such signal it is never done.
///
/// # Errors
/// When the system does not let the signal be caught.
pub fn on_hangup(mut act: impl FnMut() + Send + 'static) -> io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut hangup = signal(SignalKind::hangup())?;
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                act();
            }
        });
    }
    #[cfg(not(unix))]
    let _ = &mut act;
    Ok(())
}

/// Completes at the first SIGTERM, SIGQUIT or Ctrl-C. After that a second one exits the process at once, with status 130.
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
    quit: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn catch() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.quit.recv() => {}
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
