//! Bound on the reasoning section: when it is full, the tokens that close it are forced, and the answer follows.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    job::Job,
    text::{ReasoningEnd, TextModel},
};

/// Bound of a completion's reasoning section.
#[derive(Debug)]
pub(super) struct ReasoningBudget {
    tokens_max: u32,
    end: Arc<ReasoningEnd>,
    state: State,
}

/// State of the section.
#[derive(Debug)]
enum State {
    /// The model continues the section.
    Open,
    /// These tokens are forced next.
    Closing(VecDeque<u32>),
}

impl ReasoningBudget {
    /// Bound that a job sets, if the model has a reasoning section.
    pub(super) fn of_job(job: &Job, text: &TextModel) -> Option<ReasoningBudget> {
        let (tokens_max, [answer, call]) = (job.reasoning_tokens_max?, text.reasoning_ends.as_ref()?);
        let must_call = job.calls.as_ref().is_some_and(|calls| calls.required);
        let end = if must_call { call } else { answer }.clone();
        job.split_reasoning.then_some(ReasoningBudget { tokens_max, end, state: State::Open })
    }

    /// Closes the open section of `tokens` tokens if only the closing tokens still fit.
    pub(super) fn reached(&mut self, tokens: u32) {
        let left = self.tokens_max.saturating_sub(tokens) as usize;
        let inside = self.end.inside;
        if matches!(self.state, State::Open) && left <= inside {
            // Without room for all of it, the text before the marker is left out.
            let first = if left < inside { self.end.before } else { 0 };
            self.state = State::Closing(self.end.tokens[first..].iter().copied().collect());
        }
    }

    /// Next token, if it is forced.
    pub(super) fn forced(&self) -> Option<u32> {
        match &self.state {
            State::Open => None,
            State::Closing(tokens) => tokens.front().copied(),
        }
    }

    /// Advances by one token. Returns whether the section's last closing token was just generated.
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
