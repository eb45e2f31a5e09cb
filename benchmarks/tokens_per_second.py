"""minillama against llama.cpp on this machine: prompt and decoding rates, in turn, medians and ratios.

    python -m benchmarks.tokens_per_second [--models smollm2-135m ...] [--build native] [--rounds 3]

Same file, same threads, same token counts; each side runs in a process of its own, one after the other (A B A B).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import minillama.verify
from minillama.hub import pull
from tests.reference.build_llama_cpp import site_folder

N_PROMPT, N_PREDICT = 256, 64

OURS = """
import json, resource, sys, time
import minillama as ml
path, threads, n_prompt, n_predict = json.loads(sys.argv[1])
start = time.perf_counter()
model = ml.load(path, threads=threads)
loaded = time.perf_counter() - start
model.forward([1] * 8, model.new_cache())
cache = model.new_cache()
start = time.perf_counter()
model.forward([(i * 7) % 1000 for i in range(n_prompt)], cache)
prompt = time.perf_counter() - start
start = time.perf_counter()
for i in range(n_predict):
    model.forward([i], cache)
predict = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([n_prompt / prompt, n_predict / predict, loaded, peak]))
"""

THEIRS = """
import json, runpy, sys, time
Session = runpy.run_path(sys.argv[2])["Session"]
path, threads, n_prompt, n_predict = json.loads(sys.argv[1])
start = time.perf_counter()
request = {"model": path, "ubatch": 512, "threads": threads, "kv_type": "f16", "flash_attention": -1}
session = Session(request, 1024, None)
loaded = time.perf_counter() - start
session.decode([1] * 8, 0, wanted="last")
session.clear()
start = time.perf_counter()
session.decode([(i * 7) % 1000 for i in range(n_prompt)], 0, wanted="last")
prompt = time.perf_counter() - start
start = time.perf_counter()
for i in range(n_predict):
    session.decode([i], n_prompt + i, wanted="last")
predict = time.perf_counter() - start
print(json.dumps([n_prompt / prompt, n_predict / predict, loaded, 0]))
"""


def run(code: str, arguments: list[str], pythonpath: str | None = None) -> list[float]:
    """Rates of one run in a process of its own."""
    env = None if pythonpath is None else {"PYTHONPATH": pythonpath, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
    parser.add_argument("--build", default="native", choices=["native", "baseline"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    worker = str(Path(minillama.verify.__file__).with_name("worker.py"))
    site = str(site_folder(options.build))
    print(f"{options.threads} threads, {N_PROMPT} prompt tokens, {N_PREDICT} decoded, llama.cpp {options.build}")
    print(f"{'model':20} {'prompt t/s':>22} {'ratio':>6} {'decode t/s':>22} {'ratio':>6} {'load s':>7} {'peak MB':>8}")
    for name in options.models:
        request = json.dumps([str(pull(name)), options.threads, N_PROMPT, N_PREDICT])
        ours, theirs = [], []
        for _ in range(options.rounds):
            ours.append(run(OURS, [request]))
            theirs.append(run(THEIRS, [request, worker], site))
        a = [statistics.median(column) for column in zip(*ours, strict=True)]
        b = [statistics.median(column) for column in zip(*theirs, strict=True)]
        print(
            f"{name:20} {a[0]:9.1f} against {b[0]:6.1f} {a[0] / b[0]:6.2f} {a[1]:9.1f} against {b[1]:6.1f} "
            f"{a[1] / b[1]:6.2f} {a[2]:7.2f} {a[3]:8.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
