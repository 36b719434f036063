"""Lookups in an LDAP directory."""

import asyncio
import logging
from contextlib import suppress
from operator import methodcaller

from idv_ldap.options import NOT_INSTALLED, LdapOptions
from idv_ldap.refusals import Refused
from tornado_idv import (
    Backend,
    BackendResult,
    ByNickname,
    DegradedStartError,
    LookupFailed,
    Query,
    StartError,
    Step,
    User,
    require_file,
)

_log = logging.getLogger(__name__)


class LdapBackend(Backend[LdapOptions]):
    """A backend that finds users in the entries of an LDAP directory."""

    options_type = LdapOptions
    can_lose_users = True

    def __init__(self, options: LdapOptions) -> None:
        super().__init__(options)
        try:
            from idv_ldap import entries, pool, search  # noqa: PLC0415
        except ModuleNotFoundError:
            raise StartError(f"backend {self.name}: {NOT_INSTALLED}") from None
        self._pool = pool.ConnectionPool(options, self.notify_available)
        self._mapper = mapper = entries.EntryMapper(options)
        self._searches = {
            kind: search.Search(text, mapper.attributes) for kind, text in options.searches.items()
        }

    @property
    def serves(self) -> frozenset[type[Query]]:
        """The kinds of query for which a search is configured."""
        return frozenset(self._searches)

    @property
    def problem(self) -> str | None:
        """The reason why there is no connection, or ``None``."""
        return self._pool.problem

    async def open(self) -> None:
        """Connect and bind. Raises `StartError` for a permanent error, such as a wrong ``base_dn``.

        If no server can be reached, log an error and retry in the background.
        """
        tls = self.options.tls
        for file in filter(None, (tls.ca_file, tls.cert_file, tls.key_file)):
            require_file(file)  # errors of libldap do not name the file
        try:
            await self._pool.open()
        except LookupFailed as error:
            kind = DegradedStartError if isinstance(error, Refused) else StartError
            raise kind(f"backend {self.name}: {error.reason}") from None
        with suppress(TimeoutError):  # a slow search must not delay the start
            await asyncio.wait_for(self._warn_of_unseen(), self.options.connect_timeout)

    async def _warn_of_unseen(self) -> None:
        """Log a warning for each configured attribute without a readable value in any entry."""
        for name in sorted({*self._mapper.attributes, *self.options.filter_attributes}):
            with suppress(LookupFailed):
                _, found = await self._pool.search(methodcaller("first", f"({name}=*)"))
                if found is None:
                    text = "backend %s: no entry has %s, or bind.dn may not read it"
                    _log.warning(text, self.name, name)

    async def find(
        self, query: Query, steps: list[Step] | None = None
    ) -> User | BackendResult | None:
        """Search for a user. With ``canaries``, the result identifies its server."""
        value = query.nickname if isinstance(query, ByNickname) else query.card_number
        search, options = self._searches[type(query)], self.options
        if steps is not None:
            steps += (Step("server", f"{uri}: {was}") for uri, was in self._pool.attempts.items())
            where = f"below {options.base_dn} ({options.scope})"
            steps.append(Step("search", f"{search.render(value)} {where}"))
        server, entry = await self._pool.search(lambda each: search.find(each, value))
        if steps is not None and entry is not None:
            steps += self._mapper.explain(entry)
        user = None if entry is None else self._mapper.user(entry)
        return BackendResult(user, server=server) if options.canaries else user

    explain = find  # the steps are connections, the filter, attributes and results

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()
