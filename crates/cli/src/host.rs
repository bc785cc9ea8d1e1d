//! A model that is loaded and can be asked: by the running daemon, or by one in this process.

use crate::args::{EngineArgs, KvTypeName, LogLevel, StoreArgs};
use crate::connect::{self, Client, InProcess, Running, SpeechApi};
use crate::error::CliError;
use crate::missing::{self, IfMissing};
use crate::term::{interrupted, tell};
use hanzo_engine_daemon::config::{Devices, GpuLayers, LogConfig, LogFormat, OverrideConfig};
use hanzo_engine_daemon::{DEMO_MODEL, log};
use hanzo_engine_proto::v1;
use std::io::{IsTerminal, stderr};

/// What was typed of a model and of where to find it.
pub(crate) struct HostOptions<'a> {
    pub(crate) model: &'a str,
    pub(crate) engine: &'a EngineArgs,
    pub(crate) store: &'a StoreArgs,
    /// For a model that this process loads itself.
    pub(crate) kv_type: Option<KvTypeName>,
    /// What drafts for it.
    pub(crate) draft_model: Option<&'a str>,
    /// How many of its layers are on a card.
    pub(crate) gpu_layers: Option<GpuLayers>,
    /// Which devices it may be on.
    pub(crate) gpu_devices: Option<&'a Devices>,
    /// What goes over its files.
    pub(crate) overrides: OverrideConfig,
    pub(crate) log_level: LogLevel,
    /// Do not say that it is loading.
    pub(crate) quiet: bool,
    /// What to do when it is not on this machine.
    pub(crate) missing: IfMissing,
    pub(crate) stays: Stays,
}

impl<'a> HostOptions<'a> {
    /// Of a model that is on this machine and used once, as it is.
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

/// How long a model stays with a daemon that runs already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stays {
    /// As one that a request has loaded.
    AsRequest,
    UntilUnloaded,
}

/// A loaded model.
pub(crate) struct Host {
    /// To ask it.
    pub(crate) client: Client,
    /// To have it hear.
    pub(crate) speech: SpeechApi,
    /// What its daemon said of it once it was loaded.
    pub(crate) status: v1::ModelStatus,
    /// What it was loaded by.
    load: v1::LoadRequest,
    in_process: Option<InProcess>,
}

impl Host {
    /// Finds or starts a daemon and has it load the model.
    pub(crate) async fn open(wanted: HostOptions<'_>) -> Result<Self, CliError> {
        let mut source = connect::model_source(wanted.model)?;
        let draft_model = wanted.draft_model.map(connect::model_source).transpose()?.unwrap_or_default();
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
        let here = connect::absolute(wanted.model).ok();
        let (mut client, mut store, speech, in_process) = match connect::find(wanted.engine).await? {
            Some(_) if wanted.kv_type.is_some() => {
                return Err(CliError::Usage(
                    "--kv-type is for a model that this process loads itself, and a daemon answers: add --engine none"
                        .to_owned(),
                ));
            }
            Some(Running { client, store, speech, .. }) => (client, store, speech, None),
            None => {
                log::init(&LogConfig {
                    level: wanted.log_level.as_str().to_owned(),
                    format: LogFormat::Pretty,
                })?;
                // A path and the built-in model need no record.
                let store_optional = here.is_some() || source.eq_ignore_ascii_case(DEMO_MODEL);
                let daemon =
                    InProcess::start(wanted.store.model_dir.clone(), store_optional, wanted.kv_type).await?;
                (daemon.client.clone(), daemon.store.clone(), daemon.speech.clone(), Some(daemon))
            }
        };
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
            // A pull that could be interrupted has taken Ctrl-C.
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
            // Who may not load may still ask what is loaded.
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

    /// Has the model loaded again, which has left since it was used.
    pub(crate) async fn again(&mut self) -> Result<(), tonic::Status> {
        self.client.load(self.load.clone()).await.map(drop)
    }

    /// Where the daemon of this process is asked, where it is one of this process.
    pub(crate) fn address(&self) -> Option<&str> {
        self.in_process.as_ref().map(|daemon| daemon.address.as_str())
    }

    /// Lets it go once what was asked is done. After a failure the process ends anyway: nothing is waited for.
    pub(crate) async fn close(self, done: Result<(), CliError>) -> Result<(), CliError> {
        match self.in_process {
            Some(daemon) if done.is_ok() => daemon.close().await,
            _ => done,
        }
    }
}
