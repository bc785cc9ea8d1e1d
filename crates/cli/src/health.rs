//! `health`: checks over HTTP whether a server is ready, for health checks where no other HTTP client exists.

use crate::args::HealthArgs;
use crate::connect;
use crate::error::CliError;
use crate::print::print_line;
use crate::size::show_count;
use crate::term::{harmless, interrupted};
use hanzo_engine_access::{ClientTls, pinned};
use hanzo_engine_gateway::{Probe, Serves};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Pause between two checks.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the command.
pub(crate) async fn health(args: HealthArgs) -> Result<(), CliError> {
    let tls = match (args.url.starts_with("https://"), args.pinned) {
        (false, _) => None,
        (true, Some(certificate)) => Some(pinned(&certificate)?),
        (true, None) => Some(ClientTls { ca: args.ca, ..ClientTls::default() }.config(&[])?),
    };
    let probe = Probe::new(&args.url, connect::key(args.api_key.as_deref())?, tls)?;
    let until = Instant::now() + Duration::from_secs(args.wait);
    loop {
        match probe.ask().await {
            Ok(serves) => return print_line(&harmless(&line(&args.url, &serves))),
            Err(error) if Instant::now() >= until => return Err(error.into()),
            Err(_) => tokio::select! {
                () = sleep(PAUSE) => {}
                () = interrupted() => return Err(CliError::Interrupted),
            },
        }
    }
}

fn line(url: &str, serves: &Serves) -> String {
    let models: Vec<String> = serves.models.iter().map(|(name, state)| format!("{name} ({state})")).collect();
    let among = if models.is_empty() { String::new() } else { format!(": {}", models.join(", ")) };
    format!("{url} serves ({}), {}{among}", serves.status, show_count(models.len(), "model"))
}
