//! What became of a store whose database was damaged or lost.

use std::path::{Path, PathBuf};

/// What was mended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// What was wrong with the database or its ledger; none: nothing.
    pub why: Option<String>,
    /// Where a database that was damaged was moved.
    pub database_moved_to: Option<PathBuf>,
    /// Names of models that have a record again.
    pub restored: Vec<String>,
    /// User's aliases that are there again.
    pub aliases: usize,
    /// What is lost, by name, and why.
    pub dropped: Vec<(String, String)>,
    /// Folders that are no whole model, and why.
    pub skipped: Vec<(PathBuf, String)>,
    /// Files that were gone from the blobs or from a model's folder, and were still in the other.
    pub relinked: usize,
}

impl Repaired {
    /// One line for people: what happened to the store in `dir`, what became of it, and what to type.
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
