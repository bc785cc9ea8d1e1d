//! Token counts and timings of a generation.

use hanzo_engine_proto::v1;

/// Usage over all prompts and choices of an HTTP request. A prompt counts once, regardless of its choices.
#[derive(Debug, Default)]
pub(crate) struct UsageCount {
    prompts: Vec<PromptUsage>,
    earlier: PromptUsage, // of earlier turns
    finished_tokens: u32,
    running_tokens: Vec<u32>, // by index: sent tokens of an unfinished choice
    pub(crate) reasoning_tokens: u32,
    pub(crate) draft_tokens: u32,
    pub(crate) accepted_draft_tokens: u32, // at most `draft_tokens`
    /// Timings of the slowest choice, which the answer waited for.
    pub(crate) timings: Option<v1::Timings>,
}

#[derive(Debug, Default, Clone, Copy)]
struct PromptUsage {
    prompt_tokens: u32,
    cached_tokens: u32,
}

impl UsageCount {
    /// Starts counting for `prompts` prompts with `choices` choices each.
    pub(crate) fn new(prompts: usize, choices: u32) -> UsageCount {
        UsageCount {
            prompts: vec![PromptUsage::default(); prompts],
            running_tokens: vec![0; prompts * choices as usize],
            ..UsageCount::default()
        }
    }

    /// Begins the next turn, whose longer prompt counts too.
    pub(crate) fn next_turn(&mut self) {
        for prompt in &mut self.prompts {
            self.earlier.prompt_tokens = self.earlier.prompt_tokens.saturating_add(prompt.prompt_tokens);
            self.earlier.cached_tokens = self.earlier.cached_tokens.saturating_add(prompt.cached_tokens);
            *prompt = PromptUsage::default();
        }
    }

    /// Records that a choice of a prompt has started.
    pub(crate) fn started(&mut self, prompt: u32, started: &v1::Started) {
        let prompt = &mut self.prompts[prompt as usize];
        // Only the first choice counts: the others find the prompt in the prefix cache.
        if prompt.prompt_tokens == 0 {
            *prompt =
                PromptUsage { prompt_tokens: started.prompt_tokens, cached_tokens: started.cached_tokens };
        }
    }

    /// Counts tokens of the choice at `index`.
    pub(crate) fn delta(&mut self, index: u32, delta: &v1::Delta) {
        let tokens = &mut self.running_tokens[index as usize];
        *tokens = tokens.saturating_add(u32::try_from(delta.token_ids.len()).unwrap_or(u32::MAX));
    }

    /// Records the final usage of the choice at `index`.
    pub(crate) fn finished(&mut self, prompt: u32, index: u32, finished: &v1::Finished) {
        self.running_tokens[index as usize] = 0;
        let usage = finished.usage.unwrap_or_default();
        if finished.choice == 0 && usage.prompt_tokens > 0 {
            self.prompts[prompt as usize] =
                PromptUsage { prompt_tokens: usage.prompt_tokens, cached_tokens: usage.cached_tokens };
        }
        self.finished_tokens = self.finished_tokens.saturating_add(usage.completion_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(usage.reasoning_tokens);
        let accepted = usage.accepted_draft_tokens.min(usage.draft_tokens);
        self.draft_tokens = self.draft_tokens.saturating_add(usage.draft_tokens);
        self.accepted_draft_tokens = self.accepted_draft_tokens.saturating_add(accepted);
        let total_ms = |t: &v1::Timings| t.queue_ms + t.prefill_ms + t.decode_ms;
        let slowest_ms = self.timings.as_ref().map_or(-1.0, total_ms);
        if let Some(timings) = finished.timings.filter(|t| total_ms(t) > slowest_ms) {
            self.timings = Some(timings);
        }
    }

    /// Tokens of a prompt, and how many its first choice found in the prefix cache.
    pub(crate) fn of_prompt(&self, prompt: usize) -> (u32, u32) {
        self.prompts.get(prompt).map_or((0, 0), |used| (used.prompt_tokens, used.cached_tokens))
    }

    /// Completion tokens of all choices so far.
    pub(crate) fn completion_tokens(&self) -> u32 {
        self.running_tokens.iter().fold(self.finished_tokens, |sum, tokens| sum.saturating_add(*tokens))
    }

    /// Tokens of all prompts.
    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.prompts.iter().fold(self.earlier.prompt_tokens, |sum, p| sum.saturating_add(p.prompt_tokens))
    }

    /// Tokens of all prompts that their first choices found in the prefix cache.
    pub(crate) fn cached_tokens(&self) -> u32 {
        self.prompts.iter().fold(self.earlier.cached_tokens, |sum, p| sum.saturating_add(p.cached_tokens))
    }
}
