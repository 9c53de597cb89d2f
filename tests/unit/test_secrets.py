"""No secret survives in any text, in whatever form it is shown."""

from __future__ import annotations

import base64
import io
import json
import logging
import shlex
import urllib.parse

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lab.secrets import MASK, SECRETS, MaskingFilter, Secrets
from lab.ssh_keys import make_key_pair

VALUES = st.text(min_size=8, max_size=40)
TOKENS = st.text("abcdef0123456789", min_size=16, max_size=64)
FORMS = {
    "as it is": lambda value: value,
    "json": lambda value: json.dumps(value)[1:-1],
    "json, not ascii only": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "url": lambda value: urllib.parse.quote(value, safe=""),
    "url path": urllib.parse.quote,
    "url form": urllib.parse.quote_plus,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 for urls": lambda value: base64.urlsafe_b64encode(value.encode()).decode().rstrip("="),
    "shell": lambda value: shlex.quote(value).strip("'"),
    "repr": lambda value: repr(value)[1:-1],
}


def made(*values):
    secrets = Secrets()
    for value in values:
        secrets.add(value)
    return secrets


@pytest.mark.parametrize("form", FORMS)
@given(values=st.lists(VALUES, min_size=1, max_size=4), around=st.tuples(st.text(max_size=9), st.text(max_size=9)))
@example(values=["*" * 8], around=("*" * 8, "*" * 8))
@example(values=["aaaa***aaaa", "bbbbbbbb"], around=("aaaabbbbbbbb", "aaaa"))
def test_no_form_of_any_secret_survives(form, values, around):
    shown = [FORMS[form](value) for value in values]
    masked = made(*values).mask(around[0] + (around[1]).join(shown) + around[1])
    for text in shown:
        assert len(text) < 8 or text not in masked
    for value in values:
        assert value not in masked


@given(value=TOKENS, before=st.binary(max_size=7), after=st.binary(max_size=7))
def test_no_usable_part_survives_inside_a_longer_base64_text(value, before, after):
    """`user:password` in an Authorization header, a key inside a Secret."""
    text = base64.b64encode(before + value.encode() + after).decode()
    masked = made(value).mask(f"Authorization: Basic {text}")
    assert masked != f"Authorization: Basic {text}"
    # Around the mask only characters remain that share bits with a neighbour: 2 before and 2 after at most are its own.
    kept = sum(len(part) for part in masked.removeprefix("Authorization: Basic ").split(MASK))
    assert kept <= (len(before) * 8 + 5) // 6 + 1 + (len(after) * 8 + 5) // 6 + 1 + 2


@given(text=st.text(), values=st.lists(TOKENS, max_size=3))
def test_other_text_stays_and_masking_twice_changes_nothing(text, values):
    secrets = made(*values)
    if not any(form in text for form in secrets._forms):
        assert secrets.mask(text) == text
    once = secrets.mask(text + "".join(values))
    assert secrets.mask(once) == once


def test_the_longest_goes_first():
    secrets = made("password", "password-of-the-database")
    assert secrets.mask("x password-of-the-database y") == f"x {MASK} y"


def test_a_longer_secret_that_begins_inside_a_shorter_one_goes_first():
    assert made("12345678", "5678abcdefghijk").mask("12345678abcdefghijk") == "1234" + MASK


@pytest.mark.parametrize(("value", "is_masked"), [("", False), ("1234567", False), ("12345678", True)])
def test_values_from_eight_characters_on_are_masked(value, is_masked):
    assert (made(value).mask("a 12345678 b") == f"a {MASK} b") is is_masked


def test_a_private_key_is_masked_line_by_line_too():
    private, public = make_key_pair("comment")
    secrets = made(private)
    lines = private.splitlines()
    for line in lines[1:-1]:
        assert len(line) < 16 or line not in secrets.mask(f"error near {line!r}")
    assert secrets.mask(f"{lines[0]} {public}") == f"{lines[0]} {public}"
    assert secrets.mask(private.strip()) == MASK


def test_a_token_read_with_its_line_end_is_masked_without_it():
    assert made("dop_v1_abcd\n").mask("Bearer dop_v1_abcd;") == f"Bearer {MASK};"


def test_a_lone_surrogate_is_no_reason_to_fail():
    assert made("caf\udce9-secret").mask("x caf\udce9-secret") == f"x {MASK}"


class Told(Exception):
    def __str__(self):
        return "told " + str(self.args[0])


class Strange:
    def __str__(self):
        raise RuntimeError("no text")


@pytest.fixture
def logged():
    """A logger of its own, and what its handler wrote."""
    stream = io.StringIO()
    logger = logging.getLogger("lab.test_secrets")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(threadName)s %(message)s"))
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.DEBUG)
    yield logger, handler, stream
    logger.handlers = []


class TestLogging:
    @given(value=VALUES)
    def test_messages_arguments_and_exceptions_are_masked(self, value):
        stream = io.StringIO()
        logger = logging.Logger("lab.test_secrets")
        handler = logging.StreamHandler(stream)
        logger.addHandler(handler)
        made(value).install([handler])
        logger.info(value.replace("%", "%%"))
        logger.info("args %s %r %s", value, {"key": value}, [value.encode()])
        logger.info("%(named)s", {"named": value})
        try:
            try:
                raise ValueError(value)
            except ValueError as error:
                raise Told(value) from error
        except Told:
            logger.exception("failed", stack_info=True)
            logger.error("failed again", exc_info=True)
        # Characters that end a line split a traceback's text, so look for what stands between them as well.
        assert value not in stream.getvalue()
        assert repr(value)[1:-1] not in stream.getvalue()
        assert "Told" in stream.getvalue()

    def test_a_message_that_cannot_be_formatted_shows_nothing(self, logged, capsys):
        logger, handler, stream = logged
        made("hunter2-geheim").install([handler])
        logger.info("%d items", "hunter2-geheim")
        logger.info("%s", Strange(), extra={"token": "hunter2-geheim"})
        shown = stream.getvalue() + "".join(capsys.readouterr())
        assert "hunter2-geheim" not in shown
        assert "%d items" in shown

    def test_a_second_handler_without_filter_sees_the_cleaned_record(self, logged):
        logger, handler, _ = logged
        late = io.StringIO()
        logger.handlers.append(logging.StreamHandler(late))
        made("hunter2-geheim").install([handler])
        try:
            raise ValueError("hunter2-geheim")
        except ValueError:
            logger.exception("it is %s", "hunter2-geheim")
        assert f"it is {MASK}" in late.getvalue()
        assert "hunter2-geheim" not in late.getvalue()

    def test_a_text_that_another_formatter_left_is_masked(self, logged):
        logger, handler, stream = logged
        logger.handlers.insert(0, logging.StreamHandler(io.StringIO()))
        made("hunter2-geheim").install([handler])
        try:
            raise ValueError("hunter2-geheim")
        except ValueError:
            logger.exception("failed")
        assert f"ValueError: {MASK}" in stream.getvalue()

    def test_installing_twice_keeps_one_filter(self, logged):
        _, handler, _ = logged
        secrets = made("hunter2-geheim")
        secrets.install([handler])
        secrets.install([handler, handler])
        assert sum(isinstance(each, MaskingFilter) for each in handler.filters) == 1

    def test_a_secret_added_after_installing_counts(self, logged):
        logger, handler, stream = logged
        secrets = made()
        secrets.install([handler])
        secrets.add("hunter2-geheim")
        logger.info("hunter2-geheim")
        assert stream.getvalue() == f"INFO MainThread {MASK}\n"


def test_there_is_one_registry_for_the_process():
    assert isinstance(SECRETS, Secrets)
