"""A model as numbers: token ids in, logits out, with a cache for what was computed before."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from minillama.errors import InvalidInputError, UnsupportedError
from minillama.gguf import GGUFFile
from minillama.gguf import open as open_gguf
from minillama.kernels.registry import KernelSet, kernel_set
from minillama.kernels.types import F32, I64
from minillama.model.adapters import Adapter, AdapterLike, Base, scaled
from minillama.model.caches import Caches
from minillama.model.config import read_config
from minillama.model.families import family
from minillama.model.keys import architecture_of
from minillama.model.weights import Binder, Weights
from minillama.runtime.batch import Batch
from minillama.runtime.capture import Captured, RecordedPass
from minillama.runtime.deferred import Deferred, ValueInfo, outline
from minillama.runtime.driven import Reached
from minillama.runtime.eager import Eager
from minillama.runtime.kv_cache import KVCache
from minillama.runtime.low_rank import Scaled
from minillama.runtime.mapped_cache import MappedCache
from minillama.runtime.operations import Operations
from minillama.runtime.probe import Probe, Watcher, probe_of
from minillama.runtime.resume import Resumed
from minillama.runtime.threads import ThreadTeam

DRIVERS = ("captured", "eager")

# Tokens per pass of a long prompt: bounds the memory of intermediate values. It changes no bits.
CHUNK = 512


class Model:
    """The forward pass of a GGUF file.

    Parameters
    ----------
    file
        An open file. The model keeps views of it; closing it afterwards is fine.
    n_ctx
        Positions a cache may hold; the default is what the model was trained for.
    extend_context
        Allow more positions than that; what the model makes of them is another matter.
    threads
        Threads to compute with; the default is the processors this process may use.
    backend
        ``"cpu"``, or ``"reference"``: plain loops, the same bits, slow.
    kv_type
        How keys and values are stored: ``"f32"``, ``"f16"``, ``"bf16"``, ``"q8_0"`` or ``"q4_0"``, or one for keys and
        one for values, ``("q8_0", "f16")``; see docs/kv-cache.md.
    window_only
        Layers with a sliding window keep only that, instead of all positions: less memory, the same bits; see
        docs/kv-cache.md for what such a cache cannot do.
    driver
        ``"captured"`` (the default where numba compiles) replays a recorded plan without Python in between;
        ``"eager"`` runs every operation when the forward pass calls it. The bits are the same.

    Attributes
    ----------
    config
        Sizes and constants.
    metadata
        The file's metadata.
    weights
        All tensors by name.
    """

    def __init__(
        self,
        file: GGUFFile,
        *,
        n_ctx: int | None = None,
        extend_context: bool = False,
        threads: int | None = None,
        backend: str = "cpu",
        kv_type: str | tuple[str, str] = "f32",
        window_only: bool = False,
        driver: str | None = None,
    ) -> None:
        self._family = family(architecture_of(file))
        self.config = read_config(file)
        self.metadata: Mapping[str, Any] = file.metadata
        self._file = file
        if self._family.is_encoder and kv_type != "f32":
            raise InvalidInputError(
                f"kv_type is {kv_type!r}: {self.config.architecture} keeps no cache, only f32 is known"
            )
        self.n_ctx = _context(n_ctx, self.config.n_ctx_train, extend_context)
        self.backend = backend
        kernels, team = kernel_set(backend), ThreadTeam(threads)
        self._driver = _driver(driver, kernels, team)
        eager = Eager(kernels, team)
        self.weights = Weights(file, eager)
        binder = Binder(file, eager)
        self._bound = self._family.bind(binder, self.config, self.n_ctx)
        self._base = Base(self.config.architecture, file.tensors, binder.products, eager)
        self._adapters: tuple[Scaled, ...] = ()
        forward, bound, config = self._family.forward, self._bound, self.config
        # Without the model itself in it, which the caches' owner must not keep alive.
        self._caches = Caches(
            config, file.tensors, lambda ops, batch: forward(ops, bound, config, batch), eager, self.n_ctx, kv_type,
            window_only=window_only,
        )  # fmt: skip

    def __repr__(self) -> str:
        config = self.config
        return f"<{type(self).__name__} {config.name!r}: {config.architecture}, {config.n_layer} layers>"

    @property
    def kv_type(self) -> str:
        """How keys and values are stored."""
        return self._caches.memory.kv_type

    @property
    def team(self) -> ThreadTeam:
        """Threads used."""
        return self._driver.team

    @property
    def n_threads(self) -> int:
        """Number of threads used."""
        return self._driver.team.n_threads

    @functools.cached_property
    def values(self) -> tuple[ValueInfo, ...]:
        """The named values of a pass, those on demand included; a pass is laid out for this once, and not run."""
        driver, _ = self.deferred_pass([0], self.new_cache(), parts=True)
        return outline(driver)

    def load_adapter(self, path: str | os.PathLike[str]) -> Adapter:
        """A LoRA adapter for this model, from a GGUF file. The model's weights stay as they are.

        Give it to a sequence, ``model.new_cache(adapters=[adapter])``, a call, ``generate(..., adapters=[adapter])``,
        or to all sequences to come, ``model.adapters = [(adapter, 0.5)]``.

        Raises
        ------
        AdapterError
            The file is no LoRA adapter, lacks half of an update, or is made for another model.
        GGUFError
            It is damaged or cut short.
        UnsupportedError
            It updates a tensor that cannot be updated, or is of a kind that is not supported.
        """
        return Adapter(open_gguf(Path(path)), self._base)

    @property
    def adapters(self) -> tuple[Scaled, ...]:
        """Adapters of new sequences, and their scales; to be set to a list of adapters, or of (adapter, scale)."""
        return self._adapters

    @adapters.setter
    def adapters(self, adapters: Sequence[AdapterLike]) -> None:
        self._adapters = scaled(adapters, self._base)

    def new_cache(self, *, adapters: Sequence[AdapterLike] | None = None) -> KVCache:
        """An empty cache for one sequence of up to ``n_ctx`` positions; memory is taken as it fills.

        Parameters
        ----------
        adapters
            What the sequence is computed with: adapters, or ``(adapter, scale)``; the default is :attr:`adapters`.
        """
        return self._caches.new(self._chosen(adapters))

    def load_cache(self, path: str | os.PathLike[str], *, adapters: Sequence[AdapterLike] | None = None) -> KVCache:
        """A cache that ``cache.save`` wrote: the same bits, if it is this model's, with these adapters.

        Raises
        ------
        CacheFileError
            The file is of another model, of other settings or adapters of it or of another version of the arithmetic,
            holds more than ``n_ctx`` positions, is no such file, or is damaged.
        """
        return self._caches.load(Path(path), self._chosen(adapters))

    def open_cache(self, path: str | os.PathLike[str], *, adapters: Sequence[AdapterLike] | None = None) -> MappedCache:
        """A cache that lives in a memory-mapped file, which is made if there is none: it outlives the process.

        Raises
        ------
        CacheFileError
            As for :meth:`load_cache`, or the file is open elsewhere or was left in the middle of a change.
        """
        return self._caches.open(Path(path), self._chosen(adapters))

    def _chosen(self, adapters: Sequence[AdapterLike] | None) -> tuple[Scaled, ...]:
        return self._adapters if adapters is None else scaled(adapters, self._base)

    def logits(self, ids: Sequence[int] | npt.ArrayLike, *, adapters: Sequence[AdapterLike] | None = None) -> F32:
        """Logits of every position of a text: float32 [n_tokens, n_vocab].

        Parameters
        ----------
        ids
            Token ids, at least one.
        adapters
            As for :meth:`new_cache`.

        Raises
        ------
        InvalidInputError
            An id is not in the vocabulary, or there is none.
        ContextFullError
            There are more than ``n_ctx`` ids.
        """
        self.check_makes_text()
        logits = self.forward(ids, self.new_cache(adapters=adapters), logits="all")
        assert logits is not None  # "all" always returns some
        return logits

    def forward(
        self,
        ids: Sequence[int] | npt.ArrayLike,
        cache: KVCache,
        *,
        logits: str | None = "last",
        watch: Watcher | Probe | None = None,
    ) -> F32 | None:
        """Compute new tokens of a sequence and add them to its cache.

        Parameters
        ----------
        ids
            New token ids, at least one.
        cache
            The sequence so far. After an error, Ctrl-C included, it is as it was before the call.
        logits
            ``"all"``: float32 [n_tokens, n_vocab]; ``"last"``: float32 [n_vocab]; None: nothing is returned. Encoders
            have no logits: these are the vectors of their tokens, n_embd numbers each.
        watch
            Called as ``watch(name, value)`` with every named value of the pass, of each chunk of a long prompt; or a
            probe, which says what it wants and may replace values.

        Raises
        ------
        InvalidInputError
            An id is not in the vocabulary, there is none, or the cache is another model's.
        ContextFullError
            The cache has no room for the new tokens; it is left as it was.
        GGUFError
            The mapped file was cut short or written to.
        """
        tokens, probe = self._checked_ids(ids), probe_of(watch)
        if probe is not None:
            probe.begin([len(tokens)])
        parts = []
        size = len(tokens) if self._family.is_encoder else CHUNK  # an encoder's tokens see those after them
        with cache.undone_on_error():
            for first in range(0, len(tokens), size):
                chunk = tokens[first : first + size]
                wanted = logits if logits == "all" or first + size >= len(tokens) else None
                # Room for all of the prompt is asked for at the first chunk: a text that does not fit computes nothing.
                parts.append(self._pass([chunk], [cache], wanted, probe, reserve=[len(tokens) - first]))
        if logits is None:
            return None
        return np.concatenate(parts) if logits == "all" else parts[-1][0]

    @property
    def is_encoder(self) -> bool:
        """Whether tokens see those after them, and the result is a vector for each instead of logits."""
        return self._family.is_encoder

    def check_makes_text(self) -> None:
        """Raise an UnsupportedError if the model is an encoder."""
        if self._family.is_encoder:
            raise UnsupportedError(
                f"{self.config.architecture} is an encoder: it makes no text, but embeddings "
                "(model.embed, minillama embed)"
            )

    def forward_batch(
        self,
        ids: Sequence[Sequence[int] | npt.ArrayLike],
        caches: Sequence[KVCache],
        *,
        logits: str | None = "last",
        watch: Watcher | Probe | None = None,
    ) -> list[F32] | None:
        """Compute new tokens of several sequences in one pass; the bits are those of computing each alone.

        Parameters
        ----------
        ids
            New token ids of each sequence.
        caches
            The sequences so far, all different.
        logits
            ``"all"``: a float32 [n_tokens, n_vocab] for each sequence; ``"last"``: a float32 [n_vocab] for each.
        watch
            As for :meth:`forward`; values hold the sequences one after the other.
        """
        tokens = [self._checked_ids(part) for part in ids]
        if len(tokens) != len(caches) or not tokens or len({id(cache) for cache in caches}) != len(caches):
            raise InvalidInputError(f"{len(tokens)} sequences and {len(caches)} caches: one cache of its own for each")
        n_tokens, probe = [len(part) for part in tokens], probe_of(watch)
        if probe is not None:
            probe.begin(n_tokens)
        values = self._pass(tokens, caches, logits, probe, reserve=n_tokens)
        if logits is None:
            return None
        if logits == "last":
            return list(values)
        return np.split(values, np.cumsum(n_tokens)[:-1])

    def resume(
        self,
        values: Mapping[str, F32],
        caches: Sequence[KVCache],
        n_tokens: Sequence[int],
        *,
        watch: Watcher | Probe | None = None,
    ) -> list[F32]:
        """Go on with a pass from given values instead of token ids.

        Operations that come before the values are not run, so a pass that starts at the end of layer 20 of 30 costs
        about a third. The new tokens' keys and values of earlier layers are not computed: the caches are left as they
        were.

        Parameters
        ----------
        values
            Named values of all sequences, one after the other: float32 [n_tokens, ...].
        caches
            The sequences up to the tokens that the values belong to, all different.
        n_tokens
            Tokens of each sequence.
        watch
            As for :meth:`forward`.

        Returns
        -------
        list of array
            Logits of each sequence, float32 [n_tokens, n_vocab].

        Raises
        ------
        InvalidInputError
            The values do not determine the logits; the message names what is missing.
        """
        probe, driver = probe_of(watch), self._driver
        self._check(caches)
        with driver.team.lock:
            try:
                for cache, n in zip(caches, n_tokens, strict=True):
                    cache.reserve(n)
                batch = Batch.of([np.zeros(n, np.int64) for n in n_tokens], caches, "all")
                if probe is not None:
                    probe.begin(n_tokens)
                    probe.start(batch)
                logits = Resumed(driver.kernels, driver.team, values, probe).finish(self._forward, batch)
            finally:
                for cache in caches:
                    cache.abandon()
        return np.split(logits, np.cumsum(n_tokens)[:-1])

    def deferred_pass(
        self,
        ids: Sequence[int] | npt.ArrayLike,
        cache: KVCache,
        *,
        logits: str | None = "all",
        parts: bool = False,
    ) -> tuple[Deferred, Batch]:
        """The operations that :meth:`forward` would run, none of which has been run.

        Room for the tokens is reserved in the cache, which does not count them as its own until ``cache.advance``.

        Parameters
        ----------
        ids, cache, logits
            As for :meth:`forward`.
        parts
            Whether attention's products and weights are values of their own.
        """
        tokens = self._checked_ids(ids)
        self._check([cache])
        cache.reserve(len(tokens))
        batch = Batch.of([tokens], [cache], logits)
        driver = Deferred(self._driver.kernels, parts=parts)
        self._forward(driver, batch)
        return driver, batch

    def recorded_pass(
        self, ids: Sequence[int] | npt.ArrayLike, cache: KVCache, *, logits: str | None = "last"
    ) -> tuple[RecordedPass, Batch]:
        """The plan that :meth:`forward` would run, and what to run it with; for profiles.

        Running it writes the new tokens' keys and values, but the cache does not count them as its own.

        Raises
        ------
        InvalidInputError
            As for :meth:`forward`, or the driver records no plans.
        """
        if not isinstance(self._driver, Captured):
            raise InvalidInputError("driver is 'eager', only 'captured' records plans")
        tokens = self._checked_ids(ids)
        cache.reserve(len(tokens))
        batch = Batch.of([tokens], [cache], logits)
        return self._driver.recorded(self._forward, batch), batch

    def hidden(self, ids: Sequence[Sequence[int] | npt.ArrayLike], caches: Sequence[KVCache]) -> list[F32]:
        """The vectors that the head takes (``result_norm``), or those of an encoder's tokens; the head is not computed.

        Parameters
        ----------
        ids, caches
            As for :meth:`forward_batch`.

        Returns
        -------
        list of array
            Of each sequence, float32 [n_tokens, n_embd].
        """
        tokens = [self._checked_ids(part) for part in ids]
        n_tokens = [len(part) for part in tokens]
        until = "" if self._family.is_encoder else "result_norm"
        return np.split(self._pass(tokens, caches, "all", None, n_tokens, until), np.cumsum(n_tokens)[:-1])

    def _pass(
        self,
        ids: Sequence[I64],
        caches: Sequence[KVCache],
        outputs: str | None,
        probe: Probe | None,
        reserve: Sequence[int],
        until: str = "",
    ) -> F32:
        if outputs not in ("all", "last", None):
            raise InvalidInputError(f"logits is {outputs!r}, 'all', 'last' or None is wanted")
        self._check(caches)
        with self._driver.team.lock:
            try:
                for cache, part, n_tokens in zip(caches, ids, reserve, strict=True):
                    cache.reserve(len(part), later=n_tokens - len(part))
                batch = Batch.of(ids, caches, outputs, until)
                if probe is not None:
                    probe.start(batch)
                values = self._driver.run(self._forward, batch, probe)
            except BaseException:
                for cache in caches:
                    cache.abandon()
                raise
            for cache, part in zip(caches, ids, strict=True):
                cache.advance(part, altered=probe is not None and bool(probe.changes))
            return values

    def _check(self, caches: Sequence[KVCache]) -> None:
        """The caches are this model's, and its file is still there."""
        self._file.check()
        for cache in caches:
            if cache.owner is not self._caches:
                raise InvalidInputError("the cache was made by another model; use new_cache() of this one")
            if cache.memory is not caches[0].memory:
                raise InvalidInputError("a cache that is kept in a file goes through a pass of its own")
            if self._family.is_encoder and len(cache):
                raise InvalidInputError("an encoder's text cannot be continued: its tokens see those after them")
            cache.check()
        for adapter in {adapter for cache in caches for adapter, _ in cache.adapters}:
            adapter.check()

    def _forward(self, ops: Operations, batch: Batch) -> F32:
        with ops.working_on(batch):
            try:
                return self._family.forward(ops, self._bound, self.config, batch)
            except Reached as reached:
                return reached.value

    def _checked_ids(self, ids: Sequence[int] | npt.ArrayLike) -> I64:
        tokens = np.asarray(ids)
        if tokens.ndim != 1 or not len(tokens):
            raise InvalidInputError(f"ids have shape {tokens.shape}, a sequence of at least one token id is wanted")
        if tokens.dtype.kind not in "iu":
            raise InvalidInputError(f"ids are {tokens.dtype}, whole numbers are wanted")
        numbers, n_vocab = tokens.tolist(), self.config.n_vocab
        if min(numbers) < 0 or max(numbers) >= n_vocab:
            index = next(i for i, number in enumerate(numbers) if not 0 <= number < n_vocab)
            raise InvalidInputError(f"id {numbers[index]} at index {index} is not in the vocabulary of {n_vocab}")
        return tokens.astype(np.int64)


def _context(n_ctx: int | None, trained: int, extend: bool) -> int:
    if n_ctx is None:
        return trained
    if isinstance(n_ctx, bool) or not isinstance(n_ctx, int) or n_ctx < 1:
        raise InvalidInputError(f"n_ctx is {n_ctx!r}, a whole number from 1 is wanted")
    if n_ctx > trained and not extend:
        raise InvalidInputError(
            f"n_ctx is {n_ctx}, the model was trained for {trained}: going beyond takes extend_context"
        )
    return n_ctx


def _driver(name: str | None, kernels: KernelSet, team: ThreadTeam) -> Captured | Eager:
    compiles = not numba.config.DISABLE_JIT
    if name is None:
        name = "captured" if compiles else "eager"
    if name not in DRIVERS:
        raise InvalidInputError(f"driver is {name!r}, there are {', '.join(DRIVERS)}")
    if name == "captured" and not compiles:
        raise InvalidInputError("driver 'captured' needs numba's compiler, which NUMBA_DISABLE_JIT switches off")
    return Captured(kernels, team) if name == "captured" else Eager(kernels, team)
