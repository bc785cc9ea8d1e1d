//! Conversion of the store's types to the wire's.

use hanzo_engine_proto::v1;
use hanzo_engine_store::{
    Alias, DiskUsage, FileCheck, FileOwner, FileProgress, GarbageCollection, Health, ModelCheck, Phase,
    Progress, Proposal, PullOptions, PullRecord, Role,
};

/// Converts a pull request to a reference and options.
pub(crate) fn pull_request(wire: v1::PullRequest) -> (String, PullOptions) {
    // The remaining fields concern this call only and do not make the pull a different one.
    let v1::PullRequest { reference, force, quantization, revision, include, exclude, copy, .. } = wire;
    let set = |text: String| (!text.is_empty()).then_some(text);
    let (quantization, revision) = (set(quantization), set(revision));
    (reference, PullOptions { force, quantization, revision, include, exclude, copy })
}

/// Identifies the pull to cancel.
pub(crate) fn cancel_request(wire: v1::CancelPullRequest) -> (String, PullOptions) {
    let v1::CancelPullRequest { reference, quantization, revision } = wire;
    pull_request(v1::PullRequest { reference, quantization, revision, ..Default::default() })
}

/// Converts the progress of a pull.
pub(crate) fn pull_progress(progress: Progress, joined: bool) -> v1::PullProgress {
    let current = progress.files.iter().find(|file| file.phase != Phase::Done);
    v1::PullProgress {
        file: current.map(|file| file.name.clone()).unwrap_or_default(),
        model: progress.model,
        phase: phase(progress.phase) as i32,
        bytes_done: progress.bytes_done,
        bytes_total: progress.bytes_total,
        bytes_per_s: progress.bytes_per_s,
        eta_s: progress.eta_s.unwrap_or(-1.0),
        files: progress.files.into_iter().map(file_progress).collect(),
        stored: None,
        joined,
        bytes_fetched: progress.bytes_fetched,
    }
}

fn phase(phase: Phase) -> v1::pull_progress::Phase {
    use v1::pull_progress::Phase as Wire;
    match phase {
        Phase::Resolving => Wire::Resolving,
        Phase::Downloading => Wire::Downloading,
        Phase::Verifying => Wire::Verifying,
        Phase::Done => Wire::Done,
    }
}

fn file_progress(file: FileProgress) -> v1::FileProgress {
    let FileProgress { name, phase: at, bytes_done, bytes_total, digest } = file;
    let digest = digest.unwrap_or_default();
    v1::FileProgress { name, phase: phase(at) as i32, bytes_done, bytes_total, digest }
}

/// Converts the preview of a pull.
pub(crate) fn proposal(proposal: Proposal) -> v1::PullProposal {
    let file = |(name, bytes): (String, Option<u64>)| v1::FileProgress {
        name,
        bytes_total: bytes.unwrap_or(0),
        ..Default::default()
    };
    v1::PullProposal {
        name: proposal.name,
        reference: proposal.reference,
        files: proposal.files.into_iter().map(file).collect(),
        fetch_bytes: proposal.fetch_bytes,
        present_bytes: proposal.present_bytes,
        license: proposal.license.unwrap_or_default(),
    }
}

/// Lists running pulls and interrupted ones.
pub(crate) fn pulls(running: Vec<(String, Progress)>, known: Vec<PullRecord>) -> v1::PullsResponse {
    let runs = |record: &PullRecord| running.iter().any(|(reference, _)| *reference == record.reference);
    let broken = known.into_iter().filter(|record| !runs(record)).map(|record| v1::BrokenPull {
        reference: record.reference,
        began_at_unix_ms: record.began_at_unix_ms,
    });
    let broken_off = broken.collect();
    let running = running.into_iter().map(|(_, progress)| pull_progress(progress, false)).collect();
    v1::PullsResponse { running, broken_off }
}

/// Converts an alias.
pub(crate) fn alias(alias: Alias) -> v1::Alias {
    let Alias { alias, target, builtin } = alias;
    v1::Alias { alias, target, builtin }
}

/// Converts the result of a garbage collection.
pub(crate) fn collected(collected: GarbageCollection) -> v1::CollectResponse {
    let GarbageCollection { paths, freed_bytes, young } = collected;
    let paths = paths.into_iter().map(|path| path.display().to_string()).collect();
    v1::CollectResponse { paths, freed_bytes, young: u32::try_from(young).unwrap_or(u32::MAX) }
}

/// Converts the result of verifying one model.
pub(crate) fn checked(checked: ModelCheck, bytes: u64) -> v1::VerifyProgress {
    let sound = checked.is_sound();
    let files = checked.files.into_iter().map(|FileCheck { path, health }| {
        let path = path.display().to_string();
        let plain = |health: &str| v1::FileHealth {
            path: path.clone(),
            health: health.to_owned(),
            ..Default::default()
        };
        match health {
            Health::Sound => plain("sound"),
            Health::Unchecked => plain("unchecked"),
            Health::Missing => plain("missing"),
            Health::Changed => plain("changed"),
            Health::Corrupt { expected, found } => {
                v1::FileHealth { expected_sha256: expected, found_sha256: found, ..plain("corrupt") }
            }
        }
    });
    let files = files.collect();
    v1::VerifyProgress { model: checked.name, bytes_done: bytes, bytes_total: bytes, files, sound }
}

/// Converts the store's disk usage.
pub(crate) fn disk_usage(usage: DiskUsage, dir: String) -> v1::DiskUsageResponse {
    let model = |model: hanzo_engine_store::ModelUsage| v1::ModelUsage {
        name: model.name,
        size_bytes: model.size_bytes,
        own_bytes: model.own_bytes,
        shared_bytes: model.shared_bytes,
        elsewhere_bytes: model.elsewhere_bytes,
    };
    v1::DiskUsageResponse {
        models: usage.models.into_iter().map(model).collect(),
        blobs_bytes: usage.blobs_bytes,
        orphan_bytes: usage.orphan_bytes,
        partial_bytes: usage.partial_bytes,
        database_bytes: usage.database_bytes,
        elsewhere_bytes: usage.elsewhere_bytes,
        free_bytes: usage.free_bytes,
        dir,
    }
}

/// Name of a file's role in its model.
pub(crate) fn role(role: Role) -> &'static str {
    match role {
        Role::Model => "model",
        Role::Projector => "projector",
        Role::Adapter => "adapter",
        Role::Template => "template",
        Role::System => "system",
        Role::Params => "params",
        Role::Messages => "messages",
        Role::License => "license",
    }
}

/// Name of the way in which the store holds a file.
pub(crate) fn held(held: FileOwner) -> &'static str {
    match held {
        FileOwner::Elsewhere => "elsewhere",
        FileOwner::Blob => "blob",
        FileOwner::Linked => "linked",
    }
}
