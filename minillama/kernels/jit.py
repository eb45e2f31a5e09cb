"""How kernels are compiled and where the compiled code is kept.

One decorator, :func:`jit`, sets the numeric policy for every kernel: no fastmath (sums keep their order), nothing
contracted, the GIL released, and no compilation before the first call. Compiled code goes to
``<cache>/kernels/<key>/`` where the key covers the package version, a hash of *all* jitted sources, numba's version and
Python's: numba itself looks only at the file a function is defined in, and would keep a stale kernel when a helper it
imports has changed. With ``NUMBA_DISABLE_JIT=1`` kernels stay plain Python, to be stepped through in a debugger.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import platformdirs
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

import minillama
from minillama.kernels import tiers

Kernel = Callable[..., Any]

log = logging.getLogger("minillama.kernels")

if numba.config.CPU_FEATURES is None:
    numba.config.CPU_FEATURES = tiers.llvm_features()

# Folders of the package with jitted code.
_JITTED = ("kernels", "runtime")


_waiting: list[Callable[[], None]] = []


def before_compiling(call: Callable[[], None]) -> None:
    """Call a function once, when next a kernel is not found in the cache."""
    _waiting.append(call)


@functools.cache
def cache_folder() -> Path:
    """Folder for compiled kernels; a new one whenever anything that goes into them changes."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for source in sorted(source for folder in _JITTED for source in (package / folder).rglob("*.py")):
        digest.update(source.relative_to(package).as_posix().encode() + b"\0" + source.read_bytes())
    digest.update(f"{numba.__version__} {sys.version}".encode())
    base = os.environ.get("MINILLAMA_CACHE") or platformdirs.user_cache_dir("minillama")
    return Path(base) / "kernels" / f"{minillama.__version__}-{digest.hexdigest()[:16]}"


@functools.cache
def _make_writable(folder: str) -> None:
    """Make a folder and check once, not for each of several hundred kernels, that files can be written in it."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


@contextlib.contextmanager
def one_process_compiles(name: str) -> Iterator[None]:
    """Hold back other processes that come to compile the same, who then find it in the cache."""
    from filelock import FileLock  # takes a while, and most starts compile nothing

    folder = cache_folder() / "locks"
    try:
        _make_writable(str(folder))
    except OSError:
        yield  # nothing is kept, so there is nothing to wait for
        return
    with FileLock(folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.lock"):
        yield


class _Locator(_CacheLocator):
    """Tells numba's cache to use :func:`cache_folder` and to tell functions apart by module and name."""

    def __init__(self, module: str) -> None:
        self._module = module

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def ensure_cache_path(self) -> None:
        _make_writable(self.get_cache_path())

    def get_source_stamp(self) -> str:
        return ""  # the folder's name already carries the hash of all sources

    def get_disambiguator(self) -> str:
        return self._module

    @classmethod
    def from_function(cls, py_func: Kernel, _py_file: str) -> _Locator | None:
        locator = cls(py_func.__module__)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator


class _CacheImpl(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 - as numba declares it


class KernelCache(FunctionCache):
    """Numba's on-disk function cache, kept in :func:`cache_folder`."""

    _impl_class = _CacheImpl

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        # The closure of a kernel made by a factory holds other kernels, whose pickles differ in every process; the
        # kernel's own name and the source hash say everything.
        return (signature, codegen.magic_tuple())

    def holds(self, signature: Any, codegen: Any) -> bool:
        """Whether a function has been compiled for a signature."""
        return self._index_key(signature, codegen) in self._cache_file._load_index()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load a compiled kernel, or say that it is going to be compiled."""
        loaded = super().load_overload(sig, target_context)
        if loaded is None:
            while _waiting:
                _waiting.pop()()
            log.info("compiling %s", self._py_func.__qualname__)
        return loaded


def jit(
    function: Kernel | None = None,
    *,
    name: str | None = None,
    keep: bool = True,
    allocates: bool = False,
    inline: bool = False,
) -> Any:
    """Compile ``function`` with numba under the package's numeric policy.

    Parameters
    ----------
    function
        The kernel, a plain Python function over numpy arrays and scalars.
    name
        Its name in the compiled-code cache; needed for kernels made by a factory, which would share one.
    keep
        False compiles it anew in each process: for kernels outside the folders whose sources the cache looks at.
    allocates
        Whether it makes, copies (``a[:] = b``), reduces (``a.max()``) or returns arrays, and does not only slice those
        it is given. References to arrays are counted only then: an atomic addition or two for each array at each call
        takes most of the time where small functions pass arrays on in a loop, and takes time to compile. An array that
        is returned without would not keep its memory.
    inline
        Whether it becomes part of every function that calls it: for the body of a loop that LLVM finds too long for
        that. A call passes dozens of arguments, and loads vectors that do not change anew.
    """
    if function is None:
        return functools.partial(jit, name=name, keep=keep, allocates=allocates, inline=inline)
    if name is not None:
        function.__name__ = function.__qualname__ = name
    dispatcher = numba.njit(function, nogil=True, error_model="numpy", _nrt=allocates, forceinline=inline)
    if keep and dispatcher is not function:  # numba hands the function back when NUMBA_DISABLE_JIT is set
        try:
            dispatcher._cache = KernelCache(function)
        except (RuntimeError, OSError):
            log.warning("compiled kernels cannot be kept: %s is not writable", cache_folder())
    return dispatcher
