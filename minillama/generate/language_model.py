"""The object people work with: a model with its tokenizer, chat template and generation."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from minillama.chat import ChatTemplate
from minillama.errors import InvalidInputError
from minillama.generate.conversation import Conversation
from minillama.generate.embedding import embed
from minillama.generate.loop import Run
from minillama.generate.result import Generation, Piece
from minillama.generate.scoring import Perplexity, Score, perplexity, score
from minillama.generate.stopping import StopStrings
from minillama.gguf import open as open_gguf
from minillama.hub import Progress, resolve
from minillama.kernels.types import F32
from minillama.model.adapters import AdapterLike
from minillama.model.model import Model
from minillama.runtime.kv_cache import KVCache
from minillama.sampling import Processor, Sampler, SamplingParams
from minillama.tokenizer import Tokenizer

if TYPE_CHECKING:
    from minillama.trace import Points, Stepper, Trace
    from minillama.trace.trace import Edits

Prompt = str | Sequence[int]


def load(
    model: str | os.PathLike[str] = "smollm2-135m",
    *,
    n_ctx: int | None = None,
    extend_context: bool = False,
    threads: int | None = None,
    backend: str = "cpu",
    kv_type: str | tuple[str, str] = "f32",
    window_only: bool = False,
    driver: str | None = None,
    use_mmap: bool = True,
    adapters: Sequence[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]] = (),
    progress: Progress | None = None,
) -> LanguageModel:
    """Load a model.

    Parameters
    ----------
    model
        A name of the catalog (``minillama models`` lists them), the path of a GGUF file, or
        ``"hf:owner/repo:file-or-quant"``. What is not on this machine yet is fetched, verified and cached.
    n_ctx
        Positions a cache may hold; the default is what the model was trained for.
    extend_context
        Allow more positions than that; what the model makes of them is another matter.
    threads
        Threads to compute with; the default is the processors this process may use.
    backend
        ``"cpu"``, or ``"reference"``: plain loops with the same bits, to be stepped through.
    kv_type
        How keys and values are stored: ``"f32"``, ``"f16"``, ``"bf16"``, ``"q8_0"`` or ``"q4_0"``, or one for keys and
        one for values, ``("q8_0", "f16")``; see docs/kv-cache.md.
    window_only
        Layers with a sliding window keep only that, instead of all positions: less memory, the same bits.
    driver
        ``"captured"`` (the default where numba compiles) replays a recorded plan; ``"eager"`` runs every operation when
        the forward pass calls it, for debuggers. The bits are the same.
    use_mmap
        Map the file (the default), or read it into memory: for network drives.
    adapters
        Files of LoRA adapters, or ``(file, scale)``: what sequences are computed with unless they are given others.
    progress
        Called as ``progress(done_bytes, total_bytes, stage)`` while a model is fetched.

    Raises
    ------
    GGUFError
        The file is damaged.
    UnsupportedError
        The architecture or a tensor type is not implemented.
    HubError
        The model cannot be found or fetched.
    AdapterError
        A file of ``adapters`` is no adapter of this model.
    """
    file = open_gguf(resolve(model, progress), use_mmap=use_mmap)
    loaded = LanguageModel(
        file, n_ctx=n_ctx, extend_context=extend_context, threads=threads, backend=backend, kv_type=kv_type,
        window_only=window_only, driver=driver,
    )  # fmt: skip
    pairs = [entry if isinstance(entry, tuple) else (entry, 1.0) for entry in adapters]
    loaded.adapters = [(loaded.load_adapter(path), scale) for path, scale in pairs]
    return loaded


class LanguageModel(Model):
    """A :class:`~minillama.model.model.Model` that also reads and writes text; made by :func:`load`."""

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back, from the file's own vocabulary.

        Raises
        ------
        TokenizerError
            The file has no vocabulary; the model still works on token ids.
        """
        self._file.check()
        return Tokenizer.from_metadata(self.metadata)

    @functools.cached_property
    def chat_template(self) -> ChatTemplate:
        """Messages to prompt text, from the file's own template, or ChatML where it has none."""
        texts = {
            f"{name}_token": self.tokenizer.token_text(token)
            for name in ("bos", "eos", "unk", "pad")
            if (token := getattr(self.tokenizer, f"{name}_id")) is not None
        }
        return ChatTemplate.from_metadata(
            self.metadata,
            bos_token=texts.get("bos_token", ""),
            eos_token=texts.get("eos_token", ""),
            special_tokens=texts,
        )

    def generate(self, prompt: Prompt, **options: Any) -> Generation:
        """Continue a prompt and return the whole result; options as for :meth:`stream`."""
        run = self._run(prompt, **options)
        for _ in run.pieces():
            pass
        return run.result()

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Piece]:
        """Continue a prompt, piece by piece.

        Parameters
        ----------
        prompt
            Text, or token ids.
        max_tokens : int or None
            Generate at most so many tokens (default 256); None: until the model ends or the context is full.
        temperature : float
            0, the default, always takes the likeliest token; above, tokens are drawn.
        stop : list of str
            Strings that end the text; they are not part of it.
        ignore_eos : bool
            Never end before ``max_tokens``: the end-of-generation tokens are banned, as llama.cpp does it.
        logprobs : int or None
            Report the log-probability of every token and of so many alternatives.
        cache : KVCache or None
            A sequence to go on from; a new one by default. Afterwards it holds the prompt and the generated tokens but
            the last: to go on, give that one as the next prompt.
        adapters : list of Adapter or (Adapter, float)
            LoRA adapters of a new sequence, as for :meth:`new_cache`.
        earlier : sequence of int
            Ids in that cache, for the penalties to look at and the result to report.
        parse_special : bool
            Whether special tokens written in the prompt text count as such (default False: they are plain text).
        trace : Trace or None
            Records, and replaces, values of every pass: step 0 is the prompt, then one for each token.
        edits : mapping or None
            Replacements by point, as in :class:`~minillama.trace.Trace`; instead of ``trace``.
        processors : sequence of callables
            ``f(logits, history)``, applied to the logits before anything else; see :mod:`minillama.sampling`.
        top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, penalty_last_n, logit_bias, seed
            As in :class:`~minillama.sampling.SamplingParams`. Random unless seeded, once the temperature is above 0.

        Raises
        ------
        ContextFullError
            The prompt does not fit the context.
        InvalidInputError
            An option is wrong, or the prompt is empty.
        """
        return self._run(prompt, **options).pieces()

    def chat(self, messages: Iterable[Mapping[str, Any]], **options: Any) -> Generation:
        """Answer a conversation, ``[{"role": "user", "content": "Hi"}, ...]``; options as for :meth:`stream`."""
        return self.conversation(messages).reply(**options)

    def conversation(self, messages: Iterable[Mapping[str, Any]] = (), *, cache: KVCache | None = None) -> Conversation:
        """A conversation that keeps its cache, so that a turn computes only what is new.

        A cache that is given is used: what it holds of the conversation is not computed again, and the rest is dropped.
        """
        return Conversation(self, messages, cache=cache)

    def start(self, prompt: Prompt, **options: Any) -> Run:
        """A generation that has not begun: iterate over its ``pieces()``, then ask for its ``result()``."""
        return self._run(prompt, **options)

    def _run(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = 256,
        temperature: float = 0.0,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        logprobs: int | None = None,
        cache: KVCache | None = None,
        adapters: Sequence[AdapterLike] | None = None,
        earlier: Sequence[int] = (),
        parse_special: bool = False,
        processors: Sequence[Processor] = (),
        logit_bias: Mapping[int, float] | None = None,
        trace: Trace | None = None,
        edits: Edits | None = None,
        **sampling: Any,
    ) -> Run:
        if max_tokens is not None and (
            isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 0
        ):
            raise InvalidInputError(f"max_tokens is {max_tokens!r}, a whole number from 0 or None is wanted")
        if logprobs is not None and (isinstance(logprobs, bool) or not isinstance(logprobs, int) or logprobs < 0):
            raise InvalidInputError(f"logprobs is {logprobs!r}, a whole number from 0 or None is wanted")
        self.check_makes_text()
        cache = self._sequence(cache, adapters)
        bias = dict(logit_bias or {})
        if ignore_eos:
            bias.update(dict.fromkeys(self.tokenizer.eog_ids, float("-inf")))
        params = SamplingParams(temperature=temperature, logit_bias=bias, **sampling)
        return Run(
            model=self,
            tokenizer=self.tokenizer,
            sampler=Sampler(params, self.config.n_vocab, processors=processors),
            cache=cache,
            earlier=earlier,
            prompt=self._prompt_ids(prompt, cache, parse_special),
            max_tokens=max_tokens,
            stops=StopStrings(stop),
            n_logprobs=logprobs,
            probe=self._probe(trace, edits),
        )

    @functools.cached_property
    def points(self) -> Points:
        """The named values of this model's pass: a mapping from names to shapes and meanings."""
        from minillama.trace import Points

        return Points(self)

    def trace(
        self,
        prompt: Prompt,
        record: str | Iterable[str] = (),
        *,
        cache: KVCache | None = None,
        adapters: Sequence[AdapterLike] | None = None,
        parse_special: bool = False,
        **options: Any,
    ) -> Trace:
        """Compute a prompt once and keep values on the way; ``.logits`` of the result has all positions.

        Parameters
        ----------
        prompt
            Text, or token ids.
        record, **options
            Which values, of which ``positions``, with which ``edits``, and where to ``stop_after``: see
            :class:`~minillama.trace.Trace`.
        cache
            A sequence to go on from; a new one by default.
        adapters
            Of the new sequence, as for :meth:`new_cache`.
        parse_special
            Whether special tokens written in the prompt count as such.
        """
        from minillama.trace import Trace

        cache = self._sequence(cache, adapters)
        return Trace(self, record, **options).run(self._prompt_ids(prompt, cache, parse_special), self, cache)

    def step(
        self, prompt: Prompt, *, cache: KVCache | None = None, adapters: Sequence[AdapterLike] | None = None,
        parse_special: bool = False,
    ) -> Stepper:  # fmt: skip
        """A pass over a prompt that is run by hand, operation by operation; options as for :meth:`trace`."""
        from minillama.trace import Stepper

        cache = self._sequence(cache, adapters)
        return Stepper(self, self._prompt_ids(prompt, cache, parse_special), cache)

    def forward_from(
        self,
        point: str,
        value: F32,
        cache: KVCache,
        *,
        also: Mapping[str, F32] | None = None,
        trace: Trace | None = None,
    ) -> F32:
        """Logits of a pass that starts at a point with a given value: float32 [n_tokens, n_vocab].

        What comes before the point is not computed. Keys and values of the new tokens in earlier layers are then
        missing, so the cache is left as it was.

        Parameters
        ----------
        point, value
            Where to start, such as ``"blk.5.l_out"``, and with what: float32 [n_tokens, ...].
        cache
            The text before these tokens.
        also
            Other values that what follows needs, such as the residual stream where the point is not all of it.
        trace
            Records or replaces values after the point.

        Raises
        ------
        InvalidInputError
            The values do not determine the logits; the message names what is missing.
        """
        found = {self.points.find(name): np.asarray(array) for name, array in {point: value, **(also or {})}.items()}
        return self.resume(found, [cache], [len(value)], watch=trace)[0]

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        pooling: str | None = None,
        normalize: bool = True,
        adapters: Sequence[AdapterLike] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> F32 | list[F32]:
        """Texts as vectors, with the bits of llama.cpp; texts that go through a pass together have those of one alone.

        Parameters
        ----------
        texts
            A text or its token ids, or several of these. Text gets the special tokens that the model wants.
        pooling
            How the vectors of a text's tokens become one: ``"mean"``, ``"cls"`` (the first), ``"last"``, or ``"none"``
            to have them all; the default is what the file states.
        normalize
            Whether to scale vectors to length 1.
        adapters
            As for :meth:`new_cache`.
        progress
            Called as ``progress(done_texts, total_texts)``.

        Returns
        -------
        array or list of array
            float32 [n_texts, n_embd], or [n_embd] of a single text; without pooling [n_tokens, n_embd] for each.

        Raises
        ------
        InvalidInputError
            A text is empty, or the file does not state a pooling and none is chosen.
        ContextFullError
            A text has more tokens than the context; texts are never cut.
        """
        single = isinstance(texts, str) or (len(texts) > 0 and isinstance(texts[0], int | np.integer))
        prompts = cast("Sequence[Prompt]", [texts] if single else texts)
        ids = [self._text_ids(text) for text in prompts]
        if not ids:
            raise InvalidInputError("there are no texts")
        options: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "adapters": adapters}
        found = embed(self, ids, progress=progress, **options)
        if single:
            return found[0]
        return found if found[0].ndim > 1 else np.stack(found)

    def _text_ids(self, text: Prompt) -> list[int]:
        ids = self.tokenizer.encode(text) if isinstance(text, str) else [int(token) for token in text]
        if not ids:
            raise InvalidInputError("a text is empty, at least one token is wanted")
        return ids

    def score(self, prompt: Prompt, continuations: Sequence[Prompt]) -> list[Score]:
        """How likely each of some continuations of a prompt is; the prompt is computed once.

        As evaluation harnesses do it: a continuation that is text is tokenized together with the prompt's text, and
        what the prompt's own tokens do not cover is scored.
        """
        return score(self, prompt, continuations)

    def perplexity(self, text: Prompt, *, n_ctx: int = 512) -> Perplexity:
        """Perplexity of a text by llama.cpp's method; see :func:`minillama.generate.scoring.perplexity`."""
        return perplexity(self, text, n_ctx=n_ctx)

    def _sequence(self, cache: KVCache | None, adapters: Sequence[AdapterLike] | None) -> KVCache:
        """The sequence to go on with, or a new one with adapters."""
        if cache is None:
            return self.new_cache(adapters=adapters)
        if adapters is not None:
            raise InvalidInputError("cache and adapters: a cache has its own, new_cache(adapters=...)")
        return cache

    def _probe(self, trace: Trace | None, edits: Edits | None) -> Trace | None:
        if edits is None:
            return trace
        if trace is not None:
            raise InvalidInputError("trace and edits: give the edits to the trace")
        from minillama.trace import Trace

        return Trace(self, edits=edits)

    def _prompt_ids(self, prompt: Prompt, cache: KVCache, parse_special: bool) -> list[int]:
        if isinstance(prompt, str):
            # A prompt that goes on in a cache is not a new text: no second beginning-of-sequence token.
            prompt = self.tokenizer.encode(prompt, add_special=len(cache) == 0, parse_special=parse_special)
        ids = [int(token) for token in prompt]
        if not ids:
            raise InvalidInputError("the prompt is empty, at least one token is wanted")
        return ids
