//! Compiled constraints of one model's requests, kept in a cache. Equal constraints are compiled once, however many
//! requests use them at once. Compiling runs on its own thread, which cannot be interrupted. The number of
//! compilations at a time is therefore limited per model and per client, and a request waits for one for a bounded
//! time.

use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use hanzo_engine_constraints::{Grammar, Spec};
use hanzo_engine_runtime::{ClientId, RequestError, TextModel};

use crate::{
    error::Error,
    limits::{
        CONSTRAINT_COMPILES_MAX, CONSTRAINT_COMPILES_OF_CLIENT_MAX, CONSTRAINT_TIME_MAX,
        CONSTRAINTS_BYTES_MAX,
    },
};

/// Interval at which a waiting request checks whether its client is still connected.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Cache of one model's compiled constraints.
#[derive(Default)]
pub(crate) struct Constraints {
    shared: Arc<CompilerState>,
}

#[derive(Default)]
struct CompilerState {
    cache: Mutex<GrammarCache>,
    changed: Condvar,
}

#[derive(Default)]
struct GrammarCache {
    entries: HashMap<Arc<Spec>, GrammarEntry>,
    compiling: Vec<Option<ClientId>>, // clients of the running compilations
    bytes: u64,                       // estimated memory of the compiled ones
    uses: u64,
}

struct GrammarEntry {
    state: GrammarState,
    last_use: u64,
}

enum GrammarState {
    Compiling { client: Option<ClientId>, since: Instant },
    Compiled(Arc<Grammar>),
    Refused(String),
}

impl Constraints {
    /// Returns the compiled constraint; blocks until it is there. The time until compiling begins does not count
    /// towards the limit.
    ///
    /// # Errors
    /// [`Error::Field`] for a constraint that is refused. [`Error::Busy`] for one that takes too long: it is still
    /// compiled to the end, so that the same request finds it later. [`RequestError::Interrupted`].
    pub(crate) fn compiled(
        &self,
        spec: Spec,
        text: &Arc<TextModel>,
        client: Option<ClientId>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Arc<Grammar>, Error> {
        let spec = Arc::new(spec);
        let mut cache = self.shared.lock();
        loop {
            cache.uses += 1;
            let (now, may_begin) = (cache.uses, cache.may_begin(client));
            match cache.entries.get_mut(&spec) {
                Some(entry) => {
                    entry.last_use = now;
                    match &entry.state {
                        GrammarState::Compiled(grammar) => return Ok(grammar.clone()),
                        GrammarState::Refused(reason) => {
                            return Err(Error::field("constraint", reason.clone()));
                        }
                        GrammarState::Compiling { since, .. } if since.elapsed() >= CONSTRAINT_TIME_MAX => {
                            let seconds = CONSTRAINT_TIME_MAX.as_secs();
                            return Err(Error::Busy { what: "compiling the constraint", seconds });
                        }
                        GrammarState::Compiling { .. } => {}
                    }
                }
                None if may_begin => {
                    cache.compiling.push(client);
                    let state = GrammarState::Compiling { client, since: Instant::now() };
                    cache.entries.insert(spec.clone(), GrammarEntry { state, last_use: now });
                    self.begin(&mut cache, &spec, text);
                    continue;
                }
                None => {}
            }
            if interrupted() {
                return Err(RequestError::Interrupted.into());
            }
            let waited = self.shared.changed.wait_timeout(cache, LOOK_EVERY);
            cache = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns a constraint that is already compiled.
    pub(crate) fn ready(&self, spec: &Spec) -> Option<Arc<Grammar>> {
        let mut cache = self.shared.lock();
        cache.uses += 1;
        let now = cache.uses;
        let entry = cache.entries.get_mut(spec)?;
        entry.last_use = now;
        match &entry.state {
            GrammarState::Compiled(grammar) => Some(grammar.clone()),
            GrammarState::Compiling { .. } | GrammarState::Refused(_) => None,
        }
    }

    /// Estimated memory of the cache in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.lock().bytes
    }

    /// Starts a compilation on a new thread.
    fn begin(&self, cache: &mut GrammarCache, spec: &Arc<Spec>, text: &Arc<TextModel>) {
        let (shared, to_compile, text) = (self.shared.clone(), spec.clone(), text.clone());
        let compile = move || {
            let compiled = text
                .vocabulary()
                .map_err(|error| error.to_string())
                .and_then(|words| Grammar::compile(&to_compile, &words).map_err(|error| error.to_string()));
            shared.finish(&to_compile, compiled);
        };
        if let Err(error) = thread::Builder::new().name("constraints".to_owned()).spawn(compile) {
            cache.finish(spec, Err(format!("there is no thread to compile it on: {error}")));
        }
    }
}

impl CompilerState {
    fn lock(&self) -> MutexGuard<'_, GrammarCache> {
        // No code that may panic leaves it half updated.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, spec: &Arc<Spec>, compiled: Result<Arc<Grammar>, String>) {
        self.lock().finish(spec, compiled);
        self.changed.notify_all();
    }
}

impl GrammarCache {
    /// Checks whether one more compilation may start for this client.
    fn may_begin(&self, client: Option<ClientId>) -> bool {
        let own = self.compiling.iter().filter(|&&other| other == client).count();
        self.compiling.len() < CONSTRAINT_COMPILES_MAX && own < CONSTRAINT_COMPILES_OF_CLIENT_MAX
    }

    fn finish(&mut self, spec: &Arc<Spec>, compiled: Result<Arc<Grammar>, String>) {
        if let Some(GrammarEntry { state: GrammarState::Compiling { client, .. }, .. }) =
            self.entries.get(spec)
            && let Some(done) = self.compiling.iter().position(|other| other == client)
        {
            self.compiling.swap_remove(done);
        }
        let state = match compiled {
            Ok(grammar) => GrammarState::Compiled(grammar),
            Err(reason) => GrammarState::Refused(reason),
        };
        self.bytes += bytes(spec, &state);
        if let Some(entry) = self.entries.get_mut(spec) {
            entry.state = state;
        }
        while self.bytes > CONSTRAINTS_BYTES_MAX {
            // The new one stays even if it is larger than the whole cache: its request would compile it for ever.
            let done = self.entries.iter().filter(|(other, entry)| {
                *other != spec && !matches!(entry.state, GrammarState::Compiling { .. })
            });
            let Some((oldest, _)) = done.min_by_key(|(_, entry)| entry.last_use) else { break };
            let oldest = oldest.clone();
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= bytes(&oldest, &entry.state);
            }
        }
    }
}

/// Estimated memory of an entry in bytes.
fn bytes(spec: &Spec, state: &GrammarState) -> u64 {
    let source = match spec {
        Spec::JsonObject => 0,
        Spec::Choices(texts) => texts.iter().map(|text| text.len() + size_of::<String>()).sum(),
        Spec::JsonSchema(text)
        | Spec::Regex(text)
        | Spec::Lark(text)
        | Spec::Schemas(text)
        | Spec::Gbnf(text) => text.len(),
    };
    let compiled = match state {
        GrammarState::Compiling { .. } => 0,
        GrammarState::Compiled(grammar) => grammar.bytes(),
        GrammarState::Refused(reason) => reason.len() as u64,
    };
    source as u64 + compiled + 512
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hanzo_engine_runtime::ModelFiles;

    use super::*;

    fn demo() -> Arc<TextModel> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
        let files = ModelFiles::open(&path).expect("the demo model opens");
        Arc::new(TextModel::load(&files).expect("the demo model has a text side"))
    }

    #[test]
    fn equal_constraints_are_compiled_once() {
        let (constraints, text) = (Arc::new(Constraints::default()), demo());
        assert_eq!((constraints.bytes(), text.vocabulary_bytes()), (0, 0));
        let compiled: Vec<Arc<Grammar>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..100)
                .map(|_| {
                    scope.spawn(|| constraints.compiled(Spec::JsonObject, &text, None, &|| false).unwrap())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(compiled.iter().all(|one| Arc::ptr_eq(one, &compiled[0])));
        assert!(constraints.bytes() > compiled[0].bytes());
        assert_eq!(text.vocabulary_bytes(), text.vocabulary().unwrap().bytes());
        assert!(text.vocabulary_bytes() > 0);
        let refused = |source: &str| {
            constraints.compiled(Spec::Gbnf(source.into()), &text, None, &|| false).unwrap_err()
        };
        let error = "constraint: line 1, column 10: there is nothing to repeat";
        assert_eq!(
            (refused("root ::= *").to_string(), refused("root ::= *").to_string()),
            (error.into(), error.into())
        );
        let left = constraints.compiled(Spec::Regex("[a-z]{1,9}".into()), &text, None, &|| true);
        assert!(matches!(left, Err(Error::Request(RequestError::Interrupted))), "{left:?}");
    }

    #[test]
    fn the_oldest_go_where_there_is_no_room() {
        let (constraints, text) = (Constraints::default(), demo());
        let regex = |index: usize| Spec::Regex(format!("[a-z]{{{}}}", index + 1));
        let first = constraints.compiled(regex(0), &text, None, &|| false).unwrap();
        let count = (CONSTRAINTS_BYTES_MAX / first.bytes()) as usize;
        for index in 1..count.min(40) {
            constraints.compiled(regex(index), &text, None, &|| false).unwrap();
        }
        let mut cache = constraints.shared.lock();
        let used: u64 = cache.entries.iter().map(|(spec, entry)| bytes(spec, &entry.state)).sum();
        assert_eq!(cache.bytes, used);
        // Pretend that the cache is full.
        cache.bytes += CONSTRAINTS_BYTES_MAX - used;
        cache.compiling.push(None);
        let new = Arc::new(regex(99));
        let state = GrammarState::Compiling { client: None, since: Instant::now() };
        cache.entries.insert(new.clone(), GrammarEntry { state, last_use: u64::MAX });
        cache.finish(&new, Ok(first));
        assert!(!cache.entries.contains_key(&regex(0)) && cache.entries.contains_key(&new));
        assert!(cache.bytes <= CONSTRAINTS_BYTES_MAX);
    }

    #[test]
    fn a_constraint_larger_than_the_cache_is_there_for_its_request() {
        let (constraints, text) = (Constraints::default(), demo());
        let first = constraints.compiled(Spec::Regex("[a-z]".into()), &text, None, &|| false).unwrap();
        let mut cache = constraints.shared.lock();
        let large = Arc::new(Spec::Regex("large".into()));
        let state = GrammarState::Compiling { client: None, since: Instant::now() };
        cache.compiling.push(None);
        cache.entries.insert(large.clone(), GrammarEntry { state, last_use: u64::MAX });
        // Pretend that it takes all of the cache.
        cache.bytes += CONSTRAINTS_BYTES_MAX;
        cache.finish(&large, Ok(first));
        assert_eq!(cache.entries.keys().collect::<Vec<_>>(), [&large]);
    }

    /// Pretends that a constraint is being compiled for a client and never finishes.
    fn endless(constraints: &Constraints, client: u64, since: Instant) -> Spec {
        let spec = Spec::Regex(format!("endless {client}"));
        let mut cache = constraints.shared.lock();
        cache.compiling.push(Some(ClientId(client)));
        let state = GrammarState::Compiling { client: Some(ClientId(client)), since };
        cache.entries.insert(Arc::new(spec.clone()), GrammarEntry { state, last_use: 0 });
        spec
    }

    #[test]
    fn one_client_never_has_all_compilers_and_a_slow_constraint_is_no_fault_of_the_request() {
        let (constraints, text) = (Constraints::default(), demo());
        let long_ago = Instant::now().checked_sub(CONSTRAINT_TIME_MAX).unwrap();
        let slow = endless(&constraints, 1, long_ago);
        let status = tonic::Status::from(constraints.compiled(slow, &text, None, &|| false).unwrap_err());
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        // The same client waits for its turn until it disconnects; another client is served.
        let asked = std::cell::Cell::new(0);
        let leaves = || asked.replace(asked.get() + 1) > 1;
        let waits = constraints.compiled(Spec::JsonObject, &text, Some(ClientId(1)), &leaves);
        assert!(matches!(waits, Err(Error::Request(RequestError::Interrupted))), "{waits:?}");
        constraints.compiled(Spec::JsonObject, &text, Some(ClientId(2)), &|| false).unwrap();
        endless(&constraints, 3, long_ago);
        let waits = constraints.compiled(Spec::Regex("a".into()), &text, Some(ClientId(2)), &|| true);
        assert!(matches!(waits, Err(Error::Request(RequestError::Interrupted))), "{waits:?}");
    }
}
