//! grpc.health.v1: `""` and the engine service serve until the drain begins; a model, by its name, serves while it
//! is ready. Kept up to date by a task that follows the registry's changes.

use std::{collections::BTreeMap, sync::Arc};

use hanzo_engine_proto::v1::engine_server;
use tokio::sync::broadcast::error::RecvError;
use tonic::server::NamedService;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    drain::Drain,
    models::Models,
    registry::{ModelView, StateView},
    service::EngineService,
};

/// The name of the engine's service.
fn service_name() -> &'static str {
    <engine_server::EngineServer<EngineService> as NamedService>::NAME
}

/// Sets every status, then follows the models until the drain begins, and then says that nothing serves.
pub(crate) async fn follow(mut reporter: HealthReporter, models: Arc<Models>, drain: Drain) {
    let daemon = ["", service_name()];
    for name in daemon {
        reporter.set_service_status(name, ServingStatus::Serving).await;
    }
    let mut known = BTreeMap::new();
    let (mut views, mut changes) = models.registry.watch();
    loop {
        for view in views.drain(..) {
            set(&mut reporter, &mut known, view).await;
        }
        let changed = tokio::select! {
            changed = changes.recv() => changed,
            () = drain.begun() => break,
        };
        match changed {
            Ok(view) => views.push(view),
            Err(RecvError::Lagged(_)) => {
                let (now, fresh) = models.registry.watch();
                changes = fresh;
                // Those that are gone are missing from the snapshot.
                for name in known.keys().filter(|name| !now.iter().any(|view| view.name == **name)) {
                    reporter.clear_service_status(name).await;
                }
                known.retain(|name, _| now.iter().any(|view| view.name == *name));
                views = now;
            }
            Err(RecvError::Closed) => break,
        }
    }
    for name in daemon.into_iter().chain(known.keys().map(String::as_str)) {
        reporter.set_service_status(name, ServingStatus::NotServing).await;
    }
}

async fn set(reporter: &mut HealthReporter, known: &mut BTreeMap<String, ServingStatus>, view: ModelView) {
    let status = match view.state {
        StateView::Unloaded => {
            known.remove(&view.name);
            return reporter.clear_service_status(&view.name).await;
        }
        StateView::Ready => ServingStatus::Serving,
        StateView::Loading { .. } | StateView::Draining | StateView::Failed { .. } => {
            ServingStatus::NotServing
        }
    };
    if known.insert(view.name.clone(), status) != Some(status) {
        reporter.set_service_status(&view.name, status).await;
    }
}
