//! `cp`, `list --aliases`, `gc`, `verify` and `du`: maintenance of the store.

use crate::args::{CpArgs, DuArgs, GcArgs, ListArgs, VerifyArgs};
use crate::byte_progress::ByteProgress;
use crate::connect::{self, StoreAccess};
use crate::error::CliError;
use crate::paths::reference;
use crate::print::{print_json, print_line, print_table};
use crate::size::{show_bytes, show_count};
use crate::table::Table;
use crate::term::harmless;
use crate::view::Alias;
use hanzo_engine_proto::v1;
use serde::Serialize;

/// Gives a model another name.
pub(crate) async fn cp(args: CpArgs) -> Result<(), CliError> {
    let model = reference(&args.old)?;
    let mut access = StoreAccess::open(&args.engine, &args.store).await?;
    let made = access.store.copy(v1::CopyRequest { model, alias: args.new }).await;
    let made = access.close(made.map_err(connect::failed)).await?.into_inner();
    if args.json {
        return print_json(&Alias::from_proto(made));
    }
    print_line(&format!("{} is {}", made.alias, made.target))
}

/// Prints the aliases.
pub(crate) async fn aliases(args: ListArgs) -> Result<(), CliError> {
    let mut access = StoreAccess::open(&args.engine, &args.store).await?;
    let aliases = access.store.aliases(v1::AliasesRequest {}).await;
    let aliases = access.close(aliases.map_err(connect::failed)).await?.into_inner().aliases;
    let aliases: Vec<Alias> = aliases.into_iter().map(Alias::from_proto).collect();
    if args.json {
        return print_json(&aliases);
    }
    let mut table = Table::new(&["ALIAS", "TARGET"]);
    aliases.into_iter().for_each(|alias| table.row([alias.alias, alias.target]));
    print_table(&table)
}

/// Deletes unused files.
pub(crate) async fn gc(args: GcArgs) -> Result<(), CliError> {
    let mut access = StoreAccess::open(&args.engine, &args.store).await?;
    let collected = access.store.collect(v1::CollectRequest { dry_run: args.dry_run }).await;
    let collected = access.close(collected.map_err(connect::failed)).await?.into_inner();
    let v1::CollectResponse { paths, freed_bytes, young } = collected;
    if args.json {
        #[derive(Serialize)]
        struct CollectionSummary {
            dry_run: bool,
            paths: Vec<String>,
            freed_bytes: u64,
            young: u32,
        }
        return print_json(&CollectionSummary { dry_run: args.dry_run, paths, freed_bytes, young });
    }
    for path in &paths {
        print_line(&harmless(path))?;
    }
    let freed = if args.dry_run { "would free" } else { "freed" };
    let left = match young {
        0 => String::new(),
        1 => "; 1 is younger than an hour and left for now".to_owned(),
        young => format!("; {young} are younger than an hour and left for now"),
    };
    print_line(&format!("{freed} {}{left}", show_bytes(freed_bytes)))
}

/// Printed form of a check.
#[derive(Serialize)]
struct CheckSummary {
    model: String,
    sound: bool,
    files: Vec<CheckedFile>,
}

#[derive(Serialize)]
struct CheckedFile {
    path: String,
    health: String,
    expected_sha256: Option<String>,
    found_sha256: Option<String>,
}

impl CheckSummary {
    fn from_proto(checked: v1::VerifyProgress) -> Self {
        let set = |text: String| Some(text).filter(|text| !text.is_empty());
        let file = |file: v1::FileHealth| CheckedFile {
            path: file.path,
            health: file.health,
            expected_sha256: set(file.expected_sha256),
            found_sha256: set(file.found_sha256),
        };
        let files = checked.files.into_iter().map(file).collect();
        Self { model: checked.model, sound: checked.sound, files }
    }

    fn print(&self) -> Result<(), CliError> {
        let word = if self.sound { "sound" } else { "NOT SOUND" };
        print_line(&format!("{}: {word}, {}", self.model, show_count(self.files.len(), "file")))?;
        for file in self.files.iter().filter(|file| file.health != "sound") {
            print_line(&format!("  {}: {}", file.health, harmless(&file.path)))?;
            if let (Some(expected), Some(found)) = (&file.expected_sha256, &file.found_sha256) {
                print_line(&format!("    was {expected}\n    is  {found}"))?;
            }
        }
        Ok(())
    }
}

/// Reads models' files again and compares digests.
pub(crate) async fn verify(args: VerifyArgs) -> Result<(), CliError> {
    let mut access = StoreAccess::open(&args.engine, &args.store).await?;
    let model = args.model.unwrap_or_default();
    let checked = check(&mut access, model, args.json).await;
    let checked = access.close(checked).await?;
    if args.json {
        print_json(&checked)?;
    }
    let bad: Vec<&str> =
        checked.iter().filter(|model| !model.sound).map(|model| model.model.as_str()).collect();
    if bad.is_empty() {
        return Ok(());
    }
    let (of, names) = (show_count(checked.len(), "model"), bad.join(", "));
    let what = format!("{} of {of} not sound: {names}", bad.len());
    Err(CliError::Unsound(format!("{what}; `hanzo-engine pull --force MODEL` fetches one again")))
}

/// Returns the checked models in order. Prints each when it is checked, unless quiet.
async fn check(access: &mut StoreAccess, model: String, quiet: bool) -> Result<Vec<CheckSummary>, CliError> {
    let asked = access.store.verify(v1::VerifyRequest { model }).await;
    let mut stream = asked.map_err(connect::failed)?.into_inner();
    let mut checked = Vec::new();
    let mut shown = ByteProgress::new("reading", None, quiet);
    let mut seen = 0;
    let end = loop {
        match stream.message().await {
            Ok(Some(progress)) => {
                shown.add(progress.bytes_done.saturating_sub(seen));
                seen = progress.bytes_done;
                if progress.files.is_empty() && !progress.sound {
                    continue;
                }
                seen = 0;
                let model = CheckSummary::from_proto(progress);
                shown.end();
                if !quiet && let Err(error) = model.print() {
                    break Err(error);
                }
                checked.push(model);
            }
            Ok(None) => break Ok(checked),
            Err(status) => break Err(connect::failed(status)),
        }
    };
    shown.end();
    end
}

/// Prints the disk usage.
pub(crate) async fn du(args: DuArgs) -> Result<(), CliError> {
    let mut access = StoreAccess::open(&args.engine, &args.store).await?;
    let usage = access.store.disk_usage(v1::DiskUsageRequest {}).await;
    let usage = access.close(usage.map_err(connect::failed)).await?.into_inner();
    if args.json {
        return print_json(&UsageSummary::from_proto(usage));
    }
    let mut table = Table::new(&["NAME", ">SIZE", ">OWN", ">SHARED", ">ELSEWHERE"]);
    for model in usage.models {
        let [size, own, shared, elsewhere] =
            [model.size_bytes, model.own_bytes, model.shared_bytes, model.elsewhere_bytes].map(show_bytes);
        table.row([model.name, size, own, shared, elsewhere]);
    }
    print_table(&table)?;
    let rows = [
        ("files of pulled models", usage.blobs_bytes),
        ("of them no model's", usage.orphan_bytes),
        ("pulls under way", usage.partial_bytes),
        ("files elsewhere", usage.elsewhere_bytes),
        ("the record itself", usage.database_bytes),
        ("free on the disk", usage.free_bytes),
    ];
    print_line("")?;
    for (what, bytes) in rows {
        print_line(&format!("{what:<22}  {:>8}", show_bytes(bytes)))?;
    }
    if usage.orphan_bytes > 0 || usage.partial_bytes > 0 {
        print_line("`hanzo-engine gc` frees what no model needs, once it is an hour old")?;
    }
    print_line(&format!("in {}", harmless(&usage.dir)))
}

/// Printed form of the disk usage.
#[derive(Serialize)]
struct UsageSummary {
    dir: String,
    models: Vec<UsageOf>,
    blobs_bytes: u64,
    orphan_bytes: u64,
    partial_bytes: u64,
    database_bytes: u64,
    elsewhere_bytes: u64,
    free_bytes: u64,
}

#[derive(Serialize)]
struct UsageOf {
    name: String,
    size_bytes: u64,
    own_bytes: u64,
    shared_bytes: u64,
    elsewhere_bytes: u64,
}

impl UsageSummary {
    fn from_proto(usage: v1::DiskUsageResponse) -> Self {
        let model = |model: v1::ModelUsage| UsageOf {
            name: model.name,
            size_bytes: model.size_bytes,
            own_bytes: model.own_bytes,
            shared_bytes: model.shared_bytes,
            elsewhere_bytes: model.elsewhere_bytes,
        };
        Self {
            dir: usage.dir,
            models: usage.models.into_iter().map(model).collect(),
            blobs_bytes: usage.blobs_bytes,
            orphan_bytes: usage.orphan_bytes,
            partial_bytes: usage.partial_bytes,
            database_bytes: usage.database_bytes,
            elsewhere_bytes: usage.elsewhere_bytes,
            free_bytes: usage.free_bytes,
        }
    }
}
