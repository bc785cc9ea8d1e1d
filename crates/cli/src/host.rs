//! Loaded model, in the running daemon or in one in this process.

use crate::args::{EngineArgs, KvTypeName, LogLevel, StoreArgs};
use crate::connect::{self, Client, DaemonConnection, InProcess, SpeechApi, StoreApi};
use crate::error::CliError;
use crate::missing::{self, IfMissing};
use crate::paths;
use crate::term::{interrupted, tell};
use hanzo_engine_daemon::config::{Devices, GpuLayers, LogConfig, LogFormat, OverrideConfig};
use hanzo_engine_daemon::{DEMO_MODEL, log};
use hanzo_engine_proto::v1;
use std::io::{IsTerminal, stderr};

/// Options for loading a model and finding its daemon.
pub(crate) struct HostOptions<'a> {
    pub(crate) model: &'a str,
    pub(crate) engine: &'a EngineArgs,
    pub(crate) store: &'a StoreArgs,
    /// Type of the KV cache, for a model that this process loads itself.
    pub(crate) kv_type: Option<KvTypeName>,
    /// Draft model.
    pub(crate) draft_model: Option<&'a str>,
    /// Number of its layers on GPUs.
    pub(crate) gpu_layers: Option<GpuLayers>,
    /// Devices that it may use.
    pub(crate) gpu_devices: Option<&'a Devices>,
    /// Overrides of its files.
    pub(crate) overrides: OverrideConfig,
    pub(crate) log_level: LogLevel,
    /// Print no message while it is loading.
    pub(crate) quiet: bool,
    /// Action if it is not on this machine.
    pub(crate) missing: IfMissing,
    pub(crate) stays: Stays,
}

impl<'a> HostOptions<'a> {
    /// Options for a model that is on this machine and used once, without overrides.
    pub(crate) fn once(model: &'a str, engine: &'a EngineArgs, store: &'a StoreArgs) -> Self {
        Self {
            model,
            engine,
            store,
            kv_type: None,
            draft_model: None,
            gpu_layers: None,
            gpu_devices: None,
            overrides: OverrideConfig::default(),
            log_level: LogLevel::Error,
            quiet: false,
            missing: IfMissing::Fail,
            stays: Stays::AsRequest,
        }
    }
}

/// Lifetime of a model in a daemon that runs already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stays {
    /// The lifetime of a model loaded by a request.
    AsRequest,
    UntilUnloaded,
}

/// Loaded model.
pub(crate) struct Host {
    /// Client of the engine.
    pub(crate) client: Client,
    /// Client of the speech service.
    pub(crate) speech: SpeechApi,
    /// Status of the model after loading.
    pub(crate) status: v1::ModelStatus,
    /// Request that loaded it.
    load: v1::LoadRequest,
    in_process: Option<InProcess>,
}

/// Connects to a daemon, or starts one in this process.
async fn daemon(
    wanted: &HostOptions<'_>,
    store_optional: bool,
) -> Result<(Client, StoreApi, SpeechApi, Option<InProcess>), CliError> {
    match connect::find(wanted.engine).await? {
        Some(_) if wanted.kv_type.is_some() => Err(CliError::Usage(
            "--kv-type is for a model that this process loads itself, and a daemon answers: add --engine none"
                .to_owned(),
        )),
        Some(DaemonConnection { client, store, speech, .. }) => Ok((client, store, speech, None)),
        None => {
            log::init(&LogConfig {
                level: wanted.log_level.as_str().to_owned(),
                format: LogFormat::Pretty,
            })?;
            let daemon =
                InProcess::start(wanted.store.model_dir.clone(), store_optional, wanted.kv_type).await?;
            Ok((daemon.client.clone(), daemon.store.clone(), daemon.speech.clone(), Some(daemon)))
        }
    }
}

impl Host {
    /// Connects to a daemon or starts one, and loads the model.
    pub(crate) async fn open(wanted: HostOptions<'_>) -> Result<Self, CliError> {
        let mut source = paths::model_source(wanted.model)?;
        let draft_model = wanted.draft_model.map(paths::model_source).transpose()?.unwrap_or_default();
        let overrides = wanted.overrides.message().map_err(CliError::Usage)?;
        let asked = |source: &str| v1::LoadRequest {
            model: source.to_owned(),
            draft_model: draft_model.clone(),
            gpu_layers: wanted.gpu_layers.map(|layers| layers.to_string()).unwrap_or_default(),
            gpu_devices: wanted.gpu_devices.map(ToString::to_string).unwrap_or_default(),
            overrides: overrides.clone(),
            as_request: wanted.stays == Stays::AsRequest,
            ..Default::default()
        };
        let here = paths::absolute(wanted.model).ok();
        // A path and the built-in model need no record.
        let store_optional = here.is_some() || source.eq_ignore_ascii_case(DEMO_MODEL);
        let (mut client, mut store, speech, in_process) = daemon(&wanted, store_optional).await?;
        let waiting = !wanted.quiet && stderr().is_terminal();
        if waiting {
            tell(&format!("loading {}…", wanted.model));
        }
        let mut loaded = client.load(asked(&source)).await;
        if let (Err(status), Some(here)) = (&loaded, here)
            && status.code() == tonic::Code::NotFound
            && source != here
        {
            source = here;
            loaded = client.load(asked(&source)).await;
        }
        if waiting {
            tell("\r\x1b[K");
        }
        if let Err(status) = &loaded
            && missing::is_said_by(status)
        {
            missing::bring(&mut client, &mut store, &source, wanted.missing).await?;
            if waiting {
                tell(&format!("loading {}…", wanted.model));
            }
            let request = asked(&source);
            // Ctrl-C is handled here, because a pull that can be interrupted has installed its handler.
            loaded = tokio::select! {
                loaded = client.load(request) => loaded,
                () = interrupted() => return Err(CliError::Interrupted),
            };
            if waiting {
                tell("\r\x1b[K");
            }
        }
        if let Err(status) = &loaded
            && status.code() == tonic::Code::PermissionDenied
        {
            // A client without permission to load may still query loaded models.
            let request = v1::StatsRequest { model: source.clone() };
            let stats = client.stats(request).await.map(|stats| stats.into_inner().models);
            if let Some(status) = stats.ok().and_then(|models| models.into_iter().next()?.status) {
                return Ok(Self { client, speech, status, load: asked(&source), in_process });
            }
        }
        let loaded = loaded.map_err(|status| CliError::Load { model: wanted.model.to_owned(), status })?;
        let status = loaded.into_inner().model.unwrap_or_default();
        Ok(Self { client, speech, status, load: asked(&source), in_process })
    }

    /// Loads the model again if it was unloaded since its last use.
    pub(crate) async fn again(&mut self) -> Result<(), tonic::Status> {
        self.client.load(self.load.clone()).await.map(drop)
    }

    /// Address of the daemon in this process, if there is one.
    pub(crate) fn address(&self) -> Option<&str> {
        self.in_process.as_ref().map(|daemon| daemon.address.as_str())
    }

    /// Releases the model after the work is done. After a failure the process exits without waiting.
    pub(crate) async fn close(self, done: Result<(), CliError>) -> Result<(), CliError> {
        match self.in_process {
            Some(daemon) if done.is_ok() => daemon.close().await,
            _ => done,
        }
    }
}
