"""Futures under asyncio and concurrent.futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._lodestore import Future


def is_in_event_loop() -> bool:
    """Returns whether this thread runs an event loop of asyncio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def wait_for(future: Future) -> Any:
    """Waits for the rows of `future` without holding up the loop, and returns them."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    def wake() -> None:
        # The loop may be closed by now: then no one waits.
        if not loop.is_closed():
            loop.call_soon_threadsafe(set_ready)

    future.add_done_callback(wake)
    # From here on it is no read-ahead.
    future.wait(0)
    await ready
    return future.result()


def concurrent_future(future: Future) -> concurrent.futures.Future[Any]:
    """Returns a future of the standard library that completes as `future` does."""
    standard: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def complete() -> None:
        if not standard.set_running_or_notify_cancel():
            return
        try:
            rows = future.result()
        except BaseException as error:
            standard.set_exception(error)
        else:
            standard.set_result(rows)

    future.add_done_callback(complete)
    # From here on it is no read-ahead.
    future.wait(0)
    return standard
