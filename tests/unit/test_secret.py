"""A Secret can be used without being shown: every usual way to print, store or copy one gives the mask."""

from __future__ import annotations

import copy
import inspect
import io
import json
import logging
import operator
import pickle
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import structlog
from tests.support.secrets_planted import REVEALED

from holdfast.secret import Secret

SENTINEL = REVEALED


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    name: str
    password: Secret[str]


@pytest.fixture(params=[SENTINEL, SENTINEL.encode()], ids=["text", "bytes"])
def secret(request: pytest.FixtureRequest) -> Secret[Any]:
    return Secret(request.param)


def test_reveal_gives_back_exactly_what_was_wrapped():
    assert Secret("pässword\n").reveal() == "pässword\n"
    assert Secret(b"\x00\xff").reveal() == b"\x00\xff"


PRINTERS: dict[str, Callable[[Any], str]] = {
    "str": str,
    "repr": repr,
    "ascii": ascii,
    "f-string": lambda s: f"{s}",
    "f-string with !r": lambda s: f"{s!r}",
    "f-string with =": lambda s: f"{s=}",
    "f-string with a width": lambda s: f"{s:>40}",
    "f-string with a precision": lambda s: f"{s:.2}",
    "str.format": "{0} {0!r} {0!s}".format,
    "percent s": lambda s: "%s" % (s,),  # noqa: UP031
    "percent r": lambda s: "%r" % (s,),  # noqa: UP031
    "inside a list": lambda s: str([s]),
    "inside a dict": lambda s: repr({"key": s}),
    "inside a dataclass": lambda s: repr(Holder(name="db", password=s)),
    "inside asdict of a dataclass": lambda s: repr(asdict(Holder(name="db", password=s))),
    "inside an exception": lambda s: repr(ValueError("bad", s)) + str(ValueError("bad", s)),
}


@pytest.mark.parametrize("show", PRINTERS.values(), ids=PRINTERS.keys())
def test_every_way_of_printing_it_gives_the_mask(show: Callable[[Any], str], secret: Secret[Any]):
    shown = show(secret)
    assert "***" in shown
    assert SENTINEL not in shown


@pytest.mark.parametrize("template", ["%s", "%r", "%(password)s"])
def test_a_log_line_shows_the_mask(template: str, secret: Secret[Any]):
    stream = io.StringIO()
    log = logging.Logger("test")
    log.addHandler(logging.StreamHandler(stream))
    log.error(template, {"password": secret} if "(" in template else secret)
    assert stream.getvalue() == "***\n"


def test_json_refuses_it(secret: Secret[Any]):
    with pytest.raises(TypeError, match="not JSON serializable") as refusal:
        json.dumps({"password": secret})
    assert SENTINEL not in str(refusal.value)
    with pytest.raises(TypeError):
        json.dumps({secret: 1})


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_pickle_protocol_takes_it(protocol: int, secret: Secret[Any]):
    with pytest.raises(TypeError):
        pickle.dumps(secret, protocol)
    with pytest.raises(TypeError):
        pickle.dumps(Holder(name="db", password=secret), protocol)


def test_its_state_cannot_be_asked_for(secret: Secret[Any]):
    with pytest.raises(TypeError):
        secret.__getstate__()
    with pytest.raises(TypeError):
        secret.__reduce__()


def test_a_copy_is_the_same_masked_object(secret: Secret[Any]):
    assert copy.copy(secret) is secret
    assert copy.deepcopy(secret) is secret
    copied = copy.deepcopy({"password": secret})
    assert copied["password"] is secret
    assert SENTINEL not in repr(copied)


def test_a_traceback_with_local_variables_shows_the_mask(secret: Secret[Any]):
    try:
        password = secret
        raise ValueError("refused", password)
    except ValueError as error:
        lines = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    assert "password = ***" in lines
    assert SENTINEL not in lines


@pytest.mark.parametrize(
    "renderer",
    [
        structlog.processors.JSONRenderer(),
        structlog.processors.KeyValueRenderer(),
        structlog.processors.LogfmtRenderer(),
        structlog.dev.ConsoleRenderer(colors=False),
    ],
    ids=lambda renderer: type(renderer).__name__,
)
def test_structlog_renders_the_mask(renderer: Any, secret: Secret[Any]):
    line = str(renderer(None, "info", {"event": "connecting", "password": secret}))
    assert "***" in line
    assert SENTINEL not in line


def test_an_exception_logged_by_structlog_shows_the_mask(secret: Secret[Any]):
    try:
        raise ValueError("refused", secret)
    except ValueError as error:
        event: dict[str, Any] = {"event": "failed", "exc_info": error}
    rendered = structlog.processors.format_exc_info(None, "error", event)
    assert "***" in str(rendered)
    assert SENTINEL not in str(rendered)


def test_no_attribute_holds_the_value(secret: Secret[Any]):
    assert not hasattr(secret, "__dict__")
    assert not hasattr(secret, "_value")
    members = [value for name, value in inspect.getmembers(secret) if name != "reveal"]
    assert secret.reveal() not in [member for member in members if isinstance(member, str | bytes)]
    for name in Secret.__slots__:
        assert not hasattr(secret, name)


def test_it_cannot_be_changed(secret: Secret[Any]):
    before = secret.reveal()
    for name in ("_value", "value", "reveal"):
        with pytest.raises(AttributeError):
            setattr(secret, name, "other")
    assert secret.reveal() == before


def test_it_cannot_be_subclassed():
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Leaky", (Secret,), {"__repr__": lambda self: self.reveal()})


def test_it_is_equal_to_another_secret_of_the_same_type_and_value_only():
    assert Secret("pässword") == Secret("pässword")
    assert Secret(b"\xff") == Secret(b"\xff")
    assert Secret("a") != Secret("b")
    assert Secret("a") != Secret("ab")
    assert Secret("a") != Secret(b"a")
    assert Secret("a").__eq__("a") is NotImplemented
    assert operator.eq("a", Secret("a")) is False
    assert Secret("\udcff") == Secret("\udcff"), "text from the environment may hold lone surrogates"


def test_equality_is_decided_by_compare_digest():
    """Constant time cannot be seen from outside; the name of the one function that promises it can."""
    assert "compare_digest" in Secret.__eq__.__code__.co_names


def test_it_has_no_hash(secret: Secret[Any]):
    with pytest.raises(TypeError, match="unhashable"):
        hash(secret)


def test_only_an_empty_one_is_false():
    assert Secret("a")
    assert Secret(b"\x00")
    assert not Secret("")
    assert not Secret(b"")


@pytest.mark.parametrize("operation", [len, iter, list, bytes, int, lambda s: s + "x", lambda s: "s" in s])
def test_nothing_else_can_be_done_with_it(operation: Callable[[Any], Any], secret: Secret[Any]):
    with pytest.raises(TypeError) as refusal:
        operation(secret)
    assert SENTINEL not in str(refusal.value)


@pytest.mark.parametrize("value", [None, 1, bytearray(b"a"), ["a"], Secret("a")])
def test_only_text_and_bytes_can_be_wrapped(value: Any):
    with pytest.raises(TypeError, match="text or bytes"):
        Secret(value)
