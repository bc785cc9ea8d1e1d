//! Generation on one of several daemons. Until its first event, apart from load progress, another daemon may
//! take over. From then on it ends with its daemon.

use std::sync::Arc;

use futures_util::{Stream, stream};
use hanzo_engine_proto::v1::{InferEvent, InferRequest, infer_event::Event};
use tonic::{Response, Status, Streaming};

use super::{
    affinity::key_of,
    dispatch::{Fleet, Route, blame},
    member::Lease,
    report::Has,
    retry::Attempts,
};
use crate::{carrier::DaemonClient, head::Head, silence::while_alive};

/// State of a generation.
enum GenerationPhase {
    /// No event yet.
    Begun(Box<RetryContext>),
    /// Events have been passed on.
    Going {
        events: Streaming<InferEvent>,
        lease: Lease,
    },
    Over,
}

/// State needed to ask another daemon.
struct RetryContext {
    fleet: Arc<Fleet>,
    request: InferRequest,
    key: Option<u64>,
    head: Head,
    attempts: Attempts,
    on: On,
}

/// Daemon that has accepted the request.
struct On {
    events: Streaming<InferEvent>,
    lease: Lease,
    has: Has,
}

impl Fleet {
    /// Starts a generation. Dropping the future or the stream cancels it.
    pub(crate) async fn infer(
        self: &Arc<Self>,
        request: InferRequest,
        head: Head,
    ) -> Result<impl Stream<Item = Result<InferEvent, Status>> + Send + use<>, Status> {
        let (key, mut attempts) = (key_of(&request), Attempts::default());
        let on = begin(self, &request, key, &head, &mut attempts).await?;
        let retry = RetryContext { fleet: Arc::clone(self), request, key, head, attempts, on };
        Ok(stream::unfold(GenerationPhase::Begun(Box::new(retry)), |phase| async move {
            match phase {
                GenerationPhase::Begun(retry) => first(*retry).await,
                GenerationPhase::Going { events, lease } => next(events, lease).await,
                GenerationPhase::Over => None,
            }
        }))
    }
}

async fn begin(
    fleet: &Fleet,
    request: &InferRequest,
    key: Option<u64>,
    head: &Head,
    attempts: &mut Attempts,
) -> Result<On, Status> {
    let route = Route { model: &request.model, key };
    let call = |mut client: DaemonClient, request: InferRequest| {
        let head = head.clone();
        async move { client.infer(head.over(request)).await }
    };
    let (lease, has, answer) = fleet.ask_with(route, request, call, attempts).await?;
    let answer: Response<Streaming<InferEvent>> = answer;
    Ok(On { events: answer.into_inner(), lease, has })
}

type Step = Option<(Result<InferEvent, Status>, GenerationPhase)>;

async fn first(mut retry: RetryContext) -> Step {
    loop {
        let RetryContext { fleet, request, key, head, attempts, on } = &mut retry;
        let status = match while_alive(&on.lease.0.client, on.events.message()).await {
            Ok(None) => return None,
            Ok(Some(event)) if matches!(event.event, Some(Event::Loading(_))) => {
                return Some((Ok(event), GenerationPhase::Begun(Box::new(retry))));
            }
            Ok(Some(event)) => {
                let On { events, lease, .. } = retry.on;
                return Some((Ok(event), GenerationPhase::Going { events, lease }));
            }
            Err(status) => status,
        };
        if let Err(status) = fleet.judge(&on.lease, on.has, status, attempts) {
            return Some((Err(status), GenerationPhase::Over));
        }
        match begin(fleet, request, *key, head, attempts).await {
            Ok(another) => *on = another,
            Err(status) => return Some((Err(status), GenerationPhase::Over)),
        }
    }
}

async fn next(mut events: Streaming<InferEvent>, lease: Lease) -> Step {
    match while_alive(&lease.0.client, events.message()).await {
        Ok(None) => None,
        Ok(Some(event)) => Some((Ok(event), GenerationPhase::Going { events, lease })),
        Err(status) => {
            blame(&lease.0, &status);
            Some((Err(status), GenerationPhase::Over))
        }
    }
}
