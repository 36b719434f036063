"""Plans of lookups, by EXPLAIN."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from asyncpg import Connection

# SQL functions that are part of the server read no tables.
_CALLS_FUNCTION = """
SELECT EXISTS (SELECT FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
  WHERE l.lanname NOT IN ('internal', 'c') AND p.pronamespace <> 'pg_catalog'::regnamespace
    AND strpos($1, lower(translate(p.proname, E' \t"\\\\', '')) || '(') > 0)
"""


async def explain(connection: Connection, sql: str, value: str | list[str]) -> Mapping[str, Any]:
    """Return the plan of a lookup."""
    explain = f"EXPLAIN (VERBOSE, FORMAT JSON) {sql}"
    (plan,) = json.loads(await connection.fetchval(explain, value))
    return plan["Plan"]  # type: ignore[no-any-return]


def reads_all(node: Mapping[str, Any]) -> bool:
    """Return whether a plan reads a whole table."""
    scan = str(node["Node Type"])
    by_index = "Index" in scan and "Index Cond" not in node
    return scan == "Seq Scan" or by_index or any(map(reads_all, node.get("Plans", ())))


async def calls_function(connection: Connection, sql: str, plan: Mapping[str, Any]) -> bool:
    """Return whether a lookup, or a view that it reads, may call a function that reads tables."""
    text = re.sub(r'[\s"\\]', "", sql + json.dumps(plan, ensure_ascii=False)).lower()
    return bool(await connection.fetchval(_CALLS_FUNCTION, text))
