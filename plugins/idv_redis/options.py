"""The options of the kinds ``redis``: a backend and a shared cache."""

import re
import sys
from contextlib import suppress
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tornado_idv import BackendOptions, Options, Secret, SecretUrl, SharedCacheOptions, WholeNumber

NOT_INSTALLED = (
    f"redis is not installed; install it with: {sys.executable} -m pip install 'redis>=6,<9'"
)
"""Error if redis-py is missing, with the command that installs it."""
IN_CLUSTER = (
    "the server is a node of a Redis Cluster; use a single server or Sentinels, or set "
    "cluster: true (only in a backend)"
)
"""Error for a cluster without ``cluster: true``, since one key ``ready`` cannot cover all nodes."""
_MIN_SECRET = 32
_URL = re.compile(
    r"(?:rediss?://(?:[^@/?#\[\]]*@)?(?:\[[^\[\]@/?#]+\]|[^@/?#:\[\]]+)(?::[0-9]+)?(?:/[0-9]*/?)?"
    r"|unix://(?:[^@/?#]*@)?/[^@?#]+)(?:\?[^@#]*)?"
)
"""Pattern of valid URLs. A / or @ in a password must be encoded, or `urlsplit` misreads the URL."""


def check_url(secret: SecretStr) -> SecretStr:
    """Return a valid URL unchanged. Raises `ValueError` without any part of an invalid URL."""
    text = secret.get_secret_value()
    with suppress(ValueError):  # of `port`, for a port above 65535
        if _URL.fullmatch(text) and urlsplit(text).port != 0:
            return secret
    raise ValueError(
        "not a URL of a Redis server; write redis://user:password@host:6379/0, rediss:// for "
        "TLS or unix:///path, and percent-encode special characters in the password (@ as %40, "
        "/ as %2F)"
    )


def _secret(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < _MIN_SECRET:
        raise ValueError(f"needs {_MIN_SECRET} characters or more, as from openssl rand -hex 32")
    return secret


RedisUrl = Annotated[SecretUrl, AfterValidator(check_url)]
"""The URL of a Redis server. It may contain a password."""


class RedisServer(Options):
    """The address of a single Redis server, or of a primary behind Sentinels."""

    url: RedisUrl
    """The URL: ``redis://user:password@host:6379/0``, ``rediss://…`` for TLS, ``unix:///path``."""
    sentinels: tuple[RedisUrl, ...] = ()
    """The URLs of the Sentinels. If set, the Sentinels name the host of the primary, and ``url``
    gives only user, password, database and TLS."""
    service: Annotated[str, Field(min_length=1)] | None = None
    """The name of the primary, as configured in the Sentinels."""
    pool_size: Annotated[WholeNumber, Field(ge=1, le=1000)] = 16
    """The maximum number of concurrent commands per process. Further commands wait."""

    @model_validator(mode="after")
    def _one_way_to_the_server(self) -> Self:
        if bool(self.sentinels) != (self.service is not None):
            raise ValueError("write both sentinels and service, or neither")
        return self


class RedisOptions(RedisServer, BackendOptions):
    """The options of a backend of the kind ``redis``."""

    cluster: bool = False
    """Treat ``url`` as a node of a Redis Cluster."""
    prefix: str = ""
    """The prefix of all keys."""

    @model_validator(mode="after")
    def _fits_a_cluster(self) -> Self:
        if self.cluster and self.sentinels:
            raise ValueError("cluster and sentinels are mutually exclusive")
        if self.cluster and "{" in self.prefix:
            raise ValueError("with cluster, prefix must not contain {: it would select the slot")
        return self


class RedisCacheOptions(RedisServer, SharedCacheOptions):
    """The options of a shared cache of the kind ``redis``."""

    secret: Annotated[Secret, AfterValidator(_secret)]
    """The common secret of all services. Entries authenticated by another secret are ignored."""
    prefix: str = "idv:"
    """The prefix of all keys, and of the channel for purges."""
