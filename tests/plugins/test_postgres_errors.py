"""Errors of PostgreSQL, asyncpg and the network: how a lookup ends, and what is done about them."""

import ssl

import pytest
from asyncpg import exceptions as pg

from idv_postgres import errors
from tornado_idv import Broken, LookupFailed, Unavailable

STANDBY = pg.TargetServerAttributeNotMatched("zq")
REFUSED = ConnectionRefusedError(111, "Connection refused")
FULL = pg.TooManyConnectionsError("zq")
PREDICATES = errors.is_disconnect, errors.is_timeout, errors.is_full
LOST, TIMED_OUT, NO_CONNECTION = ({each} for each in PREDICATES)
ERRORS: list[tuple[Exception, type[LookupFailed], str, set[object]]] = [
    (REFUSED, Unavailable, "the server cannot be reached: Connection refused", LOST),
    (ConnectionResetError(), Unavailable, "the server cannot be reached: the connection was", LOST),
    (TimeoutError(), Unavailable, "the server did not respond in time", LOST | TIMED_OUT),
    (ssl.SSLError(1, "zq"), Unavailable, "the TLS handshake failed; see sslmode", LOST),
    (pg.ConnectionDoesNotExistError("zq"), Unavailable, "the connection was lost", LOST),
    (pg.InterfaceError("zq"), Unavailable, "the connection was lost", LOST),
    (pg.InternalClientError("zq"), Unavailable, "the connection was lost", LOST),
    (pg.CannotConnectNowError("zq"), Unavailable, "the server is starting or shutting", LOST),
    (STANDBY, Unavailable, "each host is a standby, or has a role other", LOST),
    (pg.QueryCanceledError("zq"), Unavailable, "the query took too long and was", TIMED_OUT),
    (FULL, Unavailable, "the server has no connection left", NO_CONNECTION),
    (pg.SerializationError("zq"), Unavailable, "the query was stopped by a conflict", set()),
    (pg.PostgresSystemError("zq"), Unavailable, "the query failed with PostgresSystemError", set()),
    (pg.OutdatedSchemaCacheError("zq"), Unavailable, "the table was changed during", set()),
    (pg.InvalidCachedStatementError("zq"), Unavailable, "the table was changed during", set()),
    (pg.ReadOnlySQLTransactionError("zq"), Unavailable, "the server is a standby, or", set()),
    (pg.ObjectNotInPrerequisiteStateError("zq"), Unavailable, "a materialized view", set()),
    (pg.InsufficientPrivilegeError("zq"), Broken, "the user of the dsn may not read the", set()),
    (pg.ClientConfigurationError("zq"), Broken, "the query or the dsn cannot be used: Clie", set()),
    (ValueError("zq"), Broken, "the query or the dsn cannot be used: ValueError", set()),
]


@pytest.mark.parametrize(
    ("error", "kind", "reason", "consequences"),
    ERRORS,
    ids=[type(each[0]).__name__ for each in ERRORS],
)
def test_error_ends_a_lookup_with_a_reason_of_ours(
    error: Exception, kind: type[LookupFailed], reason: str, consequences: set[object]
) -> None:
    failure = errors.to_lookup_failed(error)
    assert type(failure) is kind
    assert failure.reason.startswith(reason)
    assert "zq" not in failure.reason
    state = getattr(error, "sqlstate", None)
    named = state is not None and not reason.startswith("the table was changed")
    assert (f"(SQLSTATE {state})" in failure.reason) == named
    assert {holds for holds in PREDICATES if holds(error)} == consequences


def test_message_of_the_server_is_given_where_no_lookup_is_involved() -> None:
    error = pg.UndefinedTableError('relation "alice" does not exist')
    missing = "the table is missing (SQLSTATE 42P01)"
    assert errors.to_lookup_failed(error).reason == missing
    assert errors.to_lookup_failed(error, with_message=True).reason == f"{missing}: {error}"
    for private in (pg.InvalidTextRepresentationError("alice"), pg.RaiseError("alice")):
        assert "alice" not in errors.to_lookup_failed(private, with_message=True).reason
    for empty in (pg.UndefinedTableError(), pg.UndefinedTableError("")):
        assert errors.to_lookup_failed(empty, with_message=True).reason == missing


def test_failure_of_ours_stays_as_it_is() -> None:
    failure = Broken("two rows")
    assert errors.to_lookup_failed(failure) is failure
