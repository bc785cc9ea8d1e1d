//! Tests of models that do not fit on one GPU. The CPU plays GPUs with little memory.

use hanzo_engine_kernels::cpu::CpuBackend;
use hanzo_engine_ops::{AnyBackend, Pipeline, PipelineCut, TensorParallel};
use hanzo_engine_runtime::{
    Adapter, EncoderConfig, Engine, EngineConfig, LoadError, ModelFiles, Network, VoiceFiles,
    encoder::EncoderFiles,
    engine::EngineMemory,
    spec::TransformerSpec,
    whisper::{WhisperConfig, WhisperFiles},
};

use super::*;
use crate::{
    budget::Budget,
    config::{GpuLayers, SplitMode},
    cpu::Cpu,
    device::{Device, EngineFiles, EngineSize, Origin, Sides, Steps},
    device_name::DeviceName,
    devices::DevicePlace,
    engine_factory::{decoder_engine, decoder_memory, with_draft},
    gpu_layers::LayerDistribution,
};

const MIB: u64 = 1 << 20;

/// Fake GPU that computes on the CPU.
#[derive(Clone)]
struct PlayedCard {
    ordinal: usize,
    cpu: Cpu,
    sharing: Option<LayerDistribution>,
}

impl PlayedCard {
    /// Pipeline of the devices that share a model, each with its own threads.
    fn pipeline(&self, cuts: &[PipelineCut]) -> Pipeline {
        let others = (0..cuts.len()).map(|_| Cpu::new(Some(1)).unwrap().backend());
        Pipeline::new(others.chain([self.cpu.backend()]).collect(), cuts.to_vec())
    }

    /// Tensor-parallel group of the devices; `None` if they share the model by layers.
    fn ranks(&self) -> Option<TensorParallel<CpuBackend>> {
        let sharing = self.sharing.as_ref()?;
        let others = sharing.others.iter().map(|_| Cpu::new(Some(1)).unwrap().cpu_backend());
        Some(TensorParallel::new(
            [self.cpu.cpu_backend()].into_iter().chain(others).collect(),
            sharing.rows.clone()?,
        ))
    }
}

impl Device for PlayedCard {
    fn describe(&self) -> String {
        self.sharing.as_ref().map_or("a card".to_owned(), |sharing| format!("a card: {sharing}"))
    }

    fn name(&self) -> DeviceName {
        DeviceName::Cuda(self.ordinal)
    }

    fn is_card(&self) -> bool {
        true
    }

    fn sharing(&self, sharing: &LayerDistribution) -> Option<Arc<dyn Device>> {
        Some(Arc::new(PlayedCard { sharing: Some(sharing.clone()), ..self.clone() }))
    }

    fn decoder_memory(
        &self,
        files: &ModelFiles,
        draft: Option<&ModelFiles>,
        config: &EngineConfig,
    ) -> EngineMemory {
        let Some(LayerDistribution { cuts, .. }) = &self.sharing else {
            return self.cpu.decoder_memory(files, draft, config);
        };
        if let Some(ranks) = self.ranks() {
            return decoder_memory(
                &AnyBackend::of_executor(ranks.counting(0)),
                &self.cpu.backend(),
                files,
                draft,
                config,
            );
        }
        let own = AnyBackend::of_executor(self.pipeline(cuts).counting(cuts.len()));
        decoder_memory(&own, &self.cpu.backend(), files, draft, config)
    }

    fn decoder_memory_beside(&self, files: &ModelFiles, config: &EngineConfig) -> Vec<EngineMemory> {
        if let Some(ranks) = self.ranks() {
            let rank = |rank| {
                let counting = self.ranks().unwrap().counting(rank);
                Engine::memory(&AnyBackend::of_executor(counting), files, config)
            };
            return (1..ranks.ranks().len()).map(rank).collect();
        }
        let cuts = self.sharing.as_ref().map_or(&[][..], |sharing| &sharing.cuts);
        let of =
            |at| Engine::memory(&AnyBackend::of_executor(self.pipeline(cuts).counting(at)), files, config);
        (0..cuts.len()).rev().map(of).collect()
    }

    fn adapter_memory(&self, spec: &TransformerSpec, adapter: &Adapter, rows: usize) -> (u64, u64) {
        self.cpu.adapter_memory(spec, adapter, rows)
    }

    fn encoder_memory(&self, files: &EncoderFiles, config: &EncoderConfig) -> EngineMemory {
        self.cpu.encoder_memory(files, config)
    }

    fn whisper_memory(&self, files: &WhisperFiles, config: &WhisperConfig) -> EngineMemory {
        self.cpu.whisper_memory(files, config)
    }

    fn voice_memory(&self, files: &VoiceFiles) -> Result<EngineMemory, LoadError> {
        self.cpu.voice_memory(files)
    }

    fn build(
        &self,
        origin: &Origin,
        files: EngineFiles<'_>,
        sides: Sides,
        size: EngineSize,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Steps>, LoadError> {
        let (Some(sharing), Network::Decoder(own), EngineSize::Decoder(config)) =
            (&origin.sharing, &files.model.network, size)
        else {
            return self.cpu.build(origin, files, sides, size, progress);
        };
        let shared = PlayedCard { sharing: Some(sharing.clone()), ..self.clone() };
        if let Some(ranks) = shared.ranks() {
            let ranks = AnyBackend::of_executor(ranks);
            let engine = decoder_engine(ranks, &|| self.cpu.backend(), own, sides, config, progress)?;
            return with_draft(engine, &|| panic!("nothing drafts"), own, files.draft, config);
        }
        let own_backend = AnyBackend::of_executor(self.pipeline(&sharing.cuts));
        let engine = decoder_engine(own_backend, &|| self.cpu.backend(), own, sides, config, progress)?;
        with_draft(engine, &|| self.cpu.backend(), own, files.draft, config)
    }
}

/// Starts a daemon with GPUs of these memory sizes, with or without a CPU. Returns its client and the budgets.
async fn rig(
    cards_bytes: &[u64],
    processor: bool,
    gpu_layers: GpuLayers,
) -> (Client, Vec<Arc<Budget>>, oneshot::Sender<()>, tempfile::TempDir) {
    rig_of(cards_bytes, processor, gpu_layers, SplitMode::Layer).await
}

async fn rig_of(
    cards_bytes: &[u64],
    processor: bool,
    gpu_layers: GpuLayers,
    split_mode: SplitMode,
) -> (Client, Vec<Arc<Budget>>, oneshot::Sender<()>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    (config.server.grpc_port, config.server.admin_port) = (0, 0);
    config.store.dir = Some(dir.path().join("store"));
    config.engine.on_demand = OnDemand::Never;
    (config.engine.gpu_layers, config.engine.split_mode) = (gpu_layers, split_mode);
    // Few rows per step, so that layers rather than scratch take the memory.
    (config.engine.step_tokens_max, config.engine.sequences_max) = (16, 2);
    let cpu = || Cpu::new(Some(1)).unwrap();
    let card = |(ordinal, &bytes): (usize, &u64)| {
        let card = PlayedCard { ordinal, cpu: cpu(), sharing: None };
        DevicePlace { device: Arc::new(card), budget: Budget::new(bytes) }
    };
    let mut places: Vec<DevicePlace> = cards_bytes.iter().enumerate().map(card).collect();
    if processor {
        places.push(DevicePlace { device: Arc::new(cpu()), budget: Budget::new(512 * MIB) });
    }
    let budgets = places.iter().map(|place| place.budget.clone()).collect();
    let daemon = Daemon::bind_in(config, places).await.unwrap();
    let address = format!("http://{}", daemon.handle().grpc_addr());
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(daemon.serve(async { drop(stopped.await) }));
    let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
    (EngineClient::new(channel), budgets, stop, dir)
}

fn wish(gpu_layers: &str) -> v1::LoadRequest {
    v1::LoadRequest {
        model: DEMO_MODEL.into(),
        gpu_layers: gpu_layers.into(),
        context_tokens_max: 256,
        kv_bytes: 8 * MIB,
        ..Default::default()
    }
}

async fn answer(client: &mut Client) -> String {
    let events = in_time(client.infer(endless(16))).await.unwrap().into_inner();
    said(&collect(events).await.unwrap(), 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_on_a_card_is_shared_and_says_the_same() {
    let (mut client, budgets, _stop, _dir) = rig(&[1 << 40], true, GpuLayers::Auto).await;
    let whole = in_time(client.load(wish(""))).await.unwrap().into_inner().model.unwrap();
    assert_eq!((&*whole.device, budgets[1].used_bytes()), ("a card", 0));
    let bytes = budgets[0].used_bytes();
    let expected = answer(&mut client).await;
    assert!(!expected.is_empty());

    // A quarter less memory than the model takes.
    let (mut client, budgets, _stop, _dir) = rig(&[bytes / 4 * 3], true, GpuLayers::Auto).await;
    let shared = in_time(client.load(wish(""))).await.unwrap().into_inner().model.unwrap();
    let on_card: usize =
        shared.device.strip_prefix("a card: ").and_then(|of| of.split(' ').next()).unwrap().parse().unwrap();
    assert!((1..6).contains(&on_card), "{}", shared.device);
    let used = [0, 1].map(|place: usize| budgets[place].used_bytes());
    assert!(used[0] > bytes / 4 && used[0] <= bytes / 4 * 3 && used[1] > bytes / 8, "{used:?} of {bytes}");
    assert_eq!(shared.weights_bytes + shared.kv_bytes + shared.scratch_bytes, used[0] + used[1]);
    assert_eq!(answer(&mut client).await, expected);
    // One more layer would not have fit; requesting it is refused with the bytes.
    in_time(client.unload(v1::UnloadRequest { model: DEMO_MODEL.into(), ..Default::default() }))
        .await
        .unwrap();
    let more = in_time(client.load(wish(&(on_card + 1).to_string()))).await.unwrap_err();
    assert!(more.message().contains("needs") || more.message().contains("free"), "{}", more.message());
    let fewer = in_time(client.load(wish("1"))).await.unwrap().into_inner().model.unwrap();
    assert_eq!(fewer.device, "a card: 1 of 6 layers");
    assert_eq!(answer(&mut client).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn cards_share_each_layer_where_they_are_told_to() {
    let (mut client, budgets, _stop, _dir) = rig(&[1 << 40], true, GpuLayers::Auto).await;
    in_time(client.load(wish(""))).await.unwrap();
    let bytes = budgets[0].used_bytes();
    let expected = answer(&mut client).await;

    for (layers, card) in [("", 1 << 40), ("all", 1 << 40), ("", bytes / 6 * 5)] {
        let (mut client, budgets, _stop, _dir) =
            rig_of(&[card, card], true, GpuLayers::Auto, SplitMode::Row).await;
        let shared = in_time(client.load(wish(layers))).await.unwrap().into_inner().model.unwrap();
        assert_eq!(shared.device, "a card: rows of 6 layers");
        let used: Vec<u64> = budgets.iter().map(|budget| budget.used_bytes()).collect();
        assert!(used[0] < bytes / 6 * 5 && used[1] < used[0] && used[1] > bytes / 4, "{used:?} of {bytes}");
        assert_eq!(used[2], 0, "the processor has none");
        assert_eq!(shared.weights_bytes + shared.kv_bytes + shared.scratch_bytes, used[0] + used[1]);
        assert_eq!(answer(&mut client).await, expected);
        in_time(client.unload(v1::UnloadRequest { model: DEMO_MODEL.into(), ..Default::default() }))
            .await
            .unwrap();
        assert!(budgets.iter().all(|budget| budget.used_bytes() == 0), "all of it is given back");
    }
    // One GPU holds the whole model. Layers go to the CPU if requested, or if rows do not fit.
    for (cards, layers, said) in [
        (vec![1 << 40], "", "a card"),
        (vec![1 << 40, 1 << 40], "3", "a card: 3 of 6 layers"),
        (vec![1 << 40, bytes / 16], "", "a card"),
    ] {
        let (mut client, _, _stop, _dir) = rig_of(&cards, true, GpuLayers::Auto, SplitMode::Row).await;
        let model = in_time(client.load(wish(layers))).await.unwrap().into_inner().model.unwrap();
        assert_eq!(model.device, said, "{cards:?}");
        assert_eq!(answer(&mut client).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_cards_have_what_fits_on_neither() {
    let (mut client, budgets, _stop, _dir) = rig(&[1 << 40, 1 << 40], true, GpuLayers::Auto).await;
    in_time(client.load(wish(""))).await.unwrap();
    let bytes = budgets[0].used_bytes();
    assert_eq!([1, 2].map(|place: usize| budgets[place].used_bytes()), [0, 0], "it fits on the first");
    let expected = answer(&mut client).await;

    for (processor, layers) in [(true, ""), (false, ""), (true, "all")] {
        let (mut client, budgets, _stop, _dir) =
            rig(&[bytes / 4 * 3, bytes / 4 * 3], processor, GpuLayers::Auto).await;
        let shared = in_time(client.load(wish(layers))).await.unwrap().into_inner().model.unwrap();
        let used: Vec<u64> = budgets.iter().map(|budget| budget.used_bytes()).collect();
        assert!(shared.device.ends_with(" of 6 layers"), "{}", shared.device);
        assert!(used[..2].iter().all(|&used| used > bytes / 8), "{used:?} of {bytes}");
        assert_eq!(used[2..].iter().sum::<u64>(), 0, "the processor has none");
        assert_eq!(shared.weights_bytes + shared.kv_bytes + shared.scratch_bytes, used[0] + used[1]);
        assert_eq!(answer(&mut client).await, expected);
        in_time(client.unload(v1::UnloadRequest { model: DEMO_MODEL.into(), ..Default::default() }))
            .await
            .unwrap();
        assert!(budgets.iter().all(|budget| budget.used_bytes() == 0), "all of it is given back");
    }

    // The second GPU is too small for the rest, which therefore goes to the CPU.
    let (mut client, budgets, _stop, _dir) = rig(&[bytes / 4 * 3, bytes / 16], true, GpuLayers::Auto).await;
    in_time(client.load(wish(""))).await.unwrap();
    assert!(budgets[0].used_bytes() > 0 && budgets[1].used_bytes() == 0 && budgets[2].used_bytes() > 0);
    assert_eq!(answer(&mut client).await, expected);
}

/// Three or more GPUs that each hold some of the layers, with or without a CPU for the rest.
#[tokio::test(flavor = "multi_thread")]
async fn several_cards_have_what_fits_on_no_two() {
    let (mut client, budgets, _stop, _dir) = rig(&[1 << 40], true, GpuLayers::Auto).await;
    in_time(client.load(wish(""))).await.unwrap();
    let (bytes, expected) = (budgets[0].used_bytes(), answer(&mut client).await);
    // Memory with one layer and with all, from which that of a single layer follows.
    in_time(client.unload(v1::UnloadRequest { model: DEMO_MODEL.into(), ..Default::default() }))
        .await
        .unwrap();
    let mut on_card = Vec::new();
    for layers in ["1", "2"] {
        in_time(client.load(wish(layers))).await.unwrap();
        on_card.push(budgets[0].used_bytes());
        in_time(client.unload(v1::UnloadRequest { model: DEMO_MODEL.into(), ..Default::default() }))
            .await
            .unwrap();
    }
    // Memory of the head's GPU without layers, and of a layer.
    let (head, layer) = (2 * on_card[0] - on_card[1], on_card[1] - on_card[0]);
    let two = head + 2 * layer + layer / 2;
    assert!(2 * two < bytes + head, "two of them are too small");

    for (cards, processor, layers, elsewhere) in [
        (vec![two; 3], true, "", false),
        (vec![two; 4], false, "all", false),
        // The CPU gets what does not fit on three.
        (vec![head + layer + layer / 2, head + layer, head + layer], true, "", true),
        // As many layers as requested, on several GPUs that are each too small for them.
        (vec![two; 2], true, "3", true),
    ] {
        let (mut client, budgets, _stop, _dir) = rig(&cards, processor, GpuLayers::Auto).await;
        let shared = in_time(client.load(wish(layers))).await.unwrap().into_inner().model.unwrap();
        let used: Vec<u64> = budgets.iter().map(|budget| budget.used_bytes()).collect();
        let (on_cards, on_processor) = used.split_at(cards.len());
        let needed = if layers == "3" { 2 } else { 3 };
        assert!(on_cards.iter().zip(&cards).all(|(used, card)| used <= card), "{used:?} of {cards:?}");
        assert_eq!(on_cards.iter().filter(|&&used| used > 0).count(), needed, "{used:?} of {cards:?}");
        assert_eq!(on_processor.iter().any(|&used| used > 0), elsewhere, "{used:?}");
        assert_eq!(shared.weights_bytes + shared.kv_bytes + shared.scratch_bytes, used.iter().sum::<u64>());
        assert_eq!(answer(&mut client).await, expected, "{} of {cards:?}", shared.device);
        in_time(client.unload(v1::UnloadRequest { model: DEMO_MODEL.into(), ..Default::default() }))
            .await
            .unwrap();
        assert!(budgets.iter().all(|budget| budget.used_bytes() == 0), "all of it is given back");
    }
}

/// If two GPUs leave only a short context, and three leave a useful one, three are used.
#[tokio::test(flavor = "multi_thread")]
async fn a_context_of_use_is_worth_another_card() {
    let of = |context_tokens_max: u32| v1::LoadRequest {
        model: DEMO_MODEL.into(),
        context_tokens_max,
        overrides: Some(v1::Overrides {
            kv: vec!["qwen3.context_length=int:32768".into()],
            ..Default::default()
        }),
        ..Default::default()
    };
    let (mut client, budgets, _stop, _dir) = rig(&[1 << 40], true, GpuLayers::Auto).await;
    let kv_bytes = in_time(client.load(of(2_048))).await.unwrap().into_inner().model.unwrap().kv_bytes;
    // Without all but one of the contexts that it takes with plenty of memory: less would not be useful, and a GPU
    // has less.
    let least = budgets[0].used_bytes() - kv_bytes / 8 * 7;
    let card = least / 100 * 99;
    for (cards, needed, context) in [(2, 2, 2_048..8_192), (3, 3, 8_192..32_769)] {
        let (mut client, budgets, _stop, _dir) = rig(&vec![card; cards], true, GpuLayers::Auto).await;
        let loaded = in_time(client.load(of(0))).await.unwrap().into_inner().model.unwrap();
        let used = budgets[..cards].iter().filter(|budget| budget.used_bytes() > 0).count();
        assert_eq!(used, needed, "{}", loaded.device);
        let found = loaded.context_tokens_max;
        assert!(context.contains(&found), "{cards} cards: {found} tokens, {}", loaded.device);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_are_where_they_are_asked_for_or_refused_by_name() {
    let (mut client, budgets, _stop, _dir) = rig(&[1 << 40], true, GpuLayers::Count(0)).await;
    let none = in_time(client.load(wish(""))).await.unwrap().into_inner().model.unwrap();
    assert!(none.device.starts_with("cpu") && budgets[0].used_bytes() == 0, "{}", none.device);
    in_time(client.unload(v1::UnloadRequest { model: DEMO_MODEL.into(), ..Default::default() }))
        .await
        .unwrap();
    let all = in_time(client.load(wish("99"))).await.unwrap().into_inner().model.unwrap();
    assert_eq!(all.device, "a card", "it has fewer");
    let wrong = in_time(client.load(wish("some"))).await.unwrap_err();
    assert!(wrong.code() == Code::InvalidArgument && wrong.message().contains("gpu_layers"), "{wrong:?}");

    let (mut client, budgets, _stop, _dir) = rig(&[1 << 40, 1 << 40], true, GpuLayers::Auto).await;
    let on = |devices: &str| v1::LoadRequest { gpu_devices: devices.into(), ..wish("") };
    for (devices, place) in [("cuda:1", 1), ("1", 1), ("cuda:1,cuda:0", 0), ("cpu", 2)] {
        in_time(client.load(on(devices))).await.unwrap();
        let used: Vec<bool> = budgets.iter().map(|budget| budget.used_bytes() > 0).collect();
        assert_eq!(used, [0, 1, 2].map(|at| at == place), "{devices}");
        in_time(client.unload(v1::UnloadRequest { model: DEMO_MODEL.into(), ..Default::default() }))
            .await
            .unwrap();
    }
    for (devices, reason) in [("cuda:7", "cuda:7 is not among engine.devices"), ("gpu", "is no device")] {
        let refused = in_time(client.load(on(devices))).await.unwrap_err();
        assert!(
            refused.message().contains(reason) && refused.message().contains("gpu_devices"),
            "{}",
            refused.message()
        );
    }

    let (mut client, _, _stop, _dir) = rig(&[1 << 40], false, GpuLayers::Auto).await;
    for (layers, reason) in [("0", "names no processor"), ("3", "names no processor")] {
        let refused = in_time(client.load(wish(layers))).await.unwrap_err();
        assert!(refused.message().contains(reason), "{layers}: {}", refused.message());
    }
}
