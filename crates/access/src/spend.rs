//! The tokens of one generation, charged to its key as they come, so that a client that leaves has paid for what it got.

use hanzo_engine_proto::v1::{InferEvent, infer_event::Event};

use crate::pass::Pass;

/// What has been charged so far.
#[derive(Debug)]
pub struct Spend {
    pass: Pass,
    prompt: bool,      // its tokens were charged
    choices: Vec<u32>, // tokens of each that were charged
}

impl Spend {
    /// For a generation of so many choices that has not begun.
    pub fn new(pass: Pass, choices: usize) -> Spend {
        Spend { pass, prompt: false, choices: vec![0; choices] }
    }

    /// An event came.
    pub fn see(&mut self, event: &InferEvent) {
        match &event.event {
            Some(Event::Started(started)) => self.started(started.prompt_tokens),
            Some(Event::Delta(delta)) => self.came(delta.choice, delta.token_ids.len()),
            Some(Event::Finished(finished)) => {
                self.finished(finished.choice, finished.usage.unwrap_or_default().completion_tokens);
            }
            Some(Event::PromptLogprobs(_) | Event::Loading(_)) | None => {}
        }
    }

    /// A choice has started; the choices share their prompt.
    pub(crate) fn started(&mut self, prompt_tokens: u32) {
        if !self.prompt {
            self.prompt = true;
            self.pass.spend(prompt_tokens);
        }
    }

    /// So many tokens of a choice came.
    pub(crate) fn came(&mut self, choice: u32, tokens: usize) {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        if let Some(charged) = self.choices.get_mut(choice as usize) {
            *charged = charged.saturating_add(tokens);
            self.pass.spend(tokens);
        }
    }

    /// A choice has finished, with so many tokens in all.
    pub(crate) fn finished(&mut self, choice: u32, tokens: u32) {
        if let Some(charged) = self.choices.get_mut(choice as usize) {
            self.pass.spend(tokens.saturating_sub(*charged));
            *charged = (*charged).max(tokens);
        }
    }
}
