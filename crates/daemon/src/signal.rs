//! Signals. SIGTERM, SIGQUIT and Ctrl-C end the program, the first time gracefully and the second time at once.
//! SIGHUP makes it reload its settings.

use hanzo_engine_process::tasks;
use std::io;

/// Calls `act` at each SIGHUP from now on. On systems without this signal it is never called.
///
/// # Errors
/// If the operating system does not allow handling the signal.
pub fn on_hangup(mut act: impl FnMut() + Send + 'static) -> io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut hangup = signal(SignalKind::hangup())?;
        tasks::spawn(async move {
            while hangup.recv().await.is_some() {
                act();
            }
        });
    }
    #[cfg(not(unix))]
    let _ = &mut act;
    Ok(())
}

/// Completes at the first SIGTERM, SIGQUIT or Ctrl-C. A second one then exits the process at once, with status 130.
///
/// # Errors
/// If the operating system does not allow handling the signals.
pub fn shutdown() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut signals = Signals::catch()?;
    Ok(async move {
        signals.next().await;
        tasks::spawn(async move {
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
            // No signal can arrive, so wait for ever.
            std::future::pending::<()>().await;
        }
    }
}
