"""How lookups in a backend end, in words that tests compare."""

import asyncio

from tornado_idv import BackendResult, Broken, ByNickname, Query, Unavailable
from tornado_idv.interfaces.backend import AnyBackend


async def outcome(backend: AnyBackend, query: Query | None = None) -> str:
    """How a lookup ended, with the timeout of the guard."""
    try:
        async with asyncio.timeout(backend.options.timeout):
            user = await backend.find(query or ByNickname("alice"))
    except TimeoutError:
        return "timed out"
    except Unavailable as error:
        return f"unavailable: {error.reason}"
    except Broken as error:
        return f"broken: {error.reason}"
    user = user.user if isinstance(user, BackendResult) else user
    return "not found" if user is None else "found"
