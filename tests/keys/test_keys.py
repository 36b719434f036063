"""Tokens, keys and the key ring: only a key that is valid now authenticates."""

import asyncio
import hashlib
import string
import threading
from functools import partial
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.databases.key_stores import record
from tornado_idv.errors import InvalidKey, UndeterminedKey
from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing
from tornado_idv.keys.token import check_token, digest, is_token68, issue

# Fixed, since it is part of test ids, which must be the same in every worker.
TOKEN = "idv_shop_QFmcf6EWP9QahxDlTtEjbVgTfpXCotL8_133ca667"
FOREIGN = "a-key.from~elsewhere+/0=="
CHARACTERS = string.ascii_letters + string.digits + "-._~+/="


def rejection(ring: KeyRing, token: str) -> str:
    with pytest.raises(InvalidKey) as caught:
        ring.authenticate("bearer", token)
    return caught.value.reason


def test_token68_has_letters_digits_and_signs_with_padding() -> None:
    for text in ("a", "a==", "-._~+/", "A9", "a" * 512):
        assert is_token68(text), text
    for text in ("", "=", "a=b", "a b", "a\n", "a,b", "a" * 513, "\u00fc", "\u0664", "a\0", "a:b"):
        assert not is_token68(text), ascii(text)


@given(st.text(string.ascii_letters + string.digits + ".-", min_size=1, max_size=64))
def test_issued_token_is_valid(key_id: str) -> None:
    token = issue(key_id)
    check_token(token)
    assert token.startswith(f"idv_{key_id}_")


def test_tokens_are_unique_and_their_secrets_have_190_bits() -> None:
    """32 characters of 62 each."""
    secrets = {issue("shop").split("_")[2] for _ in range(100)}
    assert len(secrets) == 100
    assert {len(secret) for secret in secrets} == {32}


@given(st.integers(len("idv_"), len(TOKEN) - 1), st.sampled_from(CHARACTERS))
def test_token_with_one_wrong_character_is_rejected(place: int, character: str) -> None:
    """Or with missing ones at its end."""
    for wrong in {TOKEN[:place], TOKEN[:place] + character + TOKEN[place + 1 :]} - {TOKEN}:
        with pytest.raises(ValueError, match=r"check digits|not a token"):
            check_token(wrong)


@pytest.mark.parametrize("text", [FOREIGN, "a" * 16, "Idv_shop_x_00000000"])
def test_token_issued_elsewhere_needs_no_check_digits(text: str) -> None:
    check_token(text)
    ring = KeyRing([ApiKey("shop", digest(text))])
    assert ring.authenticate("bearer", text).id == "shop"


@pytest.mark.parametrize("text", ["", "a" * 15, "a" * 513, "\u00fc" * 16, f"{TOKEN} "], ids=ascii)
def test_text_that_cannot_be_sent_as_a_key_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not a token: 16 to 512") as caught:
        check_token(text)
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    ("not_before", "expires", "now", "reason"),
    [
        (-inf, inf, 0.0, None),
        (100.0, inf, 99.999, "not valid yet"),
        (100.0, inf, 100.0, None),
        (-inf, 200.0, 199.999, None),
        (-inf, 200.0, 200.0, "expired"),
        (200.0, 100.0, 150.0, "expired"),
    ],
)
def test_key_is_valid_from_not_before_until_expires(
    not_before: float, expires: float, now: float, reason: str | None
) -> None:
    key = ApiKey("shop", digest(TOKEN), not_before=not_before, expires=expires)
    ring = KeyRing([key], lambda: now)
    assert key.is_valid(now) is (ring.find(key.digest) is key) is (reason is None)
    if reason is None:
        assert ring.authenticate("bearer", TOKEN) is key
    else:
        assert rejection(ring, TOKEN) == reason


@pytest.mark.parametrize(
    ("scheme", "token", "reason"),
    [
        ("bearer", "", "malformed"),
        ("bearer", "a b", "malformed"),
        ("bearer", "\ud800" * 16, "malformed"),
        ("basic", TOKEN, "malformed"),
        ("bearer", TOKEN.swapcase(), "unknown"),
        ("bearer", digest(TOKEN).hex(), "unknown"),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_ring_rejects_any_other_credentials(scheme: str, token: str, reason: str) -> None:
    """Those of a wrong form even if their digest is configured."""
    blank = ApiKey("blank", hashlib.sha256(b"a b").digest())
    ring = KeyRing([ApiKey("shop", digest(TOKEN)), blank])
    with pytest.raises(InvalidKey) as caught:
        ring.authenticate(scheme, token)
    assert (caught.value.reason, caught.value.key_id) == (reason, None)
    assert not ring.last_used


@pytest.mark.parametrize("reason", ["revoked", "disabled"])
def test_rejected_key_is_known_by_its_id(reason: str) -> None:
    ring = KeyRing([ApiKey("shop", digest(TOKEN), expires=-inf, rejected=reason)])
    with pytest.raises(InvalidKey) as caught:
        ring.authenticate("bearer", TOKEN)
    assert (caught.value.reason, caught.value.key_id) == (reason, "shop")
    ring.complete_until = -inf
    with pytest.raises(UndeterminedKey) as caught:
        ring.authenticate("bearer", TOKEN)
    assert caught.value.key_id == "shop"


def test_replaced_keys_are_effective_at_once() -> None:
    """An equal key stays the same object; a key that was changed or removed is not held."""
    old = {name: ApiKey(name, digest(name)) for name in ("same", "changed", "removed")}
    ring = KeyRing([])
    ring.replace(ring.merged([], [*old.values()]))
    new = [ApiKey("same", digest("same")), ApiKey("changed", digest("changed"), owner="x")]
    ring.replace(ring.merged([], new))
    assert ring.authenticate("bearer", "same") is old["same"]
    assert [name for name, key in old.items() if ring.find(key.digest) is key] == ["same"]
    assert ring.ids == {"same", "changed"}
    with pytest.raises(InvalidKey, match="unknown"):
        ring.authenticate("bearer", "removed")


def test_configured_key_stays_beside_a_stored_one_with_its_id_or_token() -> None:
    configured = [ApiKey("shop", digest(TOKEN))]
    ring = KeyRing(configured)
    stored = [
        ApiKey("shop", digest(FOREIGN)),
        ApiKey("thief", digest(TOKEN)),
        ApiKey("partner", digest("partner")),
    ]
    ring.replace(ring.merged(stored, configured))
    assert ring.authenticate("bearer", TOKEN).id == "shop"
    assert rejection(ring, FOREIGN) == "unknown"
    assert ring.ids == {"shop", "partner"}


def test_last_use_is_recorded_for_valid_keys_only() -> None:
    keys = [ApiKey("shop", digest(TOKEN)), ApiKey("old", digest(FOREIGN), expires=50.0)]
    ring = KeyRing(keys, lambda: 100.0)
    key = ring.authenticate("bearer", TOKEN)
    rejection(ring, FOREIGN)
    assert ring.last_used == {"shop": 100.0}
    ring.clock = lambda: 101.0
    assert ring.find(key.digest) is key
    assert ring.last_used == {"shop": 101.0}


def test_repr_contains_no_token_and_no_digest() -> None:
    key = ApiKey("shop", digest(TOKEN), owner="web shop")
    for text in (repr(key), repr(KeyRing([key])), repr(record("shop", TOKEN))):
        assert repr(digest(TOKEN)) not in text
        assert digest(TOKEN).hex() not in text
        assert TOKEN not in text


async def test_overview_of_the_keys_follows_their_replacement_and_time() -> None:
    """A key with two tokens expires with the last of them."""
    configured = [ApiKey("a", digest("1"), expires=30.0), ApiKey("b", digest("2"))]
    ring = KeyRing(configured, lambda: 5.0)
    overview = await ring.overview()
    assert (overview.count, overview.expirations) == (2, {"a": 30.0})
    stored = [ApiKey("c", digest("3"), expires=20.0), ApiKey("c", digest("4"), expires=10.0)]
    ring.replace(ring.merged(stored, configured))
    for now, ids in ((5.0, "ca"), (19.9, "ca"), (20.0, "ac"), (30.0, "ca")):
        ring.clock = partial(float, now)
        overview = await ring.overview()
        assert (overview.count, "".join(overview.expirations)) == (3, ids)


async def test_overview_does_not_hold_up_the_event_loop() -> None:
    """And that of keys that were replaced meanwhile is not kept."""
    go_on = threading.Event()

    class Waiting(dict[bytes, ApiKey]):
        def values(self) -> Any:
            assert go_on.wait(20)
            return super().values()

    ring = KeyRing([])
    ring.replace(Waiting({digest("1"): ApiKey("a", digest("1"))}))
    overview = asyncio.create_task(ring.overview())
    await asyncio.sleep(0)
    ring.replace({})
    go_on.set()
    assert [(await overview).count, (await ring.overview()).count] == [1, 0]
