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
use crate::{carrier::Client, head::Head, silence::while_alive};

/// State of a generation.
enum Phase {
    /// No event yet.
    Begun(Box<Begun>),
    /// Events have been passed on.
    Going {
        events: Streaming<InferEvent>,
        lease: Lease,
    },
    Over,
}

/// State needed to ask another daemon.
struct Begun {
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
        let begun = Begun { fleet: Arc::clone(self), request, key, head, attempts, on };
        Ok(stream::unfold(Phase::Begun(Box::new(begun)), |phase| async move {
            match phase {
                Phase::Begun(begun) => first(*begun).await,
                Phase::Going { events, lease } => next(events, lease).await,
                Phase::Over => None,
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
    let call = |mut client: Client, request: InferRequest| {
        let head = head.clone();
        async move { client.infer(head.over(request)).await }
    };
    let (lease, has, answer) = fleet.ask_with(route, request, call, attempts).await?;
    let answer: Response<Streaming<InferEvent>> = answer;
    Ok(On { events: answer.into_inner(), lease, has })
}

type Step = Option<(Result<InferEvent, Status>, Phase)>;

async fn first(mut begun: Begun) -> Step {
    loop {
        let Begun { fleet, request, key, head, attempts, on } = &mut begun;
        let status = match while_alive(&on.lease.0.client, on.events.message()).await {
            Ok(None) => return None,
            Ok(Some(event)) if matches!(event.event, Some(Event::Loading(_))) => {
                return Some((Ok(event), Phase::Begun(Box::new(begun))));
            }
            Ok(Some(event)) => {
                let On { events, lease, .. } = begun.on;
                return Some((Ok(event), Phase::Going { events, lease }));
            }
            Err(status) => status,
        };
        if let Err(status) = fleet.judge(&on.lease, on.has, status, attempts) {
            return Some((Err(status), Phase::Over));
        }
        match begin(fleet, request, *key, head, attempts).await {
            Ok(another) => *on = another,
            Err(status) => return Some((Err(status), Phase::Over)),
        }
    }
}

async fn next(mut events: Streaming<InferEvent>, lease: Lease) -> Step {
    match while_alive(&lease.0.client, events.message()).await {
        Ok(None) => None,
        Ok(Some(event)) => Some((Ok(event), Phase::Going { events, lease })),
        Err(status) => {
            blame(&lease.0, &status);
            Some((Err(status), Phase::Over))
        }
    }
}
