//! From what a user writes to a stored model, or to what would have to be pulled: aliases, names, references.

use crate::alias::{self, Alias};
use crate::database::AliasRecord;
use crate::limits::{ALIAS_HOPS_MAX, ALIASES_MAX};
use crate::name::{self, fold};
use crate::record::ModelRecord;
use crate::reference::Reference;
use crate::{Store, StoreError};

/// What a user's words stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A model of the store.
    Stored(ModelRecord),
    /// A model that can be pulled.
    Missing(Reference),
}

impl Store {
    /// What `text` stands for, in this order: a user's alias, a stored model's name (see [`crate::find_name`]), an
    /// alias of the program, a reference. Nothing is asked over the network.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when it is no reference either, [`StoreError::Ambiguous`],
    /// [`StoreError::BadReference`], [`StoreError::Corrupt`], [`StoreError::Database`].
    pub fn resolve(&self, text: &str) -> Result<Found, StoreError> {
        let asked = self.target(text)?;
        let not_found = match self.get(&asked) {
            Ok(record) => return Ok(Found::Stored(record)),
            Err(error @ StoreError::NotFound { .. }) => error,
            Err(error) => return Err(error),
        };
        if let Some(record) = self.find_reference(&asked)? {
            return Ok(Found::Stored(record));
        }
        let reference = match alias::lookup(&asked)? {
            Some(reference) => reference,
            None => Reference::parse(&asked)?,
        };
        match reference {
            Reference::Name(_) => Err(not_found),
            reference => Ok(Found::Missing(reference)),
        }
    }

    /// The stored model that was pulled by what `text` refers to.
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
        // A choice that was left to the pull stands in the kept reference alone.
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

    /// Gives a stored model or a reference another name. The alias goes before the program's own of that name.
    ///
    /// # Errors
    /// [`StoreError::BadName`], [`StoreError::BadAlias`] when a model has that name, the alias would lead to itself, or
    /// the target is a file that the store does not know, [`StoreError::Limit`], and as [`Store::resolve`] when the target is nothing.
    pub fn set_alias(&self, target: &str, alias: &str) -> Result<Alias, StoreError> {
        name::check_name(alias)?;
        let bad = |why: &str| StoreError::BadAlias { alias: alias.to_owned(), why: why.to_owned() };
        let target = match self.resolve(target)? {
            Found::Stored(record) => record.name,
            Found::Missing(Reference::File(_)) => {
                return Err(bad("a file or folder has no other name before it is pulled: pull it first"));
            }
            Found::Missing(reference) => reference.to_string(),
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

    /// Every alias: the user's own, then those of the program that no own one hides, each in order.
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

    /// [`Store::follow`], which must lead somewhere. A model's name looks like a repository of a hub, and is another
    /// one's once the model is gone.
    ///
    /// # Errors
    /// [`StoreError::BadAlias`] for an alias of a model that is not there any more; as [`Store::follow`].
    pub(crate) fn target(&self, text: &str) -> Result<String, StoreError> {
        let target = self.follow(text)?;
        // What an alias stands for is kept as a reference with its scheme, or as the whole name of a model.
        if target == text || target.contains("://") || self.database.exact(&target)?.is_some() {
            return Ok(target);
        }
        let why = format!("it stands for {target}, which is not here any more: pull that, or `rm` the alias");
        Err(StoreError::BadAlias { alias: text.to_owned(), why })
    }

    /// Where the user's aliases lead from `text`: itself when it is none.
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
