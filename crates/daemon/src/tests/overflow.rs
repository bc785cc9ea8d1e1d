//! Tests of prompts and completions longer than their context, and of cache separation between tenants.

use super::*;

const CONTEXT: u32 = 96;

async fn rig(context_shift: bool) -> Rig {
    let rig = Rig::start_with(|config| {
        config.engine.context_tokens_max = Some(CONTEXT);
        config.engine.context_shift = context_shift;
    });
    let rig = rig.await;
    rig.load(DEMO_MODEL, "").await.unwrap();
    rig
}

fn prompt(ids: std::ops::Range<u32>) -> Option<v1::infer_request::Prompt> {
    Some(v1::infer_request::Prompt::Tokens(v1::TokenIds { ids: ids.collect() }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_too_long_is_refused_or_cut() {
    let rig = rig(false).await;
    let long = |truncate| v1::InferRequest {
        prompt: prompt(300..500),
        truncate_prompt_tokens: truncate,
        ..endless(8)
    };
    check_refused(&rig.infer(long(None)).await.unwrap_err(), Code::InvalidArgument, "prompt");
    check_refused(&rig.infer(long(Some(0))).await.unwrap_err(), Code::InvalidArgument, "truncate_prompt");
    // Truncation to the last tokens equals a prompt of just those.
    let cut = rig.events(long(Some(20))).await;
    let alone = rig.events(v1::InferRequest { prompt: prompt(480..500), ..endless(8) }).await;
    assert_eq!((started(&cut).prompt_tokens, tokens(&cut, 0)), (20, tokens(&alone, 0)));
    let right = v1::InferRequest { truncate_side: v1::TruncateSide::Right.into(), ..long(Some(20)) };
    let alone = rig.events(v1::InferRequest { prompt: prompt(300..320), ..endless(8) }).await;
    assert_eq!(tokens(&rig.events(right).await, 0), tokens(&alone, 0));
    assert_eq!(started(&rig.events(long(Some(-1))).await).prompt_tokens, CONTEXT - 8);
    // The echoed text is the truncated one.
    let echo = v1::InferRequest {
        echo: true,
        truncate_prompt_tokens: Some(3),
        ..text("one two three four five six seven eight nine ten", 1)
    };
    let echoed = said(&rig.events(echo).await, 0);
    assert!(!echoed.contains("one") && echoed.contains("ten"), "{echoed}");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_goes_on_beyond_its_context_where_it_may() {
    for default in [false, true] {
        let rig = rig(default).await;
        let of = |shift, max| v1::InferRequest {
            prompt: prompt(300..360),
            context_shift: shift,
            keep_tokens: Some(10),
            ..endless(max)
        };
        let long = tokens(&rig.events(of(Some(true), 300)).await, 0);
        assert_eq!(long.len(), 300);
        let short = rig.events(of(Some(false), 300)).await;
        assert_eq!(tokens(&short, 0), long[..36]);
        assert_eq!(finished(&short, 0).reason(), v1::FinishReason::Length);
        let unsaid = tokens(&rig.events(of(None, 300)).await, 0);
        assert_eq!(unsaid, long[..if default { 300 } else { 36 }]);
        // A prompt of everything so far is shifted alike: the first 10 of 96 are kept, 43 are dropped at a time.
        let all: Vec<u32> = (300..360).chain(long[..150].iter().copied()).collect();
        let whole = Some(v1::infer_request::Prompt::Tokens(v1::TokenIds { ids: all }));
        let next = rig.events(v1::InferRequest { prompt: whole, ..of(Some(true), 100) }).await;
        assert_eq!(started(&next).prompt_tokens, 210 - 3 * 43);
        assert_eq!(tokens(&next, 0), long[150..250]);
        let (_, metrics) = rig.admin("/metrics").await;
        assert!(metrics.contains("hanzo_engine_context_shifts_total{model=\"hanzo-demo\"}"), "{metrics}");
        let kept = v1::InferRequest { keep_tokens: Some(80), ..of(Some(true), 5) };
        check_refused(&rig.infer(kept).await.unwrap_err(), Code::InvalidArgument, "keep_tokens");
        rig.stopped().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_find_nothing_of_each_others() {
    let rig = rig(false).await;
    let mut cached = Vec::new();
    for (salt, cache) in [("", None), ("", None), ("a", None), ("b", None), ("a", None), ("a", Some(false))] {
        let request = v1::InferRequest {
            prompt: prompt(300..380),
            cache_salt: salt.into(),
            cache_prompt: cache,
            ..endless(2)
        };
        cached.push(finished(&rig.events(request).await, 0).usage.unwrap().cached_tokens);
    }
    assert_eq!(cached, [0, 64, 0, 0, 64, 0]);
    let salt = v1::InferRequest { cache_salt: "x".repeat(1025), ..endless(2) };
    check_refused(&rig.infer(salt).await.unwrap_err(), Code::InvalidArgument, "cache_salt");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_computed_before_a_restart_is_found_on_disk() {
    let kept = tempfile::tempdir().unwrap();
    let begin = || {
        Rig::start_with(|config| {
            config.engine.prefix_cache_dir = Some(kept.path().join("kv"));
            config.engine.prefix_cache_bytes = 1 << 30;
        })
    };
    let ask = || v1::InferRequest { prompt: prompt(300..500), ..endless(20) };
    let mut said = None;
    for round in 0..3 {
        let rig = begin().await;
        rig.load(DEMO_MODEL, "").await.unwrap();
        let events = rig.events(ask()).await;
        let cached = finished(&events, 0).usage.unwrap().cached_tokens;
        assert_eq!(cached, if round == 0 { 0 } else { 192 });
        assert_eq!(said.get_or_insert_with(|| tokens(&events, 0)), &tokens(&events, 0));
        let salted = v1::InferRequest { cache_salt: format!("{round}"), ..ask() };
        assert_eq!(finished(&rig.events(salted).await, 0).usage.unwrap().cached_tokens, 0);
        if round > 0 {
            let (_, metrics) = rig.admin("/metrics").await;
            assert!(metrics.contains("hanzo_engine_prefix_disk_read_blocks_total 12"), "{metrics}");
        }
        rig.stopped().await;
    }
}
