"""Rows of large graphs for Python: from files of this machine, or from servers.

>>> import lodestore
>>> graph = lodestore.open("g")                       # doctest: +SKIP
>>> graph["feat"][[3, 1, 4]]                          # doctest: +SKIP
"""

from __future__ import annotations

from . import errors
from ._importing import import_graph
from ._lodestore import (
    Batch,
    Batches,
    Future,
    Graph,
    Publisher,
    Queue,
    Sampler,
    Schedule,
    Tensor,
    TensorWriter,
    Volatile,
    __version__,
    connect,
    open,
    open_schedule,
)
from .errors import (
    ClosedError,
    DamagedError,
    DeadlineError,
    DtypeError,
    Error,
    IdError,
    LockedError,
    OverloadedError,
    ReadOnlyError,
    ScheduleError,
    ServerError,
    ShapeError,
    StoreError,
    UnknownTensorError,
    VersionError,
    VolatileError,
)

__all__ = [
    "Batch",
    "Batches",
    "ClosedError",
    "DamagedError",
    "DeadlineError",
    "DtypeError",
    "Error",
    "Future",
    "Graph",
    "IdError",
    "LockedError",
    "OverloadedError",
    "Publisher",
    "Queue",
    "ReadOnlyError",
    "Sampler",
    "Schedule",
    "ScheduleError",
    "ServerError",
    "ShapeError",
    "StoreError",
    "Tensor",
    "TensorWriter",
    "UnknownTensorError",
    "VersionError",
    "Volatile",
    "VolatileError",
    "__version__",
    "connect",
    "errors",
    "import_graph",
    "open",
    "open_schedule",
]
