//! The call Stats.

use std::sync::Arc;

use hanzo_engine_proto::v1;

use super::Core;
use crate::{convert::reply, error::Error};

/// Collects counters and gauges of every model, or of one.
pub(crate) async fn stats(core: &Arc<Core>, model: &str) -> Result<v1::StatsResponse, Error> {
    let views = match model {
        "" => core.models.registry.views(),
        model => vec![core.models.registry.view(&core.models.loaded_name(model).await)?],
    };
    Ok(v1::StatsResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_ms: u64::try_from(core.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        memory_budget_bytes: core.models.places.iter().map(|place| place.budget.total_bytes()).sum(),
        memory_used_bytes: core.models.places.iter().map(|place| place.budget.used_bytes()).sum(),
        models: views.iter().map(reply::model_stats).collect(),
        draining: core.drain.is_draining(),
        ready: !core.drain.is_draining() && core.models.is_ready(),
    })
}
