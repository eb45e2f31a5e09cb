"""The Jinja environment chat templates are written for: that of Hugging Face transformers, in the strictest sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from minillama.errors import ChatTemplateError


class GenerationBlock(Extension):
    """``{% generation %}...{% endgeneration %}`` marks the assistant's text for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it as an instance variable

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block into a scope of its own: names set inside do not leak."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def make_environment(clock: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """Return an environment whose ``strftime_now`` asks ``clock`` for the time."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda fmt: clock().strftime(fmt)
    return environment


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write ``value`` as JSON, without the HTML escapes and sorted keys of Jinja's own filter: models see the text."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: object) -> NoReturn:
    """Let a template refuse the messages it is given."""
    raise ChatTemplateError(f"chat template refuses the messages: {message}")
