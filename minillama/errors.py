"""Every error minillama raises on purpose, under one root.

Each message is one line that names the thing, says what was found and what was wanted. Anything else that escapes (a
bare ``IndexError`` from inside the package, say) is a bug.
"""

from __future__ import annotations


class MinillamaError(Exception):
    """Root of all errors raised by minillama."""


class InvalidInputError(MinillamaError, ValueError):
    """An argument has a wrong value, shape or type."""


class GGUFError(MinillamaError, ValueError):
    """A GGUF file is damaged, incomplete or contradicts itself.

    Parameters
    ----------
    message
        What is wrong: the key or tensor, what was found and what was wanted.
    path
        The file, put in front of the message.
    offset
        Byte offset in the file at which the fault lies.
    """

    def __init__(self, message: str, *, path: str | None = None, offset: int | None = None) -> None:
        self.path = path
        self.offset = offset
        where = f"{path}: " if path else ""
        at = f" (at byte {offset})" if offset is not None else ""
        super().__init__(f"{where}{message}{at}")


class UnsupportedError(MinillamaError, NotImplementedError):
    """The file is well formed but uses something minillama does not implement; the message lists what it does."""


class ContextFullError(MinillamaError):
    """More positions were asked for than the cache was made for."""


class CacheFileError(MinillamaError, ValueError):
    """A file does not hold a cache, is damaged, or holds one that this model cannot go on with."""


class AdapterError(MinillamaError, ValueError):
    """A file is no LoRA adapter, is damaged, or is made for another model."""


class TokenizerError(MinillamaError, ValueError):
    """Text cannot be encoded, ids cannot be decoded, or the file has no usable vocabulary."""


class UnknownPointError(MinillamaError, KeyError):
    """A name that no value of the forward pass has."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would print the repr


class TraceBudgetError(MinillamaError, MemoryError):
    """What is to be recorded would take more memory than was allowed."""


class ChatTemplateError(MinillamaError, ValueError):
    """The model's chat template is missing something, refuses the messages, or is not valid Jinja."""


class HubError(MinillamaError):
    """A model could not be found, fetched or verified."""


class MissingDependencyError(MinillamaError, ImportError):
    """An optional dependency is needed; the message gives the install command."""
