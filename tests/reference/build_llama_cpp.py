"""Build llama.cpp (through llama-cpp-python) once and keep it in the user's cache folder.

Two builds matter here. ``baseline`` is the one whose bits minillama reproduces: every SIMD extension beyond x86-64's
baseline is off, so ggml's portable scalar code runs. ``native`` is llama-cpp-python's default build, the yardstick for
speed. Usage::

    python tests/reference/build_llama_cpp.py baseline     # prints the folder to put on PYTHONPATH
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs

VERSION = "0.3.36"
_OFF = ["NATIVE", "SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C", "LLAMAFILE", "CPU_REPACK", "OPENMP"]
FLAGS = {
    "baseline": " ".join(f"-DGGML_{name}=OFF" for name in _OFF),
    "native": "",
}


def build_folder(build: str) -> Path:
    """Folder that holds the wheel and the installed package of one build, keyed by version and flags."""
    key = hashlib.sha256(f"{VERSION}|{FLAGS[build]}".encode()).hexdigest()[:12]
    cache = os.environ.get("MINILLAMA_CACHE") or platformdirs.user_cache_dir("minillama")
    return Path(cache) / "llama-cpp" / f"{VERSION}-{build}-{key}"


def site_folder(build: str) -> Path:
    """Where the build is importable from, for this interpreter (numpy, which it brings, is version-specific)."""
    return build_folder(build) / f"site-py{sys.version_info.major}{sys.version_info.minor}"


def _pip(*arguments: str, env: dict[str, str] | None = None) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, stdout=sys.stderr, env=env)


def ensure(build: str) -> Path:
    """Build and install if needed; returns the folder to put on ``PYTHONPATH``."""
    folder, site = build_folder(build), site_folder(build)
    if (site / "llama_cpp").is_dir():
        return site
    folder.mkdir(parents=True, exist_ok=True)
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            env = {**os.environ, "CMAKE_ARGS": FLAGS[build], "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count())}
            requirement = f"llama-cpp-python=={VERSION}"
            _pip(
                "wheel", "--no-deps", "--no-cache-dir", "--no-binary", "llama-cpp-python",
                "-w", temporary, requirement, env=env,
            )  # fmt: skip
            for wheel in Path(temporary).glob("*.whl"):
                wheels.append(wheel.rename(folder / wheel.name))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        _pip("install", "--no-warn-conflicts", "--target", temporary + "/site", str(wheels[0]))
        Path(temporary, "site").rename(site)
    return site


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in FLAGS:
        sys.exit(f"usage: build_llama_cpp.py {'|'.join(FLAGS)}")
    print(ensure(sys.argv[1]))
