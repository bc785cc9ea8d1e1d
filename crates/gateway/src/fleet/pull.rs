//! Download of a model on every serving daemon, reported as one: each has its own store, and the next request
//! for the model may go to any.

use std::sync::Arc;

use futures_util::{
    Stream, StreamExt as _,
    future::join_all,
    stream::{self, BoxStream, SelectAll},
};
use hanzo_engine_proto::v1::{PullProgress, PullRequest};
use tonic::Status;

use super::{
    dispatch::{Fleet, blame},
    health::DaemonState,
    member::Member,
    union,
};
use crate::retry_reason::is_gone;

type Step = Result<PullProgress, Status>;

/// Downloads on several daemons.
struct PullStreams {
    /// Progress events, with the daemon's index in `far`.
    steps: SelectAll<BoxStream<'static, (usize, Step)>>,
    far: Vec<Option<PullProgress>>, // last progress; None: that daemon is gone
}

impl Fleet {
    /// Downloads on all serving daemons. An error of one ends the whole, with the daemon's name; repeating the
    /// download resumes the others. Unreachable daemons are skipped while another one downloads. Dropping the
    /// stream leaves all downloads.
    pub(crate) async fn pull(
        &self,
        request: PullRequest,
    ) -> Result<impl Stream<Item = Step> + Send + use<>, Status> {
        let (out, mut serving) = self.out_and_not();
        serving.retain(|member| !matches!(member.state(), DaemonState::Draining));
        let (mut streams, mut gone) = (Vec::new(), None);
        for members in [serving, out] {
            for (member, begun) in begin(members, &request).await {
                match begun {
                    Ok(steps) => streams.push(named(member, streams.len(), steps)),
                    Err(status) if is_gone(&status) => gone = Some(of(&member.place.name, status)),
                    Err(status) => return Err(of(&member.place.name, status)),
                }
            }
            if !streams.is_empty() {
                break;
            }
        }
        if streams.is_empty() {
            return Err(gone.unwrap_or_else(|| self.nobody()));
        }
        self.look_again();
        let far = vec![Some(PullProgress::default()); streams.len()];
        let pulling = PullStreams { steps: stream::select_all(streams), far };
        Ok(stream::unfold(Some(pulling), |pulling| async move {
            let mut pulling = pulling?;
            match pulling.next().await? {
                Ok(step) => Some((Ok(step), Some(pulling))),
                Err(status) => Some((Err(status), None)),
            }
        }))
    }
}

impl PullStreams {
    /// Combined progress after the next event.
    async fn next(&mut self) -> Option<Step> {
        let (at, step) = self.steps.next().await?;
        match step {
            Ok(step) => self.far[at] = Some(step),
            Err(status) => {
                self.far[at] = None;
                if !is_gone(&status) || self.far.iter().all(Option::is_none) {
                    return Some(Err(status));
                }
            }
        }
        let far: Vec<PullProgress> = self.far.iter().flatten().cloned().collect();
        Some(Ok(union::pulls(&far)))
    }
}

/// Starts the download on each daemon.
async fn begin(
    members: Vec<Arc<Member>>,
    request: &PullRequest,
) -> Vec<(Arc<Member>, Result<tonic::Streaming<PullProgress>, Status>)> {
    let begun = members.into_iter().map(|member| {
        let (mut client, request) = (member.client.clone(), request.clone());
        async move {
            let answer = client.pull(request).await.inspect_err(|status| blame(&member, status));
            (member, answer.map(tonic::Response::into_inner))
        }
    });
    join_all(begun).await
}

/// Progress of one daemon. Its own errors get its name; connection errors keep their cause.
fn named(
    member: Arc<Member>,
    at: usize,
    steps: tonic::Streaming<PullProgress>,
) -> BoxStream<'static, (usize, Step)> {
    let steps = steps.map(move |step| {
        if let Ok(PullProgress { stored: Some(model), .. }) = &step {
            // The stored models are listed only now and then, so the new one is recorded at once.
            member.keeps(model.name.clone());
        }
        let step = step.map_err(|status| match is_gone(&status) {
            true => {
                blame(&member, &status);
                status
            }
            false => of(&member.place.name, status),
        });
        (at, step)
    });
    steps.boxed()
}

/// Adds a daemon's name to a status.
pub(super) fn of(name: &str, status: Status) -> Status {
    let (code, metadata) = (status.code(), status.metadata().clone());
    Status::with_metadata(code, format!("engine {name}: {}", status.message()), metadata)
}
