"""The chain's tokens and probabilities against llama.cpp's own samplers, which need no model."""

import ctypes
import functools
import importlib.util
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from minillama.sampling import Sampler, SamplingParams

pytestmark = pytest.mark.llama_cpp

_TESTS = Path(__file__).parents[2]
_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_BIAS = np.dtype([("token", np.int32), ("bias", np.float32)])


class _TokenArray(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


@pytest.fixture(scope="module")
def elsewhere():
    """A process of its own for llama.cpp: its libraries do not live beside another ggml, which other tests load."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield process


@functools.cache
def _library():
    spec = importlib.util.spec_from_file_location("build_llama_cpp", _TESTS / "reference" / "build_llama_cpp.py")
    builds = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(builds)
    return ctypes.CDLL(str(builds.ensure("baseline") / "llama_cpp" / "lib" / "libllama.so"))


def _call(library, name, *arguments):
    function = library[name]
    function.restype = ctypes.c_void_p
    return function(*arguments)


def _chain(library, p, n_vocab):
    """Build the samplers in the order of common_sampler_init."""
    real, size = ctypes.c_float, ctypes.c_size_t
    bias = np.array(list(p.logit_bias.items()), _BIAS)
    last_n = 10**5 if p.penalty_last_n < 0 else p.penalty_last_n
    penalties = (real(p.repeat_penalty), real(p.frequency_penalty), real(p.presence_penalty))
    return [
        _call(library, "llama_sampler_init_logit_bias", n_vocab, len(bias), ctypes.c_void_p(bias.ctypes.data)),
        _call(library, "llama_sampler_init_penalties", n_vocab, last_n, *penalties),
        _call(library, "llama_sampler_init_top_k", p.top_k),
        _call(library, "llama_sampler_init_top_p", real(p.top_p), size(0)),
        _call(library, "llama_sampler_init_min_p", real(p.min_p), size(0)),
        _call(library, "llama_sampler_init_temp", real(p.temperature)),
        _call(library, "llama_sampler_init_dist", ctypes.c_uint32(1)),
    ]


def _llama_cpp(logits, history, params):
    library = _library()
    tokens = np.zeros(len(logits), _TOKEN_DATA)
    tokens["id"], tokens["logit"] = np.arange(len(logits)), logits
    array = _TokenArray(tokens.ctypes.data, len(tokens), -1, False)
    for sampler in _chain(library, params, len(logits)):
        handle = ctypes.c_void_p(sampler)
        for token in history:
            library.llama_sampler_accept(handle, int(token))
        library.llama_sampler_apply(handle, ctypes.byref(array))
        library.llama_sampler_free(handle)
    left = tokens[: array.size]
    return {int(t["id"]): float(t["p"]) for t in left if t["p"] > 0}


def _random_params(rng):
    return SamplingParams(
        temperature=rng.choice([0.0, 0.3, 0.8, 1.0, 2.0]),
        top_k=rng.choice([0, -1, 1, 5, 40, 300]),
        top_p=rng.choice([0.0, 0.3, 0.9, 0.95, 1.0]),
        min_p=rng.choice([0.0, 0.02, 0.05, 0.5, 1.0]),
        repeat_penalty=rng.choice([1.0, 1.1, 0.9]),
        frequency_penalty=rng.choice([0.0, 0.3, -0.2]),
        presence_penalty=rng.choice([0.0, 0.5]),
        penalty_last_n=rng.choice([-1, 0, 3, 64]),
        logit_bias={int(i): float(rng.choice([1.5, -2.0, -np.inf])) for i in rng.integers(0, 100, rng.integers(0, 4))},
    )


@pytest.mark.parametrize("n_vocab", [100, 3000])
def test_the_same_tokens_are_left_with_the_same_probabilities(elsewhere, n_vocab):
    rng = np.random.default_rng(n_vocab)
    for _ in range(300):
        logits = rng.normal(0, 3, n_vocab).astype(np.float32)
        history = rng.integers(0, 50, rng.integers(0, 100)).tolist()
        params = _random_params(rng)
        wanted = elsewhere.submit(_llama_cpp, logits, history, params).result()
        ids, probabilities = Sampler(params, n_vocab).distribution(logits, history)
        got = {i: p for i, p in zip(ids.tolist(), probabilities.tolist(), strict=True) if p > 0}
        # llama.cpp keeps probabilities in float32
        assert got.keys() == wanted.keys(), params
        assert got == pytest.approx(wanted, rel=1e-5, abs=1e-7), params
