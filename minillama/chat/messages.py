"""What a conversation must look like before a template sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from minillama.errors import InvalidInputError

Message = Mapping[str, Any]
"""``{"role": str, "content": str | list of parts | None, ...}``; other keys go to the template as they are."""


def check_messages(messages: object) -> list[dict[str, Any]]:
    """Return the messages as a list of new dicts.

    Raises
    ------
    InvalidInputError
        Not a non-empty sequence of messages, or a message without a role or with unusable content; names the message.
    """
    if not _is_sequence(messages):
        raise InvalidInputError(f"messages: found {type(messages).__name__}, wanted a list of messages")
    if not messages:
        raise InvalidInputError("messages: found an empty list, wanted at least one message")
    return [_checked_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def check_tools(tools: object) -> list[Any] | None:
    """Return the tools as a list, None if there are none given.

    Raises
    ------
    InvalidInputError
        Not a sequence of mappings.
    """
    if tools is None:
        return None
    if not _is_sequence(tools):
        raise InvalidInputError(f"tools: found {type(tools).__name__}, wanted a list of tool descriptions or None")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InvalidInputError(f"tools[{i}]: found {type(tool).__name__}, wanted a mapping (a JSON schema)")
    return list(tools)


def join_text(parts: Sequence[Mapping[str, Any]], where: str) -> str:
    """Join parts that are all text, with newlines as llama.cpp does.

    Raises
    ------
    InvalidInputError
        A part is not text.
    """
    for part in parts:
        if part["type"] != "text":
            raise InvalidInputError(
                f"{where}: found a part of type {part['type']!r}, but this chat template reads text"
            )
    return "\n".join(part["text"] for part in parts)


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _checked_message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidInputError(f"{where}: found {type(message).__name__}, wanted a mapping with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidInputError(f"{where}: found role {role!r}, wanted a non-empty string such as 'user'")
    if "content" not in message and "tool_calls" not in message:
        raise InvalidInputError(f"{where}: found keys {sorted(map(str, message))}, wanted content")
    checked = dict(message)
    content = message.get("content")
    if _is_sequence(content):
        checked["content"] = [_checked_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
    elif content is not None and not isinstance(content, str):
        raise InvalidInputError(f"{where}: found content of type {type(content).__name__}, wanted text, parts or None")
    return checked


def _checked_part(part: object, where: str) -> dict[str, Any]:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise InvalidInputError(f"{where}: found {part!r:.60}, wanted a mapping with a type")
    if part["type"] == "text" and not isinstance(part.get("text"), str):
        raise InvalidInputError(f"{where}: found a part without text, wanted {{'type': 'text', 'text': str}}")
    return dict(part)
