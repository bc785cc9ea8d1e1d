//! Communication with systemd (sd_notify(3), sd_listen_fds(3)). Does nothing if systemd did not start the
//! program, and on other systems.

use std::{io, net::TcpListener, time::Duration};

/// Watchdog notifications within its timeout.
const TOLD_IN_TIME: u32 = 3;

/// State of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    /// Listening, or done with reloading its settings.
    Ready,
    /// Reloading its settings.
    Reloading,
    /// Draining, and ending afterwards.
    Stopping,
}

/// Notifies systemd of the state. Does nothing without systemd.
pub fn tell(is: Is) {
    #[cfg(target_os = "linux")]
    {
        use sd_notify::NotifyState;
        let told = match is {
            Is::Ready => sd_notify::notify(&[NotifyState::Ready]),
            // With the time, because only a later notification ends the reload.
            Is::Reloading => NotifyState::monotonic_usec_now()
                .and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now])),
            Is::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
        };
        if let Err(error) = told {
            tracing::warn!(%error, ?is, "systemd could not be told");
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = is;
}

/// Notifies the watchdog while the program is `healthy`, if there is one (`WatchdogSec=` of the unit). A
/// watchdog without notifications kills the program and starts it again. Call it in an async runtime, which is
/// then watched too.
pub fn watch(healthy: impl Fn() -> bool + Send + 'static) {
    let Some(within) = watchdog() else { return };
    tokio::spawn(keep_told(within, healthy, || {
        #[cfg(target_os = "linux")]
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
    }));
}

/// Calls `tell` at intervals while the program is `healthy`.
async fn keep_told(within: Duration, healthy: impl Fn() -> bool, mut tell: impl FnMut()) {
    let mut pace = tokio::time::interval(within / TOLD_IN_TIME);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut was_healthy = true;
    loop {
        pace.tick().await;
        let is_healthy = healthy();
        if is_healthy {
            tell();
        } else if was_healthy {
            let watchdog_s = within.as_secs_f64();
            tracing::error!(watchdog_s, "a model's worker makes no progress: the watchdog is told nothing");
        }
        was_healthy = is_healthy;
    }
}

/// Timeout of the watchdog.
fn watchdog() -> Option<Duration> {
    #[cfg(target_os = "linux")]
    return sd_notify::watchdog_enabled().filter(|within| !within.is_zero());
    #[cfg(not(target_os = "linux"))]
    None
}

/// Socket that systemd listens on for this program, the first of a `.socket` unit. systemd holds it while the
/// program is replaced. None without such a unit.
///
/// # Errors
/// If it is no listening TCP socket, or several sockets were passed.
pub fn listener() -> io::Result<Option<TcpListener>> {
    #[cfg(target_os = "linux")]
    {
        let mut given = listenfd::ListenFd::from_env();
        if given.len() > 1 {
            let reason = format!("systemd gives {} sockets, and there is one to listen on", given.len());
            return Err(io::Error::other(reason));
        }
        let listener = given.take_tcp_listener(0)?;
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
        }
        Ok(listener)
    }
    #[cfg(not(target_os = "linux"))]
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
        time::Duration,
    };

    use super::keep_told;

    #[tokio::test(start_paused = true)]
    async fn a_stalled_worker_stops_the_watchdog_until_it_goes_on() {
        let (healthy, told) = (AtomicBool::new(true), AtomicU32::new(0));
        let within = Duration::from_secs(3);
        let tell = || {
            told.fetch_add(1, Relaxed);
        };
        let telling = keep_told(within, || healthy.load(Relaxed), tell);
        let watched = async {
            for (is_healthy, least, most) in [(true, 3, 4), (false, 0, 0), (true, 3, 4)] {
                healthy.store(is_healthy, Relaxed);
                let before = told.load(Relaxed);
                tokio::time::sleep(within + Duration::from_millis(1)).await;
                let times = told.load(Relaxed) - before;
                assert!((least..=most).contains(&times), "healthy {is_healthy}: told {times} times");
            }
        };
        tokio::select! {
            () = telling => {}
            () = watched => {}
        }
    }
}
