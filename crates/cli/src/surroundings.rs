//! Environment of the engine on this machine, for `doctor`: the CPU and memory, the use of the default ports,
//! and with `--network` the model sources and their clocks.

use crate::error::CliError;
use crate::print::print_line;
use crate::size::{show_bytes, show_count};
use crate::term::harmless;
use hanzo_engine_daemon::machine::Machine;
use hanzo_engine_daemon::store::{self, StoreSettings};
use serde::Serialize;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};

/// Default ports.
const PORTS: [(u16, &str); 3] = [(36900, "HTTP"), (36901, "gRPC"), (36902, "/metrics, /healthz and /readyz")];
/// Clock error in seconds beyond which certificates and tokens may fail.
const CLOCK_MAX_S: i64 = 60;

/// Printed form of the environment.
#[derive(Serialize)]
pub(crate) struct Surroundings {
    machine: Machine,
    ports: Vec<Port>,
    hubs: Option<Vec<Hub>>,
}

#[derive(Serialize)]
struct Port {
    port: u16,
    what: &'static str,
    /// `free`, `taken` or `forbidden`.
    state: &'static str,
}

#[derive(Serialize)]
struct Hub {
    url: String,
    error: Option<String>,
    clock_ahead_s: Option<i64>,
}

impl Surroundings {
    /// Inspects the environment. Uses the network only if `network` is true.
    pub(crate) async fn look(network: bool) -> Result<Self, CliError> {
        let hubs = match network {
            true => Some(hubs().await?),
            false => None,
        };
        let port = |(port, what)| Port { port, what, state: state(port) };
        Ok(Self { machine: Machine::of_this_process(), ports: PORTS.map(port).into(), hubs })
    }

    /// Prints it for people.
    pub(crate) fn print(&self) -> Result<(), CliError> {
        for line in self.lines() {
            print_line(&harmless(&line))?;
        }
        Ok(())
    }

    fn lines(&self) -> Vec<String> {
        let machine = &self.machine;
        let bytes = |bytes: Option<u64>| bytes.map_or("an unknown number of bytes".to_owned(), show_bytes);
        let mut lines = vec![format!(
            "{}: {}, computing with {}",
            machine.processor,
            show_count(machine.threads, "thread"),
            machine.tier
        )];
        if !machine.tiers_missing.is_empty() {
            lines.push(format!("- it does not have {}", machine.tiers_missing.join(", ")));
        }
        lines.push(format!(
            "{} of memory, {} available",
            bytes(machine.memory_bytes),
            bytes(machine.memory_available_bytes)
        ));
        if let Some(limit) = machine.memory_limit_bytes {
            lines.push(format!("- the control group may take {}", show_bytes(limit)));
        }
        if let Some(limit) = machine.cpu_limit {
            lines.push(format!("- the control group gets {limit:.1} processors' time"));
        }
        if let Some(driver) = &machine.nvidia_driver {
            let cards = if machine.gpus.is_empty() { "no card".to_owned() } else { machine.gpus.join(", ") };
            lines.push(format!("NVIDIA driver {driver}: {cards}"));
        }
        for card in &machine.cards {
            let memory = match card.memory_free_bytes {
                Some(free) => format!("{}, {} free", show_bytes(card.memory_bytes), show_bytes(free)),
                None => show_bytes(card.memory_bytes),
            };
            lines.push(format!("{}: {memory}", card.name));
            if let Some(fault) = &card.fault {
                lines.push(format!("- no model can be loaded on it: {fault}"));
            }
        }
        if let Some(why) = &machine.cards_missing {
            lines.push(format!("no card: {why}"));
        }
        for Port { port, what, state } in self.ports.iter().filter(|port| port.state != "free") {
            lines.push(format!("- port {port} ({what}) is {state}: an engine that runs, or another program"));
        }
        lines.extend(self.hubs.iter().flatten().map(Hub::line));
        lines.extend(machine.advice.iter().map(|advice| format!("- {advice}")));
        lines
    }
}

impl Hub {
    fn line(&self) -> String {
        match (&self.error, self.clock_ahead_s) {
            (Some(error), _) => format!("- {} does not answer: {error}", self.url),
            (None, Some(ahead)) if ahead.abs() > CLOCK_MAX_S => format!(
                "- {} answers, and its clock is {} s {} this machine's: certificates and tokens may fail for it",
                self.url,
                ahead.abs(),
                if ahead > 0 { "ahead of" } else { "behind" }
            ),
            (None, _) => format!("{} answers", self.url),
        }
    }
}

async fn hubs() -> Result<Vec<Hub>, CliError> {
    let settings = StoreSettings::from_env().map_err(|error| CliError::Usage(error.to_string()))?;
    let reached = store::reachable(&settings).await.map_err(|error| CliError::Start(error.to_string()))?;
    let hub = |reached: store::Reachable| match reached.answer {
        Ok(clock_ahead_s) => Hub { url: reached.url, error: None, clock_ahead_s },
        Err(error) => Hub { url: reached.url, error: Some(error), clock_ahead_s: None },
    };
    Ok(reached.into_iter().map(hub).collect())
}

/// State of a port: whether this program could listen there.
fn state(port: u16) -> &'static str {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => "free",
        Err(error) if error.kind() == ErrorKind::PermissionDenied => "forbidden",
        Err(_) => "taken",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(error: Option<&str>, clock_ahead_s: Option<i64>) -> String {
        Hub { url: "https://hub/".into(), error: error.map(str::to_owned), clock_ahead_s }.line()
    }

    #[test]
    fn hubs_and_clocks_are_told_in_words() {
        assert_eq!(hub(None, Some(2)), "https://hub/ answers");
        assert!(hub(None, Some(-3_600)).contains("3600 s behind this machine's"));
        assert!(hub(None, Some(61)).contains("61 s ahead of"));
        assert_eq!(hub(Some("no route"), None), "- https://hub/ does not answer: no route");
    }

    #[tokio::test]
    async fn what_is_around_is_said_in_lines() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(state(port), "taken");
        let mut around = Surroundings::look(false).await.unwrap();
        around.ports = vec![Port { port, what: "HTTP", state: "taken" }];
        around.machine.cpu_limit = Some(1.5);
        let lines = around.lines().join("\n");
        assert!(lines.contains("computing with") && lines.contains("1.5 processors' time"), "{lines}");
        assert!(lines.contains(&format!("port {port} (HTTP) is taken")), "{lines}");
        assert!(around.hubs.is_none(), "nothing is asked over the network unless that is wanted");
    }
}
