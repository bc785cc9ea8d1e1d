//! Life of one request in the simulation: it arrives, is given to the worker, is read or abandoned, and ends once.

use super::*;

impl World<'_> {
    pub(super) fn come(&mut self, number: usize) {
        let now = self.time.us();
        let client = &mut self.clients[number];
        if client.is_over() {
            return;
        }
        client.came_us = now;
        let entered = match &self.phase {
            ModelPhase::Ready(worker) => match worker.vitals().admission.enter() {
                Ok(place) => Ok((place, worker.clone())),
                Err(full) => Err(full.retry_after_ms * 1_000),
            },
            ModelPhase::Failed(_) => Err(1_010_000),
            _ => Err(5_000),
        };
        match entered {
            Ok((place, worker)) => {
                self.story.tell(|| format!("client {number} comes"));
                client.stage = Stage::Preparing { place, worker, life: self.lives.len() - 1 };
                let (prepares_us, leaves) = (client.plan.prepares_us, client.plan.leaves);
                self.after(prepares_us, Action::Give(number));
                if let Some(Leave::After(us)) = leaves {
                    self.after(us, Action::Leave(number));
                }
            }
            Err(again_us) => self.turned_away(number, again_us),
        }
    }

    pub(super) fn turned_away(&mut self, number: usize, again_us: u64) {
        self.story.tell(|| format!("client {number} is turned away"));
        self.coverage.turned_away += 1;
        let client = &mut self.clients[number];
        if client.tries == 0 {
            self.coverage.outcome(&ClientOutcome::TurnedAway);
            client.stage = Stage::Over;
        } else {
            client.tries -= 1;
            client.stage = Stage::Away;
            self.after(again_us, Action::Come(number));
        }
    }

    pub(super) fn give(&mut self, number: usize) {
        let Stage::Preparing { .. } = self.clients[number].stage else { return };
        let client = &mut self.clients[number];
        let Stage::Preparing { place, worker, life } = std::mem::replace(&mut client.stage, Stage::Away)
        else {
            return;
        };
        self.jobs += 1;
        let (id, now) = (JobId(self.jobs), self.time.now());
        let deadline = client.deadline_us().map(|us| self.time.at(us));
        let arrived = self.time.at(client.came_us);
        match &client.plan.ask {
            Ask::Generate(job) => {
                let job = Job { id, ..job.clone() };
                self.story.tell(|| {
                    let Job { prompt, choices, stop, priority, .. } = &job;
                    let (prompt, max) = (prompt.len(), stop.max_tokens);
                    format!("client {number} gives job {}: {prompt} tokens, {choices} choices of {max}, priority {priority}", id.0)
                });
                let seen = vec![Vec::new(); job.choices as usize];
                let waker = worker.waker().clone();
                let (ticket, events) = ticket(job, place, arrived, deadline, client.plan.events_max, waker);
                match worker.give(WorkItem::Run(ticket), now) {
                    Ok(()) => {
                        client.stage = Stage::Streaming(GenerationReader { events, life, seen });
                        self.read(number);
                    }
                    Err(why) => self.not_given(number, why),
                }
            }
            Ask::Embed { .. } => {
                let (place, on_their_way) = (place.keep(), VecDeque::new());
                client.stage = Stage::Embedding(Embedding { place, worker, life, on_their_way, next: 0 });
                self.give_batches(number);
            }
        }
    }

    pub(super) fn not_given(&mut self, number: usize, why: NotGiven) {
        if why == NotGiven::Full {
            self.faults.add("a worker's channel is full, and the request held a place".to_owned());
        }
        self.turned_away(number, 1_000);
    }

    /// Gives the worker as many batches as allowed at once.
    pub(super) fn give_batches(&mut self, number: usize) {
        let (now, client) = (self.time.now(), &mut self.clients[number]);
        let (came, deadline) =
            (self.time.at(client.came_us), client.deadline_us().map(|us| self.time.at(us)));
        let (Stage::Embedding(embedding), Ask::Embed { batches, output, priority }) =
            (&mut client.stage, &client.plan.ask)
        else {
            return;
        };
        let mut refused = None;
        while embedding.on_their_way.len() < EMBED_JOBS_MAX
            && let Some(inputs) = batches.get(embedding.next)
        {
            self.jobs += 1;
            let job = EmbedJob {
                id: JobId(self.jobs),
                inputs: inputs.clone(),
                output: *output,
                priority: *priority,
                client: None,
            };
            self.story.tell(|| format!("client {number} gives job {}: {} inputs", job.id.0, inputs.len()));
            let (ticket, results) = embed_ticket(job, embedding.place.clone(), came, deadline);
            if let Err(why) = embedding.worker.give(WorkItem::Embed(ticket), now) {
                refused = Some(why);
                break;
            }
            embedding.on_their_way.push_back((embedding.next, results));
            embedding.next += 1;
        }
        match refused {
            Some(why) => self.not_given(number, why),
            None if embedding.on_their_way.is_empty() => {
                embedding.place.served(now);
                self.over(number, ClientOutcome::Ended(JobEnd::Done));
            }
            None => self.read(number),
        }
    }

    pub(super) fn read(&mut self, number: usize) {
        let client = &mut self.clients[number];
        client.reads_at_us = None;
        match client.read() {
            ReadOutcome::All => {}
            ReadOutcome::Enough => self.read_later(number, self.clients[number].plan.reads_after_us),
            ReadOutcome::Pauses(us) => {
                self.story.tell(|| format!("client {number} reads nothing for {us} us"));
                self.coverage.pauses += 1;
                client.paused_until_us = self.time.us() + us;
                self.read_later(number, us);
            }
            ReadOutcome::Leaves => self.leave(number),
            ReadOutcome::Ended(end) => self.over(number, ClientOutcome::Ended(end)),
            ReadOutcome::Answered(batch, computed) => {
                if let Err(fault) = client.check_answer(batch, &computed, self.alone) {
                    self.faults.add(format!("client {number}: {fault}"));
                }
                if let Stage::Embedding(embedding) = &mut client.stage {
                    embedding.on_their_way.pop_front();
                }
                self.give_batches(number);
            }
        }
    }

    pub(super) fn leave(&mut self, number: usize) {
        if !self.clients[number].is_over() && !matches!(self.clients[number].stage, Stage::Away) {
            self.over(number, ClientOutcome::Left);
        }
    }

    /// Checks the end of a client's request.
    pub(super) fn over(&mut self, number: usize, outcome: ClientOutcome) {
        self.story.tell(|| format!("client {number} is over: {}", outcome.name()));
        let client = &self.clients[number];
        let end = if let ClientOutcome::Ended(end) = &outcome { Some(end) } else { None };
        let right = client.check_seen(end, self.alone).and_then(|()| match end {
            Some(end) => self.check_end(client, end),
            None => Ok(()),
        });
        if let Err(fault) = right {
            self.faults.add(format!("client {number}: {fault}"));
        }
        self.coverage.outcome(&outcome);
        self.clients[number].stage = Stage::Over;
    }

    /// Checks that there is a reason for such an end.
    pub(super) fn check_end(&self, client: &SimulatedClient, end: &JobEnd) -> Result<(), String> {
        let life = match &client.stage {
            Stage::Streaming(streaming) => &self.lives[streaming.life],
            Stage::Embedding(embedding) => &self.lives[embedding.life],
            _ => return Ok(()),
        };
        let (seen, now) = (client.has_seen_something(), self.time.us());
        let streams = matches!(client.stage, Stage::Streaming(_));
        let right = match end {
            JobEnd::Done | JobEnd::NotANumber { .. } => true,
            // No simulated request has a constraint or a text to speak.
            JobEnd::Constraint { .. } | JobEnd::Unsayable { .. } => false,
            JobEnd::Deadline => client.deadline_us().is_some_and(|deadline| deadline <= now),
            JobEnd::Stopped(LOST) => life.left && !seen,
            JobEnd::Stopped(why) => life.stopped == Some(*why),
            JobEnd::WorkerFailed { error_id } => life.failed.as_ref() == Some(error_id) && (seen || !streams),
            JobEnd::NotReached { error_id } => life.failed.as_ref() == Some(error_id) && !seen,
        };
        if !right {
            return Err(format!("it has ended with {end:?}, and there is no reason for that"));
        }
        // A client that reads at once sees the deadline in the next turn: after a step, or two if the device is
        // asynchronous.
        let step_us = self.plan.step_us + self.plan.row_us * self.plan.config.step_tokens_max as u64;
        if let (JobEnd::Deadline, Some(deadline)) = (end, client.deadline_us())
            && client.plan.reads_at_once == usize::MAX
            && !client.has_paused
            && now
                > deadline
                    + client.plan.prepares_us
                    + client.plan.reads_after_us
                    + 2 * step_us
                    + WAKE_US
                    + PARK_US
        {
            return Err(format!("it is told at {now} us of its deadline at {deadline} us"));
        }
        Ok(())
    }
}
