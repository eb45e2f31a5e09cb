"""A chat of several turns that computes only what is new in each."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from minillama.errors import InvalidInputError
from minillama.generate.result import Generation, Piece

if TYPE_CHECKING:
    from minillama.generate.language_model import LanguageModel
    from minillama.runtime.kv_cache import KVCache


class Conversation:
    """Messages, and the cache of what the model has read of them.

    Made by ``model.conversation()``. Each reply renders all messages with the chat template, finds how much of that
    is in the cache, and computes the rest. A cache that is given may hold something else: it is cut to what fits.

    Attributes
    ----------
    messages
        The conversation so far: mappings with ``role`` and ``content``. A reply adds itself, also when it is stopped
        half-way.
    """

    def __init__(
        self, model: LanguageModel, messages: Iterable[Mapping[str, Any]] = (), *, cache: KVCache | None = None
    ) -> None:
        self.messages: list[Mapping[str, Any]] = list(messages)
        self._model = model
        self._cache = model.new_cache() if cache is None else cache

    def add(self, role: str, content: str) -> None:
        """Add a message."""
        self.messages.append({"role": role, "content": content})

    def reply(self, **options: Any) -> Generation:
        """The model's answer to the last message; options as for ``model.stream``, without a limit by default."""
        *_, result = self._answers(**options)
        assert isinstance(result, Generation)  # the last thing an answer yields is its result
        return result

    def stream(self, **options: Any) -> Generator[Piece, None, None]:
        """The model's answer, piece by piece."""
        for answer in self._answers(**options):
            if isinstance(answer, Piece):
                yield answer

    def _answers(self, **options: Any) -> Iterator[Piece | Generation]:
        if "cache" in options:
            raise InvalidInputError("a conversation has a cache of its own")
        ids = self._prompt_ids()
        shared = self._cache.begin(ids)
        run = self._model.start(
            ids[shared:], cache=self._cache, earlier=ids[:shared], **{"max_tokens": None, **options}
        )
        try:
            yield from run.pieces()
        finally:
            result = run.result()
            if run.tokens:
                self.add("assistant", result.text)
        yield result

    def _prompt_ids(self) -> list[int]:
        if not self.messages:
            raise InvalidInputError("the conversation has no messages")
        template, tokenizer = self._model.chat_template, self._model.tokenizer
        text = template.render(self.messages)
        # Templates that write the beginning-of-sequence token themselves must not get a second one.
        add_special = not (template.bos_token and text.startswith(template.bos_token))
        return tokenizer.encode(text, add_special=add_special, parse_special=True)
