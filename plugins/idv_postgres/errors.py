"""The conversion of errors of PostgreSQL, asyncpg and the network to `LookupFailed`.

Some messages of the server quote a value, for example after a failed cast in a view (22P02). So
reasons of lookups omit the message. Other reasons include the messages of `_SAFE_TO_REPEAT`.
"""

import ssl

import asyncpg

from tornado_idv import Broken, LookupFailed, Unavailable

_DISCONNECTED = ("08", "57P")
"""SQLSTATEs, or their first characters, of a lost connection."""
_UNAVAILABLE = (*_DISCONNECTED, "25006", "40", "53", "55", "57", "58")
"""SQLSTATEs, or their first characters, of a query that may succeed later."""
_REASONS = {
    "08003": "the connection was lost",
    "08P01": "the server, or a pooler in front of it, rejected the connection",
    "22021": "a value in the table is not valid UTF-8",
    "25006": "the server is a standby, or default_transaction_read_only is on",
    "26000": (
        "a pooler in transaction mode has changed the session, so a prepared statement is missing; "
        "write prepared_statements: false"
    ),
    "28000": "the server refuses this user, database or host (pg_hba.conf)",
    "28P01": "the password in the dsn is wrong",
    "3D000": "the database of the dsn does not exist",
    "40001": "the query was stopped by a conflict with recovery, or by another transaction",
    "42501": (
        "the user of the dsn may not read the table or some of its rows; GRANT SELECT on it or, if "
        "it has row-level security, ALTER ROLE … BYPASSRLS"
    ),
    "42703": "a column is missing",
    "42804": "a column has a type other than text",
    "42883": "a column has a type other than text",
    "42P01": "the table is missing",
    "53100": "the server's disk is full",
    "53200": "the server is out of memory",
    "53300": "the server has no connection left; lower pool.max, or raise max_connections",
    "55000": "a materialized view has no data: REFRESH MATERIALIZED VIEW",
    "55P03": "the table is locked by another transaction",
    "57014": "the query took too long and was stopped by the server",
    "57P01": "the server is shutting down, or its administrator closed the connection",
    "57P02": "the server crashed",
    "57P03": "the server is starting or shutting down",
}
_SAFE_TO_REPEAT = (*_UNAVAILABLE, "0A", "23", "28", "3D", "3F", "42", "54")
"""SQLSTATEs, or their first characters, of messages that quote no value of a table."""
REPLACED = "idv: the table was replaced"
"""Text in the server's error if the name of the table no longer means the validated table."""


class ReplacedError(Unavailable):
    """Raised if a lookup did not read the validated table. The table or the server has changed."""


def is_disconnect(error: BaseException) -> bool:
    """Return whether an error means that the connection was lost."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate).startswith(_DISCONNECTED)
    # asyncpg raises its own errors for a lost connection, but a `ValueError` for a wrong query.
    is_own = isinstance(error, asyncpg.InterfaceError | asyncpg.InternalClientError)
    is_of_query = isinstance(error, ValueError | asyncpg.OutdatedSchemaCacheError)
    return isinstance(error, OSError) or (is_own and not is_of_query)


def is_full(error: BaseException) -> bool:
    """Return whether an error means that the server has no connection left."""
    return isinstance(error, asyncpg.TooManyConnectionsError)


def is_timeout(error: BaseException) -> bool:
    """Return whether an error is a timeout, of the server or of this client."""
    return isinstance(error, asyncpg.QueryCanceledError | TimeoutError)


def to_lookup_failed(error: Exception, *, with_message: bool = False) -> LookupFailed:
    """Return the failure for an error. In lookups, omit the message, as it may quote a value."""
    if isinstance(error, LookupFailed):
        return error
    if isinstance(error, asyncpg.InvalidCachedStatementError | asyncpg.OutdatedSchemaCacheError):
        return Unavailable("the table was changed during the query")
    if isinstance(error, asyncpg.PostgresError):
        return _of_server(error, with_message=with_message)
    if is_disconnect(error):
        return Unavailable(_of_connection(error))
    return Broken(f"the query or the dsn cannot be used: {type(error).__name__}")


def _of_connection(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "the TLS handshake failed; see sslmode and sslrootcert of the dsn"
    if isinstance(error, TimeoutError):
        return "the server did not respond in time"
    if isinstance(error, OSError):
        return f"the server cannot be reached: {error.strerror or 'the connection was lost'}"
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "each host is a standby, or has a role other than target_session_attrs requires"
    return "the connection was lost"


def _of_server(error: asyncpg.PostgresError, *, with_message: bool) -> LookupFailed:
    state, text = str(error.sqlstate), str(error.args[0]) if error.args else ""
    # These are messages of PgBouncer. The second occurs with ``pool_mode = statement``.
    _, is_rejected, parameter = text.partition("unsupported startup parameter: ")
    if state == "08P01" and is_rejected:
        return Broken(
            f"a pooler rejects the startup parameter {parameter}; connect to the server "
            "itself or, in the options of a backend, write prepared_statements: false"
        )
    if "statement pooling mode" in text:
        return Broken(
            "a pooler in statement mode allows no transactions; connect to the server itself, or "
            "write pool_mode = transaction into the pooler's configuration"
        )
    if REPLACED in text:
        return ReplacedError("the table was replaced by another one")
    reason = _REASONS.get(state) or f"the query failed with {type(error).__name__}"
    message = f": {text}" if with_message and text and state.startswith(_SAFE_TO_REPEAT) else ""
    kind = Unavailable if state.startswith(_UNAVAILABLE) else Broken
    return kind(f"{reason} (SQLSTATE {state}){message}")
