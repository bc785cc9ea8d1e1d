//! grpc.health.v1. `""` and every service name report SERVING until the drain begins, except `Store` without a
//! store. A model's name reports SERVING while the model is ready. A task that follows the registry keeps the
//! statuses up to date.

use std::{collections::BTreeMap, sync::Arc};

use hanzo_engine_proto::v1::{engine_server, speech_server, store_server};
use tokio::sync::broadcast::error::RecvError;
use tonic::server::NamedService;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    drain::Drain,
    models::Models,
    service::{EngineService, SpeechService, StoreService},
    views::{ModelView, StateView},
};

/// Name of the store's service.
const STORE: &str = <store_server::StoreServer<StoreService> as NamedService>::NAME;

/// Names of the daemon as a whole and of all its services.
const DAEMON: [&str; 7] = [
    "",
    <engine_server::EngineServer<EngineService> as NamedService>::NAME,
    <speech_server::SpeechServer<SpeechService> as NamedService>::NAME,
    STORE,
    tonic_health::pb::health_server::SERVICE_NAME,
    tonic_reflection::pb::v1::server_reflection_server::SERVICE_NAME,
    tonic_reflection::pb::v1alpha::server_reflection_server::SERVICE_NAME,
];

/// Sets every status, follows the models until the drain begins, and then reports that nothing serves.
pub(crate) async fn follow(mut reporter: HealthReporter, models: Arc<Models>, drain: Drain) {
    for name in DAEMON {
        let serves = name != STORE || models.store.is_some();
        let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
        reporter.set_service_status(name, status).await;
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
                // Models that are gone are missing from the snapshot.
                for name in known.keys().filter(|name| !now.iter().any(|view| view.name == **name)) {
                    reporter.clear_service_status(name).await;
                }
                known.retain(|name, _| now.iter().any(|view| view.name == *name));
                views = now;
            }
            Err(RecvError::Closed) => break,
        }
    }
    for name in DAEMON.into_iter().chain(known.keys().map(String::as_str)) {
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
        StateView::Queued | StateView::Loading { .. } | StateView::Draining | StateView::Failed { .. } => {
            ServingStatus::NotServing
        }
    };
    if known.insert(view.name.clone(), status) != Some(status) {
        reporter.set_service_status(&view.name, status).await;
    }
}
