"""What a fixture may hold, and how everything else is refused."""

import re
import time

import pytest

from idv_yaml.fixture import parse
from tornado_idv import ByCard, ByNickname, ConfigError, User

ALICE = "{nickname: alice, card_number: '1', plan: Free}"
BLOCK = """\
users:
  - nickname: "@alice"
    card_number: "4000123412341234"
    plan: Free
  - nickname: bob
    card_number: 0012345670
    profile_url: http://elsewhere.example/bob
    plan: "@Pro "
"""
COUNTED = "count: 2\n" + BLOCK


def problems(text: str | bytes, **options: bool) -> list[str]:
    content = text.encode() if isinstance(text, str) else text
    with pytest.raises(ConfigError) as caught:
        parse(content, "u.yaml", **options)
    return [str(problem) for problem in caught.value.problems]


def of_one(**fields: str) -> str:
    """A fixture of one user, each member on a line of its own from line 2 on."""
    user = {"nickname": "alice", "card_number": "'1'", "plan": "Free", **fields}
    lines = [f"    {name}: {value}\n" for name, value in user.items()]
    return "users:\n  -" + "".join(lines)[3:]


def test_users_are_indexed_by_nickname_and_by_card() -> None:
    """Values stay the text that is written; the ``@`` is no part of the nickname."""
    fixture = parse(BLOCK.encode(), "u.yaml")
    bob = User("@Pro ", "0012345670", "bob", "http://elsewhere.example/bob")
    alice = User("Free", "4000123412341234", "alice")
    assert fixture.users == {
        ByNickname("alice"): alice,
        ByCard("4000123412341234"): alice,
        ByNickname("bob"): bob,
        ByCard("0012345670"): bob,
    }
    assert "alice" not in repr(fixture)
    (query,) = (each for each in fixture.users if each == ByNickname("bob"))
    user = fixture.users[query]
    values = (query.text, user.plan, user.card_number, user.nickname, user.profile_url)
    assert {type(value) for value in values} == {str}  # encoders refuse subclasses


@pytest.mark.parametrize("text", ["# none\nusers: []", "count: 0\nusers: []\n"])
def test_no_users_is_a_valid_fixture(text: str) -> None:
    assert parse(text.encode(), "u.yaml").users == {}


@pytest.mark.parametrize("nickname", ["a" * 64, '"@@alice"', "no", "~", '"..x"', '"!$&:@~"'])
def test_a_nickname_may_be_any_printable_ascii(nickname: str) -> None:
    """And a card number may be as long as can be configured."""
    text = of_one(nickname=nickname, card_number="1" * 64, plan="x" * 256)
    (user,) = set(parse(text.encode(), "u.yaml").users.values())
    assert user.nickname == nickname.strip('"').removeprefix("@")


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "1:1: users", "missing or empty"),
        ("users: null", "1:1: users", "must be a list"),
        (f"- {ALICE}", "1:1", "write a mapping"),
        ("users: [[alice]]", "1:9: users[0]", "write a mapping"),
        ("user: []\nusers: []", "1:1", 'did you mean "users"?'),
        ("users: []\nzz: 1", "2:1", "there are count, fault, users"),
        (of_one(plam="x"), "5:5: users[0]", 'did you mean "plan"?'),
        ("users:\n- {nickname: a, plan: b}", "2:3: users[0].card_number", "missing"),
        (of_one(plan="'  '"), "4:5: users[0].plan", "empty"),
        (of_one(plan="{}"), "4:5: users[0].plan", "must be text"),
        (of_one(nickname='"@"'), "2:5: users[0].nickname", "empty"),
        (of_one(nickname="'@...'"), "2:5: users[0].nickname", "not only dots"),
        (of_one(nickname='"a\\n"'), "2:5: users[0].nickname", "ASCII"),
        (of_one(nickname="a" * 65), "2:5: users[0].nickname", "64"),
        *(
            (of_one(nickname=f"'a{sign}b'"), "2:5: users[0].nickname", "none of / ? # % \\")
            for sign in "/?#%\\"
        ),
        (of_one(nickname="@al"), "2:15", "in quotes"),
        (of_one(card_number="12a"), "3:5: users[0].card_number", "64"),
        (of_one(card_number="1" * 65), "3:5: users[0].card_number", "64"),
        (of_one(card_number="1\uff11"), "3:5: users[0].card_number", "64"),
        *(
            (of_one(plan=plan), "4:5: users[0].plan", "write 1 to 256 characters without control")
            for plan in ("x" * 257, '"\\x7f"', '"a\\x85"', '"a\\u2028"')
        ),
        (of_one(profile_url="null"), "5:5: users[0].profile_url", "https://"),
        (of_one(profile_url=f"https://{'x' * 2041}"), "5:5: users[0].profile_url", "2,048"),
        ("count: two\nusers: []\n", "1:1: count", "a number"),
        ("count: [1]\nusers: []\n", "1:1: count", "a number"),
        (f"count: {'9' * 5000}\nusers: []\n", "1:1: count", "a number"),
        ("count: 0\nusers: []", "1:1: count", "line break"),
        ("users: [", "2:1", "not valid YAML"),
        ('users: {"@a" b}', "1:14", "not valid YAML"),
        (b"users: \xff", "1:8", "not UTF-8 text"),
    ],
)
def test_a_bad_fixture_is_refused(text: str | bytes, place: str, message: str) -> None:
    reported = problems(text)
    assert reported[0].startswith(f"u.yaml:{place}: ")
    assert message in reported[0]


@pytest.mark.parametrize(
    ("second", "line", "problem"),
    [
        ("nickname: '@alice'\n    card_number: '2'", 5, "nickname"),
        ("nickname: alicE\n    card_number: '2'", 5, "nickname (nickname_case is fold)"),
        ("nickname: bob\n    card_number: 1", 6, "card_number"),
    ],
)
def test_a_duplicate_user_is_reported_with_both_lines(second: str, line: int, problem: str) -> None:
    text, lines = of_one() + f"  - {second}\n    plan: Pro\n", f"lines {line - 3} and {line}"
    reported = problems(text, folds_nicknames="@alice" not in second)
    name = problem.partition(" ")[0]
    assert reported == [f"u.yaml:{line}:5: users[1].{name}: {lines} hold the same {problem}"]


def test_all_problems_are_reported_in_the_order_of_the_file() -> None:
    text = "count: 9\nuser: 1\nusers:\n- {nickname: a b, card_number: x}\n- {plan: Free}\n"
    places = [reported.rpartition(": ")[0] for reported in problems(text)]
    assert [re.sub(r"^u.yaml:(\d+):\d+: ", r"\1 ", place) for place in places] == [
        "1 count",
        "u.yaml:2:1",
        "4 users[0].plan",
        "4 users[0].nickname",
        "4 users[0].card_number",
        "5 users[1].nickname",
        "5 users[1].card_number",
    ]


def test_problems_contain_no_nickname_or_card_number() -> None:
    """Not even where one stands for the name of a member."""
    text = of_one(nickname="canary", card_number="'777'", canary="x")
    text += "  - {nickname: canary, card_number: '777', '777': x}\n  - canary\n"
    text += "  - {nickname: canary canary, card_number: 777a, plan: canary}\ncanary: 777\n"
    reported = "\n".join(problems(text))
    assert reported.count("\n") >= 6
    assert "canary" not in reported
    assert "777" not in reported


@pytest.mark.parametrize(
    "whole", [COUNTED, f"{{count: 1, users: [{ALICE}]}}\n"], ids=["block", "flow"]
)
def test_a_counted_fixture_cut_at_any_byte_is_never_smaller(whole: str) -> None:
    """It is refused, or every user is there as it was written."""
    content = whole.encode()
    complete = parse(content, "u.yaml")
    for length in range(len(content)):
        try:
            cut = parse(content[:length], "u.yaml")
        except ConfigError:
            continue
        assert cut == complete, length


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BLOCK, "missing, but the last fixture had it"),
        (COUNTED.replace("count: 2", "count: 3"), "is 3, but there are 2 users"),
    ],
)
def test_a_count_that_does_not_fit_is_reported_with_what_to_do(text: str, problem: str) -> None:
    advice = "the file may be truncated; if 2 is right, set count to 2"
    assert problems(text, counted=True) == [f"u.yaml:1:1: count: {problem}; {advice}"]


@pytest.mark.slow
def test_a_large_fixture_is_read_in_a_few_seconds() -> None:
    """A quarter of a second on a developer's machine; quadratic work would take minutes."""
    users = [f"- {{nickname: u{n}, card_number: {n}, plan: Free}}\n" for n in range(10_000)]
    content = ("count: 10000\nusers:\n" + "".join(users)).encode()
    begun = time.process_time()
    assert len(parse(content, "u.yaml").users) == 20_000
    assert time.process_time() - begun < 10


FAULTY = """\
fault: {delay: 5ms, probability: 0.5}
users:
  - {nickname: "@Alice", card_number: "1", plan: Free, fault: {status: 503, times: 2}}
  - {nickname: "@bob", card_number: "2", fault: {status: 503}}
  - {card_number: "3", fault: {reset: true}}
"""


def test_faults_are_indexed_by_query() -> None:
    content = f"count: 3\n{FAULTY}".encode()
    fixture = parse(content, "u.yaml", folds_nicknames=True, allows_faults=True)
    assert set(fixture.users) == {ByNickname("alice"), ByCard("1")}
    faults = fixture.faults
    names, cards = map(ByNickname, ("alice", "bob")), map(ByCard, "123")
    assert set(faults) == {None, *names, *cards}
    assert faults[ByNickname("alice")] is faults[ByCard("1")]
    assert (faults[None].delay, faults[None].probability) == (0.005, 0.5)
    assert faults[ByCard("3")].reset


def test_a_fault_needs_demo() -> None:
    assert problems(FAULTY) == [
        "u.yaml:1:1: fault: needs demo: true in config.yaml",
        "u.yaml:3:56: users[0].fault: needs demo: true in config.yaml",
        "u.yaml:4:42: users[1].fault: needs demo: true in config.yaml",
        "u.yaml:5:24: users[2].fault: needs demo: true in config.yaml",
    ]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("nickname: a, fault: {status: 404}", "fault.status: must be 429, 500 or 503; for a 404"),
        ("nickname: a, fault: {statsu: 503}", "fault.statsu: this member is not known; there are"),
        ("nickname: a, fault: 503", "fault: Input should be a valid dictionary"),
        ("profile_url: 'https://a.example', fault: {cut: true}", ": a fault without a user needs"),
        ("nickname: a, plan: Free, fault: {cut: true}", "card_number: missing"),
    ],
)
def test_a_wrong_fault_is_refused(entry: str, problem: str) -> None:
    found = problems(f"users:\n  - {{{entry}}}\n", allows_faults=True)
    assert problem in found[-1]
    assert found[-1].startswith("u.yaml:2:")
