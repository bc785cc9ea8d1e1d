//! How long a completion may reason: where its section is full, the tokens that close it are drawn whatever the model would
//! say, and the answer goes on from there.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    job::Job,
    text::{ReasoningEnd, TextModel},
};

/// The bound of one completion's reasoning section.
#[derive(Debug)]
pub(super) struct ReasoningBudget {
    tokens_max: u32,
    end: Arc<ReasoningEnd>,
    state: State,
}

/// What becomes of the section.
#[derive(Debug)]
enum State {
    /// The model goes on with it.
    Open,
    /// These are drawn next.
    Closing(VecDeque<u32>),
}

impl ReasoningBudget {
    /// The bound that a job sets, where the model has a section to be closed.
    pub(super) fn of_job(job: &Job, text: &TextModel) -> Option<ReasoningBudget> {
        let (tokens_max, [answer, call]) = (job.reasoning_tokens_max?, text.reasoning_ends.as_ref()?);
        let must_call = job.calls.as_ref().is_some_and(|calls| calls.required);
        let end = if must_call { call } else { answer }.clone();
        job.split_reasoning.then_some(ReasoningBudget { tokens_max, end, state: State::Open })
    }

    /// The section is open and has so many tokens: closes it if there is room for no more than that takes.
    pub(super) fn reached(&mut self, tokens: u32) {
        let left = self.tokens_max.saturating_sub(tokens) as usize;
        let inside = self.end.inside;
        if matches!(self.state, State::Open) && left <= inside {
            // Where there is no room for it, what stands before the marker is left out.
            let first = if left < inside { self.end.before } else { 0 };
            self.state = State::Closing(self.end.tokens[first..].iter().copied().collect());
        }
    }

    /// The token that is drawn next, if it is not the model's to say.
    pub(super) fn forced(&self) -> Option<u32> {
        match &self.state {
            State::Open => None,
            State::Closing(tokens) => tokens.front().copied(),
        }
    }

    /// A token was drawn. Says whether all that closes the section has been.
    pub(super) fn advance(&mut self) -> bool {
        match &mut self.state {
            State::Open => false,
            State::Closing(tokens) => {
                tokens.pop_front();
                tokens.is_empty()
            }
        }
    }
}
