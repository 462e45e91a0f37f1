//! The registered servers, kept up to date by a thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;

use super::gateway::{CALL_PATIENCE, Gateway};
use super::{EtcdAccess, EtcdLocation, Member, RegisteredServers};
use crate::error::ClientError;

/// First pause before an unreachable etcd is asked again. Pauses double.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A watched map. Its thread ends within one watch after this is dropped. A forked child starts
/// another thread.
pub(in super::super) struct Watch {
    /// The address after `etcd:`.
    place: String,
    access: EtcdAccess,
    shared: PerProcess<Arc<Shared>>,
}

struct Shared {
    place: String,
    state: Mutex<State>,
    has_looked: Condvar,
    changes: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The servers seen last; they stay while etcd is unreachable.
    members: Option<Vec<Member>>,
    failure: String,
    /// The skipped entries, as logged last.
    left_out: (usize, Vec<String>),
}

impl Watch {
    /// Starts to watch.
    pub(in super::super) fn start(text: &str, access: EtcdAccess) -> Result<Self, ClientError> {
        let watch = Self { place: text.to_owned(), access, shared: PerProcess::new() };
        watch.shared()?;
        Ok(watch)
    }

    /// Returns the state of this process's thread, which is started first if there is none.
    fn shared(&self) -> Result<&Shared, ClientError> {
        Ok(self.shared.get_or_try(|_| Shared::watched(&self.place, &self.access))?)
    }

    /// Returns the servers seen last; waits for the first reply.
    ///
    /// # Errors
    /// etcd has not been reached yet.
    pub(in super::super) fn members(&self) -> Result<Vec<Member>, ClientError> {
        let shared = self.shared()?;
        let state = shared.lock();
        let is_new = |state: &mut State| state.members.is_none() && state.failure.is_empty();
        let waited = shared.has_looked.wait_timeout_while(state, CALL_PATIENCE, is_new);
        let (state, _) = waited.ignore_poison();
        state.members.clone().ok_or_else(|| ClientError::Map {
            map: shared.place.clone(),
            reason: if state.failure.is_empty() { "no reply" } else { &state.failure }.to_owned(),
        })
    }

    /// Returns whether etcd has replied to the last request.
    pub(in super::super) fn is_current(&self) -> bool {
        self.shared().is_ok_and(|shared| {
            let state = shared.lock();
            state.members.is_some() && state.failure.is_empty()
        })
    }

    /// Returns how often the servers have changed.
    pub(in super::super) fn changes(&self) -> u64 {
        self.shared().map_or(0, |shared| shared.changes.load(Ordering::Acquire))
    }
}

impl Shared {
    /// Starts the thread that watches.
    fn watched(text: &str, access: &EtcdAccess) -> Result<Arc<Self>, ClientError> {
        let gateway = Gateway::new(EtcdLocation::of(text, access)?, access.clone());
        let shared = Arc::new(Self {
            place: format!("etcd:{text}"),
            state: Mutex::default(),
            has_looked: Condvar::new(),
            changes: AtomicU64::new(0),
        });
        let of_thread = Arc::downgrade(&shared);
        let thread = std::thread::Builder::new().name("lode-map".to_owned());
        let spawned = thread.spawn(move || watch(&gateway, &of_thread));
        spawned.map_err(|source| ClientError::Poll { source })?;
        Ok(shared)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }

    fn seen(&self, RegisteredServers { members, n_nonsense, strangers }: RegisteredServers) {
        let mut state = self.lock();
        let left_out = (n_nonsense, strangers);
        if left_out != state.left_out {
            let (map, strangers) = (&self.place, left_out.1.join(", "));
            tracing::warn!(
                map,
                n_nonsense,
                strangers,
                "skipping keys that name no server, or a server of another graph"
            );
        }
        // Load is not compared: clients measure it themselves.
        let same = |(a, b): (&Member, &Member)| a.address == b.address && a.parts == b.parts;
        let known = state.members.as_ref();
        let is_known = known.is_some_and(|known| {
            known.len() == members.len() && known.iter().zip(&members).all(same)
        });
        if !is_known {
            self.changes.fetch_add(1, Ordering::Release);
        }
        *state = State { members: Some(members), failure: String::new(), left_out };
        self.has_looked.notify_all();
    }

    fn failed(&self, failure: String) {
        let mut state = self.lock();
        if state.failure.is_empty() {
            tracing::warn!(map = self.place, %failure, "etcd unreachable, keeping known servers");
        }
        state.failure = failure;
        self.has_looked.notify_all();
    }
}

fn watch(gateway: &Gateway, shared: &Weak<Shared>) {
    let mut pause = PAUSE_MIN;
    while shared.strong_count() > 0 {
        let looked = gateway.range();
        let Some(of_client) = shared.upgrade() else { return };
        let waited = match looked {
            Ok((values, graph, revision)) => {
                of_client.seen(RegisteredServers::of(values.into_iter(), graph.as_deref()));
                drop(of_client);
                let start = Instant::now();
                let waited = gateway.wait_for_change(revision);
                // Limits the rate if etcd ends every watch at once.
                std::thread::sleep(PAUSE_MIN.saturating_sub(start.elapsed()));
                waited
            }
            Err(failure) => {
                of_client.failed(failure);
                Err(String::new())
            }
        };
        if waited.is_ok() {
            pause = PAUSE_MIN;
        } else {
            std::thread::sleep(pause);
            pause = PAUSE_MAX.min(2 * pause);
        }
    }
}
