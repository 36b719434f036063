"""Shared limits in a Redis server: a TAT for each limit, under a keyed hash of its name."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from idv_redis.options import NOT_INSTALLED, RedisLimitsOptions
from tornado_idv import LimitUse, SharedLimits, StartError

_TIMEOUT = 0.5
"""Seconds to connect, and to get a response."""
_EXCHANGE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local used, ahead = {}, {}
for seconds in string.gmatch(ARGV[2], '%S+') do
  table.insert(used, seconds)
end
for i, key in ipairs(KEYS) do
  local tat, at = string.match(redis.call('GET', key) or '', '^(%S+) (%S+)$')
  local back = math.max((tonumber(at) or 0) - now, 0)
  tat = math.max((tonumber(tat) or 0) - back, now - ARGV[1]) + used[i]
  ahead[i] = string.format('%.6f', tat - now)
  local kept = math.max(tat - now + 3, 1)
  redis.call('SET', key, string.format('%.6f %.6f', tat, now), 'PX', math.ceil(kept * 1000))
end
return table.concat(ahead, ' ')
"""
"""Times are in seconds, by the server's clock; a TAT is kept until 3 s after it has passed.
Another machine adds to it what it used since its last exchange, which is longer ago than the TAT
where no machine alone uses the whole rate. With a TAT stands when it was written: by as much as the
clock is behind that, as when a replica takes over, the TAT moves back too.

Numbers are in one text: an argument or a reply for each would take twice the time here.
"""
_PROBE = LimitUse("probe", 0.0)
"""Written where there is no use: a server that is full can still read."""


class RedisSharedLimits(SharedLimits[RedisLimitsOptions]):
    """One key for each limit in use, which expires after its TAT has passed."""

    options_type = RedisLimitsOptions

    def __init__(self, options: RedisLimitsOptions) -> None:
        super().__init__(options)
        try:
            from idv_redis import client  # noqa: PLC0415 - it imports redis-py
        except ModuleNotFoundError:
            raise StartError(f"shared_limits: {NOT_INSTALLED}") from None
        self._client = client.Client(options, timeout=_TIMEOUT)

    async def exchange(self, since: float, uses: Sequence[LimitUse]) -> Sequence[float]:
        """Run the script for all limits at once."""
        secret = self.options.secret.get_secret_value().encode()
        written = uses or [_PROBE]
        # A keyed hash, from which the name cannot be guessed.
        hashes = [hmac.digest(secret, f"limit\n{use.name}".encode(), "sha256") for use in written]
        keys = [f"{self.options.prefix}limit:{each[:16].hex()}" for each in hashes]
        used = " ".join(f"{use.seconds:.9f}" for use in written)
        reply = await self._client.execute(
            "EVAL", _EXCHANGE, len(keys), *keys, f"{since:.6f}", used
        )
        return [float(each) for each in reply.split()[: len(uses)]]

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()
