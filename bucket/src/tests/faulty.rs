//! A store in memory that stops, changes or fails before and after each operation, and whose clock
//! is a number.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use lodestore_graph::lock::IgnorePoison;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};

use crate::bucket::Bucket;

/// Prefix of all keys.
const PREFIX: &str = "below/here";

/// What is done with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Get,
    Head,
    Write,
    /// Written if absent.
    Create,
    Remove,
    /// The key is the prefix of those that are listed.
    List,
}

/// A moment of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Before,
    After,
}

/// Whether an operation continues. After it is done it can only lose its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Continue,
    Fail,
    /// The credentials do not permit it.
    Refuse,
    /// This operation and all later ones of this bucket fail: its process is gone.
    Stop,
}

type Hook = Box<dyn FnMut(Moment, Operation, &str) -> Verdict + Send>;

/// Objects that several buckets share.
#[derive(Debug, Default)]
pub(super) struct Memory {
    objects: InMemory,
    /// Milliseconds.
    now: AtomicU64,
    written: Mutex<HashMap<Path, u64>>,
}

impl Memory {
    /// Lets time pass.
    pub(super) fn pass(&self, time: Duration) {
        self.now.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }

    /// Writes an object at this moment, beside all buckets.
    pub(super) fn write(&self, key: &str, bytes: &[u8]) {
        let at = path(key);
        let payload = PutPayload::from(bytes.to_vec());
        self.objects.put(&at, payload).now_or_never().unwrap().unwrap();
        self.note(&at);
    }

    pub(super) fn read(&self, key: &str) -> Option<Vec<u8>> {
        let read = async { self.objects.get(&path(key)).await?.bytes().await };
        read.now_or_never().unwrap().ok().map(|bytes| bytes.to_vec())
    }

    pub(super) fn remove(&self, key: &str) {
        self.objects.delete(&path(key)).now_or_never().unwrap().unwrap();
    }

    /// Returns the keys below a prefix.
    pub(super) fn keys(&self, prefix: &str) -> Vec<String> {
        let listed = self.list(&path(prefix));
        let key = |object: Result<ObjectMeta>| {
            let location = object.unwrap().location;
            location.as_ref().strip_prefix(PREFIX).unwrap().trim_start_matches('/').to_owned()
        };
        listed.into_iter().map(key).collect()
    }

    fn list(&self, prefix: &Path) -> Vec<Result<ObjectMeta>> {
        let listed = self.objects.list(Some(prefix)).collect::<Vec<_>>();
        let listed = listed.now_or_never().unwrap();
        listed.into_iter().map(|it| it.map(|object| self.stamped(object))).collect()
    }

    fn note(&self, at: &Path) {
        let now = self.now.load(Ordering::SeqCst);
        self.written.lock().ignore_poison().insert(at.clone(), now);
    }

    /// Returns an object with the time at which it was written.
    fn stamped(&self, mut object: ObjectMeta) -> ObjectMeta {
        let now = self.now.load(Ordering::SeqCst);
        // One that another thread has written at this moment has no time yet.
        let written = self.written.lock().ignore_poison();
        let written = written.get(&object.location).copied().unwrap_or(now);
        let by_system = object.last_modified.timestamp_millis().unsigned_abs();
        let epoch = object.last_modified - Duration::from_millis(by_system);
        object.last_modified = epoch + Duration::from_millis(1_000_000_000_000 + written);
        object
    }
}

/// Returns the bucket of a process.
pub(super) fn bucket(memory: &Arc<Memory>) -> Bucket {
    hooked(memory, |_, _, _| Verdict::Continue)
}

/// Returns the bucket of a process with a hook in each of its operations.
pub(super) fn hooked(
    memory: &Arc<Memory>,
    hook: impl FnMut(Moment, Operation, &str) -> Verdict + Send + 'static,
) -> Bucket {
    over(Faulty::new(memory, Box::new(hook)))
}

/// Does as [`hooked`]; other requests run between the begin and the end of each.
pub(super) fn waiting(
    memory: &Arc<Memory>,
    hook: impl FnMut(Moment, Operation, &str) -> Verdict + Send + 'static,
) -> Bucket {
    over(Faulty { waits: true, ..Faulty::new(memory, Box::new(hook)) })
}

fn over(store: Faulty) -> Bucket {
    Bucket::over("memory://t".to_owned(), Arc::new(store), Path::from(PREFIX)).unwrap()
}

fn path(key: &str) -> Path {
    Path::from(format!("{PREFIX}/{key}"))
}

/// The store of one process.
struct Faulty {
    memory: Arc<Memory>,
    hook: Mutex<Hook>,
    is_stopped: AtomicBool,
    waits: bool,
}

impl Faulty {
    fn new(memory: &Arc<Memory>, hook: Hook) -> Self {
        let (memory, hook) = (Arc::clone(memory), Mutex::new(hook));
        Self { memory, hook, is_stopped: AtomicBool::new(false), waits: false }
    }

    async fn wait(&self) {
        if self.waits {
            tokio::task::yield_now().await;
        }
    }

    fn pass(&self, moment: Moment, operation: Operation, at: &Path) -> Result<()> {
        let source = || "connection reset".into();
        let generic = || Error::Generic { store: "faulty", source: source() };
        if self.is_stopped.load(Ordering::SeqCst) {
            return Err(generic());
        }
        let key = at.as_ref().strip_prefix(PREFIX).unwrap_or_default().trim_start_matches('/');
        match (self.hook.lock().ignore_poison())(moment, operation, key) {
            Verdict::Continue => Ok(()),
            Verdict::Fail => Err(generic()),
            Verdict::Refuse => {
                Err(Error::PermissionDenied { path: at.to_string(), source: source() })
            }
            Verdict::Stop => {
                self.is_stopped.store(true, Ordering::SeqCst);
                Err(generic())
            }
        }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").finish_non_exhaustive()
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let is_create = opts.mode == PutMode::Create;
        let operation = if is_create { Operation::Create } else { Operation::Write };
        self.pass(Moment::Before, operation, at)?;
        self.wait().await;
        let put = self.memory.objects.put_opts(at, payload, opts).await;
        if put.is_ok() {
            self.memory.note(at);
        }
        self.pass(Moment::After, operation, at)?;
        put
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        unreachable!("objects are written whole")
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let operation = if options.head { Operation::Head } else { Operation::Get };
        self.pass(Moment::Before, operation, at)?;
        self.wait().await;
        let mut got = self.memory.objects.get_opts(at, options).await;
        if let Ok(got) = &mut got {
            got.meta = self.memory.stamped(got.meta.clone());
        }
        self.pass(Moment::After, operation, at)?;
        got
    }

    fn delete_stream(
        &self,
        at: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let paths = at.collect::<Vec<_>>().now_or_never().unwrap();
        let remove = |at: Result<Path>| {
            let at = at?;
            self.pass(Moment::Before, Operation::Remove, &at)?;
            self.memory.objects.delete(&at).now_or_never().unwrap()?;
            self.pass(Moment::After, Operation::Remove, &at)?;
            Ok(at)
        };
        stream::iter(paths.into_iter().map(remove).collect::<Vec<_>>()).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.cloned().unwrap_or_default();
        let listed = self.pass(Moment::Before, Operation::List, &prefix).and_then(|()| {
            let listed = self.memory.list(&prefix);
            self.pass(Moment::After, Operation::List, &prefix).map(|()| listed)
        });
        stream::iter(listed.unwrap_or_else(|error| vec![Err(error)])).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        unreachable!("objects are listed below a prefix")
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        unreachable!("no object is copied")
    }
}
