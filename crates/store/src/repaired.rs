//! Report of the repair of a store.

use std::path::{Path, PathBuf};

/// Result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Damage found in the database or its ledger. None if they were sound.
    pub why: Option<String>,
    /// New path of a damaged database.
    pub database_moved_to: Option<PathBuf>,
    /// Names of models whose records were restored.
    pub restored: Vec<String>,
    /// Number of user aliases that were restored.
    pub aliases: usize,
    /// Lost items by name, with the reason for each.
    pub dropped: Vec<(String, String)>,
    /// Folders without a complete model, with the reason for each.
    pub skipped: Vec<(PathBuf, String)>,
    /// Number of files restored from the blobs to a model's folder, or the other way round.
    pub relinked: usize,
}

impl RepairReport {
    /// Formats one line for people: the damage to the store in `dir`, the result, and the command to run.
    pub fn summary(&self, dir: &Path) -> String {
        let why = self.why.as_deref().unwrap_or("nothing was wrong with it");
        let mut said = format!("the database of the model store at {} was damaged: {why}", dir.display());
        if let Some(aside) = &self.database_moved_to {
            said += &format!("; it was set aside as {}", aside.display());
        }
        if !self.restored.is_empty() || self.aliases > 0 {
            let (models, aliases) = (self.restored.len(), self.aliases);
            said += &format!("; made again with {models} models and {aliases} aliases");
        }
        if let Some((folder, why)) = self.skipped.first() {
            let (count, folder) = (self.skipped.len(), folder.display());
            said += &format!("; {count} folders have no record, the first is {folder} ({why})");
        }
        let lost: Vec<String> = self.dropped.iter().map(|(what, why)| format!("{what} ({why})")).collect();
        said += &match lost.is_empty() {
            true => "; nothing is lost".to_owned(),
            false => format!("; lost: {}", lost.join(", ")),
        };
        said + "; `hanzo-engine doctor --repair` looks at everything that is left"
    }
}
