//! The specification of a graph: all that is needed to open it in any process.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lodestore_client::security::Token;
use lodestore_client::{
    Client, ClientConfig, EmbeddedSource, Pin, RowSource, Security, VersionTag,
};
use lodestore_graph::PartId;
use lodestore_schema::Tokens;
use lodestore_store::{EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind, View};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Error;
use crate::open_graph::{Backend, Files, OpenGraph, Servers};

/// The place of a graph, and the version to read.
#[derive(Clone, Debug)]
pub(crate) enum Spec {
    /// In a folder of this machine.
    Folder(Folder),
    /// Behind servers.
    Servers(Box<Cluster>),
}

/// A graph's folder.
#[derive(Clone, Debug, FromPyObject, IntoPyObjectRef)]
#[pyo3(from_item_all)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// The version to read; `None` for the newest at the time of opening.
    pub(crate) version: Option<u32>,
    /// The tag of the commit that must have made it; 0 for any.
    #[pyo3(default)]
    pub(crate) commit: u64,
    /// The partitions to open; `None` for all on this machine.
    pub(crate) parts: Option<Vec<u16>>,
    pub(crate) writable: bool,
    /// How files are read: the name of a [`ReaderKind`].
    pub(crate) reader: String,
}

/// Servers, and the credentials for them.
#[derive(Clone, Debug, FromPyObject, IntoPyObjectRef)]
#[pyo3(from_item_all)]
pub(crate) struct Cluster {
    pub(crate) addresses: Vec<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) tls_ca: Option<PathBuf>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    /// Seconds for each call.
    pub(crate) deadline: f64,
    /// Reads the version that is committed at the time of connecting.
    pub(crate) pin: bool,
    /// The version of the pin; `None` for the newest at the time of connecting.
    pub(crate) version: Option<u32>,
    /// The tag of the commit that must have made it; 0 for any.
    #[pyo3(default)]
    pub(crate) commit: u64,
    /// A folder of the same graph, for its edges.
    pub(crate) topology: Option<PathBuf>,
}

/// Most bytes of a token file.
const TOKEN_FILE_BYTES: u64 = 4096;

impl Spec {
    /// Opens the graph, at the version that it names.
    pub(crate) fn open(&self) -> Result<OpenGraph, Error> {
        self.checked(match self {
            Self::Folder(folder) => folder.open(),
            Self::Servers(cluster) => cluster.open(),
        }?)
    }

    /// Fails unless a graph is open at the version that it names.
    pub(crate) fn checked(&self, opened: OpenGraph) -> Result<OpenGraph, Error> {
        match (self.version(), opened.source().pinned_version()) {
            (Some(expected), Some(found)) if !expected.may_be(found) => {
                let name = self.name();
                let (expected, found) = (version_text(expected), version_text(found));
                Err(Error::OtherVersion { name, expected, found })
            }
            _ => Ok(opened),
        }
    }

    /// Returns the specification as a dictionary, for a pickle.
    pub(crate) fn dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match self {
            Self::Folder(folder) => folder.into_pyobject(py),
            Self::Servers(cluster) => (&**cluster).into_pyobject(py),
        }
    }

    /// Reads the result of [`Self::dict`].
    pub(crate) fn of_dict(dict: &Bound<'_, PyDict>) -> PyResult<Self> {
        match dict.contains("path")? {
            true => Ok(Self::Folder(dict.extract()?)),
            false => Ok(Self::Servers(Box::new(dict.extract()?))),
        }
    }

    /// Returns whether puts are taken.
    pub(crate) fn is_writable(&self) -> bool {
        match self {
            Self::Folder(folder) => folder.writable,
            Self::Servers(cluster) => !cluster.pin,
        }
    }

    /// Returns the specification of the same graph at one version, read-only.
    pub(crate) fn at(&self, version: VersionTag) -> Self {
        match self {
            Self::Folder(folder) => {
                let VersionTag { number, tag: commit } = version;
                let folder = folder.clone();
                Self::Folder(Folder { version: Some(number), commit, writable: false, ..folder })
            }
            Self::Servers(cluster) => Self::Servers(cluster.pinned(version).into()),
        }
    }

    /// Returns the specification of the same graph at the version that is newest when it is opened.
    pub(crate) fn at_any(&self) -> Self {
        match self {
            Self::Folder(folder) => {
                Self::Folder(Folder { version: None, commit: 0, ..folder.clone() })
            }
            Self::Servers(cluster) => {
                let cluster = (**cluster).clone();
                Self::Servers(Cluster { pin: false, version: None, commit: 0, ..cluster }.into())
            }
        }
    }

    /// Returns the version that it names.
    pub(crate) fn version(&self) -> Option<VersionTag> {
        let (version, commit) = match self {
            Self::Folder(folder) => (folder.version, folder.commit),
            Self::Servers(cluster) => (cluster.version, cluster.commit),
        };
        version.map(|number| VersionTag { number, tag: commit })
    }

    /// Returns the name of the graph for messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Folder(folder) => folder.path.display().to_string(),
            Self::Servers(cluster) => cluster.addresses.join(" "),
        }
    }
}

impl Folder {
    fn open(&self) -> Result<OpenGraph, Error> {
        let reader = self.reader.parse::<ReaderKind>();
        let reader = reader.map_err(|error| PyValueError::new_err(format!("reader: {error}")))?;
        let graph = Graph::open(&self.path)?;
        let parts = match &self.parts {
            Some(parts) => parts.iter().copied().map(PartId).collect(),
            None => graph.local_parts(),
        };
        let mode = if self.writable { OpenMode::Write } else { OpenMode::Read };
        let options = OpenOptions { reader };
        let tensors = graph.meta().tensors.clone();
        let live = Arc::new(GraphHandle::open(graph, Some(&parts), mode, &options)?);
        OpenGraph::of_files(live, self.version, &tensors)
    }
}

impl OpenGraph {
    /// Returns a view of open files at `version`, or at the newest version at each moment.
    pub(crate) fn of_files(
        live: Arc<GraphHandle>,
        version: Option<u32>,
        tensors: &[lodestore_store::TensorSpec],
    ) -> Result<Self, Error> {
        let view = version.map_or(View::Latest, View::At);
        let store = EmbeddedStore::from_handle(Arc::clone(&live), view)?;
        let source = match version {
            Some(version) => EmbeddedSource::at(Arc::clone(&live), version)?,
            None => EmbeddedSource::new(EmbeddedStore::from_handle(Arc::clone(&live), view)?),
        };
        let infos = tensors.iter().map(|spec| source.tensor(&spec.name));
        let infos = infos.collect::<Result<Vec<_>, _>>()?;
        let files = Files { store, live, version: source.pinned_version() };
        Ok(Self::new(Backend::Files(files), Arc::new(source), infos))
    }
}

impl Cluster {
    fn open(&self) -> Result<OpenGraph, Error> {
        let client = Arc::new(self.connect()?);
        let infos = client.tensors().to_vec();
        let servers = Servers { client: Arc::clone(&client), cluster: self.clone() };
        Ok(OpenGraph::new(Backend::Servers(servers), client, infos))
    }

    /// Returns the same servers, pinned at a version.
    pub(crate) fn pinned(&self, version: VersionTag) -> Self {
        let VersionTag { number, tag: commit } = version;
        Self { pin: true, version: Some(number), commit, ..self.clone() }
    }

    pub(crate) fn connect(&self) -> Result<Client, Error> {
        let config = ClientConfig {
            deadline: seconds(self.deadline)?,
            pin: self.pin_config(),
            security: self.security()?,
            ..ClientConfig::default()
        };
        Ok(Client::connect(&self.addresses, config)?)
    }

    /// Returns the version that the client keeps to.
    fn pin_config(&self) -> Option<Pin> {
        match self.version {
            Some(number) => Some(Pin::At(VersionTag { number, tag: self.commit })),
            None => self.pin.then_some(Pin::Newest),
        }
    }

    fn security(&self) -> Result<Security, Error> {
        let mut security = Security::default();
        if let Some(path) = &self.token_file {
            security = security.with_token(read_token(path)?);
        }
        match (&self.tls_ca, &self.tls_cert, &self.tls_key) {
            (None, None, None) => Ok(security),
            (Some(ca), Some(cert), Some(key)) => Ok(security.with_tls(ca, Some((cert, key)))?),
            (Some(ca), None, None) => Ok(security.with_tls(ca, None)?),
            _ => Err(Error::Unsupported(
                "tls_cert and tls_key come together, and with tls_ca".to_owned(),
            )),
        }
    }
}

/// Reads a version: its number, or the text of the number and its commit.
pub(crate) fn wanted_version(version: &Bound<'_, PyAny>) -> Result<VersionTag, Error> {
    let Ok(text) = version.extract::<String>() else {
        return Ok(VersionTag::any(version.extract()?));
    };
    version_of(&text).ok_or_else(|| {
        Error::Version(format!(
            "version: expected a version such as 3 or \"3:9f1c0a33b2d4e5f6\", found {text:?}"
        ))
    })
}

/// Returns a version as text: `3:9f1c0a33b2d4e5f6`, or `3` where its commit is unknown.
pub(crate) fn version_text(version: VersionTag) -> String {
    match version.tag {
        0 => version.number.to_string(),
        tag => format!("{}:{tag:016x}", version.number),
    }
}

fn version_of(text: &str) -> Option<VersionTag> {
    let (number, commit) = match text.split_once(':') {
        Some((number, commit)) => (number, Some(commit)),
        None => (text, None),
    };
    let number = number.parse().ok()?;
    let Some(commit) = commit else { return Some(VersionTag::any(number)) };
    let is_tag = commit.len() == 16 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    let tag = u64::from_str_radix(commit, 16).ok().filter(|_| is_tag)?;
    Some(VersionTag { number, tag })
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    let duration = Duration::try_from_secs_f64(seconds).ok().filter(|it| !it.is_zero());
    let bad = || format!("deadline must be a number of seconds above 0, found {seconds}");
    duration.ok_or_else(|| PyValueError::new_err(bad()))
}

/// Reads the first token of a file, which only its owner may be able to read.
fn read_token(path: &Path) -> Result<Token, Error> {
    let bad = |reason: String| Error::Unsupported(format!("{}: {reason}", path.display()));
    let meta = std::fs::metadata(path).map_err(|error| bad(format!("cannot open: {error}")))?;
    let mode = meta.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(bad(format!("a token that others may read (mode {mode:03o}); chmod 600 it")));
    }
    if meta.len() > TOKEN_FILE_BYTES {
        return Err(bad(format!("{} bytes; a token has at most 128", meta.len())));
    }
    let text = std::fs::read_to_string(path).map_err(|error| bad(format!("no token: {error}")))?;
    let tokens = Tokens::parse(&text).map_err(|error| bad(error.to_string()))?;
    Ok(tokens.first())
}
