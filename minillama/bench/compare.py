"""Ours and llama.cpp in turn: the same tokens, one side's run after the other's, round after round."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from minillama.bench.machine import multiply_add_rate, read_bandwidth
from minillama.bench.profiling import Profile, profile
from minillama.bench.report import Bench, Machine, Measurement, Process, Spread
from minillama.bench.side import FIRST_IDS, THEIR_KV_TYPE, Side, our_side, their_side
from minillama.bench.work import Work
from minillama.errors import InvalidInputError
from minillama.generate import compile_kernels, load
from minillama.gguf import open as open_gguf
from minillama.hub import resolve
from minillama.kernels.tiers import current_tier
from minillama.model.config import read_config
from minillama.model.model import CHUNK
from minillama.runtime.kv_format import bytes_per_value, kv_types
from minillama.runtime.processors import usable_processors
from minillama.verify import LlamaCpp

Progress = Callable[[int, int, str], None]


def bench(
    model: str | os.PathLike[str] = "smollm2-135m",
    *,
    prompts: Sequence[int] = (256,),
    n_decode: int = 64,
    depths: Sequence[int] | None = None,
    threads: int | None = None,
    rounds: int = 5,
    kv_type: str = "f32",
    llama_cpp: LlamaCpp | None = None,
    profiled: bool = False,
    progress: Progress | None = None,
) -> Bench:
    """Measure a model, and llama.cpp with the same file beside it.

    Parameters
    ----------
    model
        As for :func:`minillama.load`.
    prompts
        Lengths of prompts; the logits of the last token are computed.
    n_decode
        Tokens to decode one by one.
    depths
        Positions after which they are decoded; by default the prompts' lengths.
    threads
        Threads of either side; the default is the processors this process may use.
    rounds
        Runs of each side of which the median counts.
    kv_type
        How we store keys and values; llama.cpp stores them as f16, its default.
    llama_cpp
        Which llama.cpp to compare with; None: none.
    profiled
        Also tell where our time goes.
    progress
        Called as ``progress(done, total, what)``.

    Raises
    ------
    InvalidInputError
        A number is not positive, or more positions are asked for than the model was trained for.
    """
    report = progress or (lambda _done, _total, _what: None)
    threads = usable_processors() if threads is None else threads
    depths = tuple(prompts if depths is None else depths)
    _check(prompts=prompts, n_decode=(n_decode,), threads=(threads,), rounds=(rounds,))
    if any(depth < 0 for depth in depths):
        raise InvalidInputError(f"depths is {min(depths)}, whole numbers from 0 are wanted")
    path = resolve(model).resolve()
    with open_gguf(path) as file:
        work, config = Work.of(file), read_config(file)
    n_ctx = max(*prompts, *(depth + n_decode for depth in depths), len(FIRST_IDS))
    if n_ctx > config.n_ctx_train:
        raise InvalidInputError(f"{n_ctx} positions asked for, {config.name} was trained for {config.n_ctx_train}")
    kv_types(kv_type)

    report(0, 1, "kernels")
    compile_kernels(path, kv_types=(kv_type,))  # else our side would compile them, and its start would be no warm one
    report(0, 1, "the machine")
    machine = Machine(read_bandwidth(threads), multiply_add_rate(threads), current_tier().name)
    report(0, 1, "loading")
    request = {"model": str(path), "threads": threads, "n_ctx": n_ctx}
    with ExitStack() as stack:
        sides = [stack.enter_context(our_side({**request, "kv_type": kv_type}))]
        if llama_cpp is not None:
            sides.append(stack.enter_context(their_side(llama_cpp, request)))
        ids = [(7 * i) % min(config.n_vocab, 1000) for i in range(n_ctx)]
        plans = [("prompt", n, 0) for n in prompts] + [("decode", n_decode, depth) for depth in depths]
        tests = _measure(sides, sorted(plans, key=_after_prompt), ids, rounds, report)
        processes = [_process(side, n_ctx, sides[0], kv_type) for side in sides]
    return Bench(
        model=str(model), n_threads=threads, rounds=rounds, kv_type=kv_type,
        llama_cpp=None if llama_cpp is None else f"llama-cpp-python {llama_cpp.version}",
        machine=machine,
        tests=[_test(plan, rates, work, machine) for plan, rates in tests.items()],
        ours=processes[0], theirs=processes[1] if llama_cpp is not None else None,
        profiles=_profiles(path, prompts, depths, threads, kv_type) if profiled else [],
    )  # fmt: skip


_Plan = tuple[str, int, int]


def _after_prompt(plan: _Plan) -> tuple[int, bool]:
    """Decoding comes after the prompt that leaves the cache as long as is wanted."""
    kind, n, at = plan
    return at if kind == "decode" else n, kind == "decode"


def _measure(
    sides: Sequence[Side], plans: Sequence[_Plan], ids: Sequence[int], rounds: int, report: Progress
) -> dict[_Plan, list[list[float]]]:
    """Rates of every plan and side; a first run of everything (of long prompts a chunk) does not count."""
    rates: dict[_Plan, list[list[float]]] = {plan: [[] for _ in sides] for plan in plans}
    for plan in plans:
        kind, n, at = plan
        for done in range(-1, rounds):
            for side, collected in zip(sides, rates[plan], strict=True):
                what = f"{kind} of {n} tokens" + (f" after {at}" if at else "")
                report(max(done, 0), rounds, f"{side.name}, {what}")
                n_now = n if done >= 0 else min(n, CHUNK if kind == "prompt" else 1)
                seconds = side.prompt(ids[:n_now]) if kind == "prompt" else side.decode(ids[:n_now], at)
                if done >= 0:
                    collected.append(n / seconds)
    return rates


def _test(plan: _Plan, rates: Sequence[Sequence[float]], work: Work, machine: Machine) -> Measurement:
    kind, n, at = plan
    ours, theirs = Spread.of(rates[0]), Spread.of(rates[1]) if len(rates) > 1 else None
    if kind == "prompt":
        of_machine = ours.median / n * work.of_prompt(n) / machine.multiply_adds
    else:
        of_machine = ours.median * work.bytes_per_token / machine.bytes_read
    return Measurement(kind, n, at, ours, theirs, of_machine)


def _process(side: Side, n_ctx: int, ours: Side, kv_type: str) -> Process:
    memory = side.memory()
    assert ours.cache_bytes_per_position is not None  # our worker always tells
    cache = n_ctx * ours.cache_bytes_per_position
    if side is not ours:
        cache = int(cache * bytes_per_value(THEIR_KV_TYPE) / bytes_per_value(kv_type))
    return Process(
        load_seconds=side.load_seconds,
        first_token_seconds=side.first_token_seconds,
        private_bytes=None if memory is None else max(0, memory.private - cache),
        peak_bytes=None if memory is None else memory.peak,
    )


def _profiles(path: Path, prompts: Sequence[int], depths: Sequence[int], threads: int, kv_type: str) -> list[Profile]:
    model = load(path, threads=threads, kv_type=kv_type)
    return [*(profile(model, n, 0) for n in prompts), *(profile(model, 1, depth) for depth in depths)]


def _check(**numbers: Sequence[int]) -> None:
    for name, values in numbers.items():
        wrong = [value for value in values if value < 1]
        if wrong or not values:
            raise InvalidInputError(f"{name} is {wrong[0] if wrong else 'empty'}, whole numbers from 1 are wanted")
