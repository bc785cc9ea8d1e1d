//! Detection of hanging engines. A request may wait for minutes in an engine's queue, so silence alone proves
//! nothing. Meanwhile the engine is asked whether it is alive; if it does not answer, the request ends.

use std::io;

use futures_util::{Stream, stream};
use hanzo_engine_proto::v1;
use tokio::time::timeout;
use tonic::{Status, Streaming};

use crate::{
    carrier::DaemonClient,
    limits::{ENGINE_QUESTION_TIMEOUT, ENGINE_SILENCE, ENGINE_SILENT_MAX},
    retry_reason::is_gone,
};

/// Awaits an engine's answer for as long as the engine answers other calls.
///
/// # Errors
/// The answer's error, or the loss of an engine that sends nothing.
pub(crate) async fn while_alive<T>(
    engine: &DaemonClient,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    // Boxed, because callers keep this future on the stack.
    let mut answer = Box::pin(answer);
    let mut unanswered = 0;
    loop {
        // The first question may have been lost, so the next one follows at once.
        if unanswered == 0
            && let Ok(answered) = timeout(ENGINE_SILENCE, &mut answer).await
        {
            return answered;
        }
        tokio::select! {
            answered = &mut answer => return answered,
            alive = Box::pin(is_alive(engine)) => unanswered = if alive { 0 } else { unanswered + 1 },
        }
        if unanswered == ENGINE_SILENT_MAX {
            return Err(lost());
        }
    }
}

/// Events of an engine's stream for as long as the engine answers.
pub(crate) fn events_while_alive<T: Send + 'static>(
    engine: DaemonClient,
    events: Streaming<T>,
) -> impl Stream<Item = Result<T, Status>> + Send + Unpin {
    Box::pin(stream::unfold(Some((engine, events)), |state| async move {
        let (engine, mut events) = state?;
        match while_alive(&engine, events.message()).await {
            Ok(event) => event.map(|event| (Ok(event), Some((engine, events)))),
            Err(status) => Some((Err(status), None)),
        }
    }))
}

/// Whether an engine answers, even with an error.
async fn is_alive(engine: &DaemonClient) -> bool {
    let mut engine = engine.clone();
    // No model has this name, so the answer is as short as possible.
    let question = engine.stats(v1::StatsRequest { model: "?".to_owned() });
    match timeout(ENGINE_QUESTION_TIMEOUT, question).await {
        Ok(Ok(_)) => true,
        Ok(Err(status)) => !is_gone(&status),
        Err(_) => false,
    }
}

fn lost() -> Status {
    let time_s = (ENGINE_SILENCE + ENGINE_QUESTION_TIMEOUT * ENGINE_SILENT_MAX).as_secs();
    let reason = format!("it hangs: nothing came from it for {time_s} s");
    // A source distinguishes it from a status sent by an engine.
    Status::from_error(Box::new(io::Error::new(io::ErrorKind::TimedOut, reason)))
}
