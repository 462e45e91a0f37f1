"""Exceptions of lodestore: all are `Error`, and what Python's own code expects beside."""

from __future__ import annotations

__all__ = [
    "ClosedError",
    "DamagedError",
    "DeadlineError",
    "DtypeError",
    "Error",
    "IdError",
    "LockedError",
    "OverloadedError",
    "ReadOnlyError",
    "ScheduleError",
    "ServerError",
    "ShapeError",
    "StoreError",
    "UnknownTensorError",
    "VersionError",
    "VolatileError",
]


class Error(Exception):
    """A failure of lodestore; its text says what was expected, found and what to do."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class IdError(Error, IndexError):
    """An id that no node has: `id` at `position` among the ids, where these are known."""

    id: int | None
    position: int | None

    def __init__(
        self, message: str = "", id: int | None = None, position: int | None = None
    ) -> None:
        super().__init__(message)
        self.id = id
        self.position = position


class UnknownTensorError(Error, KeyError):
    """A name that no tensor of the graph has."""


class ShapeError(Error, ValueError):
    """An array of another shape or layout than the rows."""


class DtypeError(Error, TypeError):
    """An array of another type than ids or rows have."""


class DamagedError(Error):
    """A file that is not as it was written: `file`, and `page` for a page of rows."""

    file: str | None
    page: int | None

    def __init__(self, message: str = "", file: object = None, page: int | None = None) -> None:
        super().__init__(message)
        self.file = None if file is None else str(file)
        self.page = page


class StoreError(Error, OSError):
    """The files of a graph cannot be opened, read or written."""


class VersionError(Error, ValueError):
    """A version that is not committed, or was compacted away."""


class ReadOnlyError(Error, PermissionError):
    """A change of a graph that is only read."""


class LockedError(Error, PermissionError):
    """A graph that another process writes, or the process that this one was forked from."""


class VolatileError(Error, ValueError):
    """Volatile rows that cannot be declared, claimed or published."""


class ClosedError(Error, ValueError):
    """A graph or a publisher that was closed."""


class ScheduleError(Error, ValueError):
    """A schedule that cannot be, or that belongs to another graph."""


class ServerError(Error, ConnectionError):
    """Servers that are not reached, or that refuse."""


class OverloadedError(ServerError):
    """Servers with no room now: try again after `retry_after` seconds."""

    retry_after: float | None

    def __init__(self, message: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineError(Error, TimeoutError):
    """No answer within the time for a call."""
