//! A pull on every daemon that serves, as one: each has a store of its own, and whoever asks for the model next may be sent to any.

use std::sync::Arc;

use futures_util::{
    Stream, StreamExt as _,
    future::join_all,
    stream::{self, BoxStream},
};
use hanzo_engine_proto::v1::{PullProgress, PullRequest};
use tonic::Status;

use super::{
    dispatch::{Fleet, blame},
    health::State,
    union,
};

type Step = Result<PullProgress, Status>;

impl Fleet {
    /// Pulls everywhere. Where one daemon fails its error is the end, with its name, and the others are left to go on where they
    /// were when the same is pulled again. Dropping the stream is leaving all of them.
    pub(crate) async fn pull(
        &self,
        request: PullRequest,
    ) -> Result<impl Stream<Item = Step> + Send + use<>, Status> {
        let members = self.members();
        let up = members.iter().filter(|member| matches!(member.state(), State::Up { .. } | State::Unknown));
        let begun = up.map(|member| {
            let (mut client, request) = (member.client.clone(), request.clone());
            async move {
                let answer = client.pull(request).await.inspect_err(|status| blame(member, status));
                (Arc::clone(member), answer)
            }
        });
        let mut streams: Vec<BoxStream<'static, (usize, Step)>> = Vec::new();
        for (at, (member, answer)) in join_all(begun).await.into_iter().enumerate() {
            let steps = answer.map_err(|status| of(&member.place.name, status))?.into_inner();
            let steps = steps.map(move |step| {
                if let Ok(PullProgress { stored: Some(model), .. }) = &step {
                    // It lists its store now and then alone.
                    member.keeps(model.name.clone());
                }
                (at, step.map_err(|status| of(&member.place.name, status)))
            });
            streams.push(steps.boxed());
        }
        if streams.is_empty() {
            return Err(self.nobody());
        }
        self.look_again();
        let far = vec![PullProgress::default(); streams.len()];
        Ok(stream::unfold(Some((stream::select_all(streams), far)), |pulling| async move {
            let (mut streams, mut far) = pulling?;
            match streams.next().await? {
                (at, Ok(step)) => {
                    far[at] = step;
                    Some((Ok(union::pulls(&far)), Some((streams, far))))
                }
                (_, Err(status)) => Some((Err(status), None)),
            }
        }))
    }
}

/// What that daemon says, with its name.
pub(super) fn of(name: &str, status: Status) -> Status {
    let (code, metadata) = (status.code(), status.metadata().clone());
    Status::with_metadata(code, format!("engine {name}: {}", status.message()), metadata)
}
