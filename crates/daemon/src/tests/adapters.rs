//! Tests of adapters over gRPC: loading, selection, refusal, unloading, and restoration after a worker failed.

use super::*;

fn source(name: &str, case: &str) -> v1::AdapterSource {
    v1::AdapterSource { name: name.into(), path: data(&format!("adapters/{case}")) }
}

fn ask(model: &str) -> v1::InferRequest {
    let ids = (0..40).map(|i| 3 + i * 7 % 150).collect();
    v1::InferRequest {
        model: model.into(),
        prompt: Some(v1::infer_request::Prompt::Tokens(v1::TokenIds { ids })),
        sampling: Some(v1::Sampling { temperature: Some(0.0), ..Default::default() }),
        stop: Some(v1::StopConditions { max_tokens: Some(12), ignore_eos: true, ..Default::default() }),
        ..Default::default()
    }
}

impl Rig {
    async fn load_adapter(&self, model: &str, adapter: v1::AdapterSource) -> Result<v1::Adapter, Status> {
        let request = v1::LoadAdapterRequest { model: model.into(), adapter: Some(adapter) };
        let loaded = in_time(self.client().load_adapter(request)).await?;
        Ok(loaded.into_inner().adapter.unwrap())
    }

    async fn unload_adapter(&self, model: &str, name: &str) -> Result<v1::Adapter, Status> {
        let request = v1::UnloadAdapterRequest { model: model.into(), name: name.into() };
        let unloaded = in_time(self.client().unload_adapter(request)).await?;
        Ok(unloaded.into_inner().adapter.unwrap())
    }

    async fn memory_used(&self) -> u64 {
        self.client().stats(v1::StatsRequest::default()).await.unwrap().into_inner().memory_used_bytes
    }

    async fn answer(&self, request: v1::InferRequest) -> Vec<u32> {
        tokens(&self.events(request).await, 0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_are_chosen_by_name() {
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    let load = v1::LoadRequest {
        model: data("tiny/qwen3"),
        alias: "tiny:q".into(),
        adapters: vec![source("all", "qwen3-all")],
        ..Default::default()
    };
    let status = in_time(rig.client().load(load)).await.unwrap().into_inner().model.unwrap();
    let [all] = &status.adapters[..] else { panic!("{status:?}") };
    assert_eq!((all.name.as_str(), all.model.as_str(), all.rank), ("all", "tiny:q", 16));
    let (one, layer) = (rig.memory_used().await, source("layer", "qwen3-layer/adapter.gguf"));
    let loaded = rig.load_adapter("", layer.clone()).await.unwrap();
    assert_eq!((loaded.format.as_str(), loaded.rank), ("gguf", 3));
    assert_eq!(rig.memory_used().await, one + loaded.bytes);
    // Loading the same files again returns the same adapter; other files under its name are refused.
    assert_eq!(rig.load_adapter("tiny:q", layer).await.unwrap(), loaded);
    let taken = rig.load_adapter("tiny:q", source("all", "qwen3-layer")).await.unwrap_err();
    check_refused(&taken, Code::FailedPrecondition, "adapter: ");

    let base = rig.answer(ask("tiny:q")).await;
    let all = rig.answer(ask("tiny:q:all")).await;
    let layer = rig.answer(ask("tiny:q:layer")).await;
    assert!(base != all && all != layer && base != layer);
    assert_eq!(rig.answer(v1::InferRequest { adapter: "all".into(), ..ask("") }).await, all);
    assert_eq!(rig.answer(ask("layer")).await, layer, "a name that one model alone has");
    let events = rig.events(ask("tiny:q:all")).await;
    assert!(matches!(&events[0], Event::Started(started) if started.model == "tiny:q:all"));
    let (a, b, c) = tokio::join!(
        rig.answer(ask("tiny:q:all")),
        rig.answer(ask("tiny:q")),
        rig.answer(ask("tiny:q:layer"))
    );
    assert_eq!((a, b, c), (all.clone(), base.clone(), layer));

    let unknown = rig.infer(ask("tiny:q:other")).await.unwrap_err();
    check_refused(&unknown, Code::NotFound, "model: tiny:q has no adapter \"other\"; loaded: all, layer");
    let unknown = rig.infer(v1::InferRequest { adapter: "x".into(), ..ask("tiny:q") }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);

    let gone = rig.unload_adapter("tiny:q", "layer").await.unwrap();
    assert_eq!(gone.name, "layer");
    rig.until("its memory is free", async |rig| rig.memory_used().await == one).await;
    assert_eq!(rig.infer(ask("tiny:q:layer")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(rig.unload_adapter("tiny:q", "layer").await.unwrap_err().code(), Code::NotFound);
    let listed = rig.client().list_adapters(v1::ListAdaptersRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.adapters.iter().map(|adapter| adapter.name.as_str()).collect::<Vec<_>>(), ["all"]);

    // A restarted worker gets its adapters back.
    rig.device.conduct(Conduct::PanicIn(1));
    assert!(collect(rig.infer(ask("tiny:q")).await.unwrap()).await.is_err());
    rig.until("it is back", async |rig| match rig.infer(ask("tiny:q:all")).await {
        Ok(stream) => collect(stream).await.is_ok(),
        Err(_) => false,
    })
    .await;
    assert_eq!(rig.answer(ask("tiny:q:all")).await, all);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_adapter_of_the_model_is_refused() {
    let rig = Rig::start().await;
    for (name, path, code, words) in [
        ("a:b", data("adapters/qwen3-all"), Code::InvalidArgument, "adapter.name: "),
        ("", data("adapters/qwen3-all"), Code::InvalidArgument, "adapter.name: "),
        ("a", String::new(), Code::InvalidArgument, "adapter.path: "),
        ("a", data("adapters/qwen3-all"), Code::InvalidArgument, "expected ["),
        ("a", data("tiny/qwen3"), Code::InvalidArgument, "adapter_config.json is missing"),
    ] {
        let source = v1::AdapterSource { name: name.into(), path };
        let error = rig.load_adapter(DEMO_MODEL, source).await.unwrap_err();
        assert!(error.code() == code && error.message().contains(words), "{error:?}");
    }
    let missing = v1::AdapterSource { name: "a".into(), path: "/no/such/adapter".into() };
    assert!(rig.load_adapter(DEMO_MODEL, missing).await.unwrap_err().message().contains("/no/such/adapter"));
    let request = v1::LoadAdapterRequest { model: DEMO_MODEL.into(), adapter: None };
    assert_eq!(rig.client().load_adapter(request).await.unwrap_err().code(), Code::InvalidArgument);
    rig.stopped().await;
}
