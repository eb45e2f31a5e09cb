"""Where compiled kernels are kept, when they are thrown away, and the numeric policy they are compiled under."""

import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import minillama
from minillama.kernels.registry import BACKENDS, kernel_set

PACKAGE = Path(minillama.__file__).parent
SOURCES = sorted((PACKAGE / "kernels").rglob("*.py"))

QUANTIZE = """
import logging
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
import numpy as np
from minillama.kernels.registry import kernel_set
from minillama.gguf.constants import GGMLType
x, out = np.full((1, 32), 0.7, np.float32), np.zeros((1, 34), np.uint8)
x[0, 0] = 127
kernel_set("reference").quantize[GGMLType.Q8_0](x, out, 0, 1)
print(out.tobytes().hex())
"""
ROUNDED_UP = "00 3c 7f" + "01" * 31  # scale 1; 127, and every 0.7 rounded to 1


def start(code, cache, package=PACKAGE, **environment):
    """Python in a process of its own, with its own folder for compiled kernels."""
    environment = {**os.environ, "MINILLAMA_CACHE": str(cache), **environment}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=package.parent,  # from where the package is imported first
    )  # fmt: skip


def finish(process):
    """What the process printed and what it logged."""
    out, log = process.communicate()
    assert process.returncode == 0, log[-3000:]
    return out.strip(), log


def run(*arguments, **environment):
    return finish(start(*arguments, **environment))


def test_compiled_kernels_survive_a_restart(tmp_path):
    first, first_log = run(QUANTIZE, tmp_path)
    second, second_log = run(QUANTIZE, tmp_path)
    assert first == second == ROUNDED_UP.replace(" ", "")
    assert "INFO compiling quantize_Q8_0" in first_log
    assert "compiling" not in second_log


def changed(package, name, old, new):
    source = package / "kernels" / name
    text = source.read_text()
    assert text.count(old) == 1
    source.write_text(text.replace(old, new))


def test_a_change_in_a_helper_file_is_seen(tmp_path):
    # Numba itself looks only at the file of the function it compiles: quantize.py, which stays as it is.
    package, cache = tmp_path / "copy" / "minillama", tmp_path / "cache"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    before, _ = run(QUANTIZE, cache, package)
    changed(package, "bits.py", ">= np.float32(0.5)", ">= np.float32(0.8)")
    after, log = run(QUANTIZE, cache, package)
    assert (before, after) == (ROUNDED_UP.replace(" ", ""), "003c7f" + "00" * 31)
    assert "INFO compiling quantize_Q8_0" in log


@pytest.mark.parametrize("name", ["bits.py", "simd/vectors.py", "layouts.py"])
def test_any_change_of_the_sources_compiles_anew(tmp_path, name):
    package, cache = tmp_path / "copy" / "minillama", tmp_path / "cache"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    folder = "from minillama.kernels.jit import cache_folder; print(cache_folder())"
    before, _ = run(folder, cache, package)
    again, _ = run(folder, cache, package)
    (package / "kernels" / name).write_text((package / "kernels" / name).read_text() + "# a change\n")
    after, _ = run(folder, cache, package)
    assert before == again != after
    assert Path(after).parent == cache / "kernels"


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path):
    # A file where the folder should be: permissions would not stop root.
    (tmp_path / "file").write_text("")
    out, log = run(QUANTIZE, tmp_path / "file")
    assert out == ROUNDED_UP.replace(" ", "")
    assert "WARNING compiled kernels cannot be kept" in log
    assert str(tmp_path / "file") in log


def test_nothing_is_compiled_at_import(tmp_path):
    imports = """
import logging
logging.basicConfig(level=logging.INFO)
from minillama.kernels.registry import BACKENDS, kernel_set
for name in BACKENDS:
    kernel_set(name)
"""
    _, log = run(imports, tmp_path)
    assert "compiling" not in log
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_two_processes_may_start_at_once(tmp_path):
    both = [start(QUANTIZE, tmp_path) for _ in range(2)]
    assert [finish(process)[0] for process in both] == [ROUNDED_UP.replace(" ", "")] * 2
    _, log = run(QUANTIZE, tmp_path)
    assert "compiling" not in log


def test_without_jit_kernels_are_plain_functions(tmp_path):
    code = "from minillama.kernels import bits; print(type(bits.load_u16).__name__)"
    assert run(code, tmp_path, NUMBA_DISABLE_JIT="1")[0] == "function"
    assert not any(tmp_path.iterdir())


def kernels_of(backend):
    for value in vars(kernel_set(backend)).values():
        yield from value.values() if hasattr(value, "values") else [value]


def test_no_two_kernels_share_a_name():
    # The cache tells kernels apart by module and name only; those that a factory makes would otherwise be mixed up.
    kernels = {id(k): k for backend in BACKENDS for k in kernels_of(backend) if hasattr(k, "py_func")}
    names = [(k.py_func.__module__, k.py_func.__qualname__) for k in kernels.values()]
    assert len(set(names)) == len(names) > 40


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.relative_to(PACKAGE / "kernels").as_posix())
def test_no_source_relaxes_the_arithmetic(source):
    forbidden_names = {"prange", "njit", "vectorize", "guvectorize"}
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.keyword):
            assert node.arg not in ("fastmath", "parallel", "flags"), f"line {node.value.lineno}"
        name = getattr(node, "attr", getattr(node, "id", getattr(node, "name", None)))
        if source.name != "jit.py":  # the one place that calls numba.njit
            assert name not in forbidden_names, f"line {node.lineno}"


COMPILED_CODE = """
import numpy as np
from minillama.kernels.registry import kernel_set
from minillama.gguf.constants import GGMLType
kernels = kernel_set("cpu")
x = np.ones((2, 256), np.float32)
kernels.rms_norm(x, x[0], np.float32(0), x.copy(), 0, 2)
packed = np.zeros((2, kernels.activation_bytes(GGMLType.Q8_K, 256)), np.uint8)
scratch = np.zeros(kernels.mul_mat_scratch(GGMLType.Q4_K, 256, 2), np.uint8)
weight = np.zeros((2, 144), np.uint8)
kernels.mul_mat[GGMLType.Q4_K](weight, packed, 256, np.zeros((2, 2), np.float32), scratch, 0, 2)
for kernel in (kernels.rms_norm, kernels.mul_mat[GGMLType.Q4_K]):
    for listing in (kernel.inspect_llvm(), kernel.inspect_asm()):
        print(*listing.values())
"""


def test_compiled_code_holds_no_contraction_and_no_reordering(tmp_path):
    listing, _ = run(COMPILED_CODE, tmp_path)
    lines = listing.splitlines()
    assert any("fmul" in line for line in lines)
    for word, relaxed in itertools.product((" fmul ", " fadd ", " fsub ", ".fadd."), ("fast", "reassoc", "contract")):
        assert not [line for line in lines if word in line and relaxed in line]
    assert not [
        line for line in lines if "fmuladd" in line or "vfmadd" in line or "vfnmadd" in line or "\tfmla" in line
    ]


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.relative_to(PACKAGE / "kernels").as_posix())
def test_kernels_that_return_arrays_count_references(source):
    # Without, the array would outlive its memory when Python calls, and be freed twice when a kernel does that counts.
    arrays = re.compile(r"\b([UIF]\d+|NDArray)\b")
    for function in ast.walk(ast.parse(source.read_text())):
        if isinstance(function, ast.FunctionDef) and function.returns is not None:
            decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
            if any(text.startswith("jit") for text in decorators) and arrays.search(ast.unparse(function.returns)):
                assert any("allocates=True" in text for text in decorators), function.name
