//! `keys`: creates, lists and revokes API keys. A server reloads the file by itself.

use crate::args::{CreateArgs, KeysArgs, KeysCommand, KeysFileArgs};
use crate::error::CliError;
use crate::print::{print_json, print_line, print_table};
use crate::size::show_age;
use crate::table::Table;
use crate::term::tell;
use hanzo_engine_access::{KeysFile, Record};
use serde_json::json;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs the command.
pub(crate) fn keys(args: KeysArgs) -> Result<(), CliError> {
    match args.command {
        KeysCommand::Create(args) => create(args),
        KeysCommand::List { json, file } => list(json, file),
        KeysCommand::Revoke { name, file } => {
            let revoked = KeysFile::revoke(&path(file)?, &name)?;
            print_line(&format!("revoked {}", revoked.name))
        }
    }
}

fn create(args: CreateArgs) -> Result<(), CliError> {
    let path = path(args.file)?;
    let record = Record {
        name: args.name.clone(),
        admin: args.admin,
        models: args.model,
        requests_per_minute: args.requests_per_minute,
        tokens_per_minute: args.tokens_per_minute,
        concurrency: args.concurrency,
        priority: args.priority,
        ..Record::default()
    };
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(|source| CliError::Path { path: dir.to_owned(), source })?;
    }
    let key = KeysFile::create(&path, record)?;
    if args.json {
        return print_json(&json!({"name": args.name, "key": key.text(), "file": path}));
    }
    tell(&format!("{}: this is shown once; serve with --api-keys-file {}\n", args.name, path.display()));
    print_line(key.text())
}

fn list(json: bool, file: KeysFileArgs) -> Result<(), CliError> {
    let keys = KeysFile::read(&path(file)?)?.keys;
    if json {
        return print_json(&keys);
    }
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let limit = |limit: Option<u32>| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
    let mut table = Table::new(&[
        "NAME",
        "SCOPE",
        ">REQUESTS/MIN",
        ">TOKENS/MIN",
        ">AT ONCE",
        ">PRIORITY",
        "MODELS",
        "MADE",
    ]);
    for record in keys {
        let models = if record.models.is_empty() { "all".to_owned() } else { record.models.join(" ") };
        table.row([
            record.name,
            if record.admin { "admin" } else { "use" }.to_owned(),
            limit(record.requests_per_minute),
            limit(record.tokens_per_minute),
            limit(record.concurrency),
            record.priority.map_or_else(|| "-".to_owned(), |priority| priority.to_string()),
            models,
            show_age(record.created_unix_s.saturating_mul(1000).try_into().unwrap_or(i64::MAX), now_ms),
        ]);
    }
    print_table(&table)
}

/// Path of the named key file, or the default. An empty variable counts as unset.
fn path(file: KeysFileArgs) -> Result<PathBuf, CliError> {
    let named = file.file.filter(|path| !path.as_os_str().is_empty());
    let home = || std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    named.or_else(|| home().map(|home| home.join(".hanzo").join("keys.json"))).ok_or_else(|| {
        CliError::Usage("no home directory to keep the keys in: name a file with --file".to_owned())
    })
}
