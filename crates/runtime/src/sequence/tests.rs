//! Data that the completions of a job share, and data of their own.

use hanzo_engine_ops::SampledToken;

use super::*;
use crate::{
    fair::{FairLine, NewJob},
    job::StopConditions,
    text::tests::demo,
};

#[test]
fn completions_that_wait_share_what_they_were_given() {
    let job = Arc::new(Job {
        id: JobId(1),
        prompt: (0..1000).collect(),
        choices: 3,
        stop: StopConditions { max_tokens: 40, ..StopConditions::default() },
        ..Job::default()
    });
    let text = demo();
    let arrival = FairLine::default().arrive(NewJob { job: job.id, priority: 0, client: None, tokens: 0 });
    let mut sequences: Vec<Sequence> =
        Sequence::of_job(&job, &text, arrival, Speculation::Off, None).collect();
    assert_eq!(sequences[0].hashes.len(), 62);
    for other in &sequences[1..] {
        assert!(Arc::ptr_eq(&sequences[0].tokens, &other.tokens));
        assert!(Arc::ptr_eq(&sequences[0].hashes, &other.hashes));
    }
    // Generated tokens belong to one completion: the others see neither them nor their hashes.
    let (mut pool, mut events) = (BlockPool::new(80, true), Vec::new());
    sequences[0].enter(&mut pool, &mut events);
    for _ in 0..8 {
        sequences[0].scheduled = sequences[0].remaining();
        assert_eq!(sequences[0].grow(1, &mut pool), 1);
        sequences[0].write(&mut Step::default());
        assert_eq!(sequences[0].assume(0, &mut pool), 1);
        let mut drawn = [Some(SampledToken { token: 278, ..SampledToken::default() })].into_iter();
        let within = Within { text: &text, context_tokens_max: 1280 };
        sequences[0].settle(0, true, &mut drawn, within, &mut pool, &mut events);
    }
    assert_eq!((sequences[0].tokens.len(), sequences[1].tokens.len()), (1008, 1000));
    assert_eq!((sequences[0].hashes.len(), sequences[1].hashes.len()), (63, 62));
    let tokens: Vec<u32> = (0..1000).chain([278; 8]).collect();
    assert_eq!(
        *sequences[0].hashes,
        full_block_hashes(&tokens, &[], root(None, &[], &[])),
        "names do not depend on how the tokens came"
    );
}
