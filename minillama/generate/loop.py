"""The generation loop: one sequence, prompt then token after token."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from minillama.generate.result import Generation, Piece, Timings
from minillama.generate.stopping import StopStrings
from minillama.kernels.types import F32
from minillama.model.model import Model
from minillama.runtime.kv_cache import KVCache
from minillama.runtime.probe import Probe
from minillama.sampling import Sampler, TokenLogprobs, logprobs
from minillama.tokenizer import Tokenizer


@dataclass
class Run:
    """A generation in progress; iterate over :meth:`pieces`, then ask for the :meth:`result`.

    Attributes
    ----------
    model, tokenizer, sampler
        What computes logits, turns ids into text, and chooses.
    cache
        The sequence so far; the prompt and all generated tokens but the last are added to it.
    earlier
        Ids that are in the cache already, as far as they are known.
    prompt
        Ids that come after those.
    max_tokens
        Generate at most so many tokens; None: until the model ends or the cache is full.
    stops
        Strings that end the text.
    n_logprobs
        Alternatives to report per token; None reports nothing.
    probe
        Looks at the values of every pass, and may replace them.
    tokens
        Ids generated so far.
    """

    model: Model
    tokenizer: Tokenizer
    sampler: Sampler
    cache: KVCache
    earlier: Sequence[int]
    prompt: Sequence[int]
    max_tokens: int | None
    stops: StopStrings
    n_logprobs: int | None
    probe: Probe | None = None
    tokens: list[int] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _logprobs: list[TokenLogprobs] = field(default_factory=list)
    _finish_reason: str = "length"
    _started: float = 0.0
    _first: float = 0.0
    _last: float = 0.0

    def pieces(self) -> Iterator[Piece]:
        """Generate, piece by piece; the last one carries the finish reason."""
        decoder = self.tokenizer.stream_decoder(continues=True)
        self._started = time.perf_counter()
        history = [*self.earlier, *self.prompt]
        logits = self._forward(self.prompt)
        self._first = self._last = time.perf_counter()
        while len(self.tokens) != self.max_tokens:
            token = self.sampler.sample(logits, history)
            if token in self.tokenizer.eog_ids:
                self._finish_reason = "stop"
                break
            self.tokens.append(token)
            history.append(token)
            yield self._piece(self.stops.push(decoder.push(token)), token, logits)
            if self.stops.found:
                self._finish_reason = "stop"
                break
            if len(self.tokens) == self.max_tokens:
                break  # the last token's logits are not wanted, so it is not computed
            if len(self.cache) >= self.cache.n_ctx:
                self._finish_reason = "context"
                break
            logits = self._forward([token])
            self._last = time.perf_counter()
        if self.probe is not None:
            self.probe.check()
        rest = self.stops.push(decoder.flush()) + self.stops.flush()
        self._text.append(rest)
        yield Piece(rest, None, None, self._finish_reason)

    def result(self) -> Generation:
        """Everything that was generated so far."""
        timings = Timings(
            prompt_tokens=len(self.prompt),
            prompt_seconds=self._first - self._started,
            generated_tokens=max(0, len(self.tokens) - 1),
            generated_seconds=self._last - self._first,
        )
        return Generation(
            text="".join(self._text),
            tokens=tuple(self.tokens),
            prompt_tokens=(*self.earlier, *self.prompt),
            logprobs=None if self.n_logprobs is None else tuple(self._logprobs),
            finish_reason=self._finish_reason,
            seed=self.sampler.seed,
            timings=timings,
        )

    def _forward(self, ids: Sequence[int]) -> F32:
        # A probe sees all positions in the last layer too, as it does in the others.
        logits = self.model.forward(ids, self.cache, logits="last" if self.probe is None else "all", watch=self.probe)
        assert logits is not None  # both always return some
        return logits if self.probe is None else logits[-1]

    def _piece(self, text: str, token: int, logits: F32) -> Piece:
        self._text.append(text)
        if self.n_logprobs is None:
            return Piece(text, token)
        self._logprobs.append(logprobs(logits, self.n_logprobs, token))
        return Piece(text, token, self._logprobs[-1])
