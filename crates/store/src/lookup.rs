//! Resolution of user input to a stored model or to a reference to pull: aliases, names, references.

use crate::alias::{self, Alias};
use crate::database::AliasRecord;
use crate::limits::{ALIAS_HOPS_MAX, ALIASES_MAX};
use crate::name::{self, fold};
use crate::record::ModelRecord;
use crate::reference::Reference;
use crate::{Store, StoreError};

/// Result of resolving a user's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelLookup {
    /// Model in the store.
    Stored(ModelRecord),
    /// Model that is not in the store and can be pulled.
    Missing(Reference),
}

impl Store {
    /// Resolves `text`, in this order: a user's alias, a stored model's name (see [`crate::find_name`]), a
    /// built-in alias, a reference. Sends nothing over the network.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if it is no reference either, [`StoreError::Ambiguous`],
    /// [`StoreError::BadReference`], [`StoreError::Corrupt`], [`StoreError::Database`].
    pub fn resolve(&self, text: &str) -> Result<ModelLookup, StoreError> {
        let asked = self.target(text)?;
        let not_found = match self.get(&asked) {
            Ok(record) => return Ok(ModelLookup::Stored(record)),
            Err(error @ StoreError::NotFound { .. }) => error,
            Err(error) => return Err(error),
        };
        if let Some(record) = self.find_reference(&asked)? {
            return Ok(ModelLookup::Stored(record));
        }
        let reference = match alias::lookup(&asked)? {
            Some(reference) => reference,
            None => Reference::parse(&asked)?,
        };
        match reference {
            Reference::Name(_) => Err(not_found),
            reference => Ok(ModelLookup::Missing(reference)),
        }
    }

    /// Returns the stored model that was pulled by the reference in `text`.
    pub(crate) fn find_reference(&self, text: &str) -> Result<Option<ModelRecord>, StoreError> {
        let reference = match alias::lookup(text) {
            Ok(Some(reference)) => reference,
            Ok(None) => match Reference::parse(text) {
                Ok(Reference::Name(_)) | Err(_) => return Ok(None),
                Ok(reference) => reference,
            },
            Err(_) => return Ok(None),
        };
        let wanted = fold(&reference.to_string());
        // If the user left the choice open, only the stored reference has it, so compare without it.
        let open_choice = matches!(&reference, Reference::Hub(hub) if hub.choice.is_none());
        let mut matching = Vec::new();
        for record in self.list()?.models {
            let kept = fold(&record.reference);
            if kept == wanted {
                return Ok(Some(record));
            }
            if open_choice && kept.strip_prefix(&wanted).is_some_and(|rest| rest.starts_with(':')) {
                matching.push(record);
            }
        }
        match matching.len() {
            0 | 1 => Ok(matching.pop()),
            _ => Err(StoreError::Ambiguous {
                name: text.to_owned(),
                candidates: matching.into_iter().map(|record| record.name).collect(),
            }),
        }
    }

    /// Gives a stored model or a reference another name. It takes precedence over a built-in alias of that
    /// name.
    ///
    /// # Errors
    /// [`StoreError::BadName`]. [`StoreError::BadAlias`] if a model has that name, the alias would lead to
    /// itself, or the target is a file that the store does not know. [`StoreError::Limit`]. As
    /// [`Store::resolve`] if the target does not exist.
    pub fn set_alias(&self, target: &str, alias: &str) -> Result<Alias, StoreError> {
        name::check_name(alias)?;
        let bad = |why: &str| StoreError::BadAlias { alias: alias.to_owned(), why: why.to_owned() };
        let target = match self.resolve(target)? {
            ModelLookup::Stored(record) => record.name,
            ModelLookup::Missing(Reference::File(_)) => {
                return Err(bad("a file or folder has no other name before it is pulled: pull it first"));
            }
            ModelLookup::Missing(reference) => reference.to_string(),
        };
        if name::is_reserved(alias) {
            return Err(bad("it is the name of the model that is built into this program"));
        }
        if fold(&target) == fold(alias) {
            return Err(bad("it would stand for itself"));
        }
        let _writing = self.lock();
        if self.database.exact(alias)?.is_some() {
            return Err(bad("a model of the store has that name"));
        }
        if self.database.alias(alias)?.is_none() {
            let count = self.database.aliases()?.len();
            if count >= ALIASES_MAX {
                return Err(StoreError::limit("the number of aliases", count as u64 + 1, ALIASES_MAX as u64));
            }
        }
        let record = AliasRecord { alias: alias.to_owned(), target };
        self.database.put_alias(&record)?;
        Ok(Alias { alias: record.alias, target: record.target, builtin: false })
    }

    /// Lists every alias: first the user's, then the built-in ones that are not overridden, each in order.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub fn aliases(&self) -> Result<Vec<Alias>, StoreError> {
        let own = self.database.aliases()?;
        let hidden = |alias: &str| own.iter().any(|own| fold(&own.alias) == alias);
        let builtin = alias::builtin().iter().filter(|(alias, _)| !hidden(alias));
        let builtin: Vec<Alias> = builtin
            .map(|(alias, target)| Alias { alias: alias.clone(), target: target.clone(), builtin: true })
            .collect();
        let own =
            own.into_iter().map(|AliasRecord { alias, target }| Alias { alias, target, builtin: false });
        Ok(own.chain(builtin).collect())
    }

    /// Does what [`Store::follow`] does, and checks that the target of an alias still exists. Without the
    /// check, the name of a removed model would be read as a hub repository.
    ///
    /// # Errors
    /// [`StoreError::BadAlias`] for an alias of a removed model; as [`Store::follow`].
    pub(crate) fn target(&self, text: &str) -> Result<String, StoreError> {
        let target = self.follow(text)?;
        // An alias's target is stored as a reference with its scheme, or as the full name of a model.
        if target == text || target.contains("://") || self.database.exact(&target)?.is_some() {
            return Ok(target);
        }
        let why = format!("it stands for {target}, which is not here any more: pull that, or `rm` the alias");
        Err(StoreError::BadAlias { alias: text.to_owned(), why })
    }

    /// Follows the user's aliases from `text`. Returns `text` itself if it is no alias.
    pub(crate) fn follow(&self, text: &str) -> Result<String, StoreError> {
        let mut text = text.to_owned();
        for _ in 0..ALIAS_HOPS_MAX {
            match self.database.alias(&text)? {
                Some(record) => text = record.target,
                None => return Ok(text),
            }
        }
        Err(StoreError::BadAlias { alias: text, why: "it leads from alias to alias without end".to_owned() })
    }
}
