"""The filters of searches, and the mapping of entries to users."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from idv_ldap.errors import ldap
from idv_ldap.options import LdapOptions
from tornado_idv import Broken, StartError, Step, User
from tornado_idv.kit.mapping import Expression, MappedField, is_falsy

_PLACEHOLDER = re.compile(r"\{[a-z_]+\}")
_ASSERTION = re.compile(r"\(\s*([^\s()=~<>:]+)[^()=]*=[^()]*\{[a-z_]+\}[^()]*\)")
_WHOLE_VALUE = re.compile(r"\(([^\s()=~<>:]+)(?::[^()=]*:)?=\{[a-z_]+\}\)")
_NO_SERVER = "ldapi://%2Fnone"


class FilterTemplate:
    """A filter with a placeholder. Raises `StartError` for an invalid filter.

    ``any`` is the filter with ``*`` as value. ``attribute`` is the attribute to compare with the
    placeholder, or ``None`` if the filter compares several attributes, or only a part of a value.
    """

    def __init__(self, text: str) -> None:
        self._parts = _PLACEHOLDER.split(text)
        present = _ASSERTION.sub(r"(\1=*)", text)
        self.any = "(objectClass=*)" if _PLACEHOLDER.search(present) else present
        names = _WHOLE_VALUE.findall(text)
        self.attribute = names[0] if len(names) == len(self._parts) - 1 == 1 else None
        try:
            # libldap parses the filter before it fails to connect.
            ldap.initialize(_NO_SERVER).search_ext("", ldap.SCOPE_BASE, self.render("x"))
        except ldap.FILTER_ERROR:
            raise StartError(f"the filter {text} is not valid (RFC 4515)") from None
        except ldap.LDAPError:
            pass

    def render(self, value: str) -> str:
        """Return the filter with the escaped value (RFC 4515, section 3)."""
        escaped: str = ldap.filter.escape_filter_chars(value)
        return escaped.join(self._parts)


class EntryMapper:
    """Maps the attributes of an entry to a user.

    In expressions, an attribute with one value is a text, and an attribute with several values is a
    list of texts. A value that is not UTF-8 stays bytes. Only the function ``guid`` accepts bytes.
    """

    def __init__(self, options: LdapOptions) -> None:
        response = options.response
        names = ("nickname", "card_number", "plan", "profile_url")
        self.fields = {each: MappedField(each, getattr(response, each)) for each in names}
        text = response.not_known_when
        self.not_known_when = None if text is None else Expression(text)
        expressions = [each.expression for each in self.fields.values()] + [self.not_known_when]
        self.attributes = sorted(
            {name for each in expressions if each is not None for name in each.members}
        )

    def user(self, attributes: dict[str, list[bytes]]) -> User | None:
        """Return the user, or ``None`` if ``not_known_when`` is true. Raises `Broken`."""
        record = self.record(attributes)
        if self.not_known_when is not None and self._is_not_known(self.not_known_when, record):
            return None
        fields = self.fields
        return User(
            fields["plan"].required(record),
            fields["card_number"].required(record),
            fields["nickname"].required(record).removeprefix("@"),
            fields["profile_url"].text(record),
        )

    def explain(self, attributes: dict[str, list[bytes]]) -> Iterator[Step]:
        """Yield steps with the attributes of an entry and the result of each expression."""
        record = self.record(attributes)
        yield Step("entry", record)
        if (condition := self.not_known_when) is not None:
            yield condition.step("not_known_when", record)
        for field in self.fields.values():
            if field.expression is not None:
                step = field.expression.step(field.name, record)
                with suppress(Broken):
                    if (text := field.text(record)) != step.result:
                        step = replace(step, note=f"mapped to {text}")
                yield step

    def _is_not_known(self, condition: Expression, record: dict[str, Any]) -> bool:
        """Return whether a condition is true for a record.

        The value of an attribute with several values is a list. Raises `Broken` if the condition is
        false for the list, but true for one of the values, because it expects a single value.
        """
        if not is_falsy(condition.evaluate(record)):
            return True
        for name in condition.members:
            values = record.get(name)
            for value in values if isinstance(values, list) else ():
                if not is_falsy(condition.evaluate({**record, name: value})):
                    advice = f"write contains(to_array({name}), …)"
                    raise Broken(f"not_known_when: {name} has several values; {advice}")
        return False

    def record(self, attributes: dict[str, list[bytes]]) -> dict[str, Any]:
        """Return the record for expressions: each attribute as a text, or a list of texts."""
        texts = {name: [*map(_text, values)] for name, values in attributes.items() if values}
        return {name: each[0] if len(each) == 1 else each for name, each in texts.items()}


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
