"""Our side of a comparison, a process of its own: it loads a model, then times runs that it is asked for.

The request is a JSON file; then runs and answers are a JSON object a line, as in ``verify/worker.py``'s ``time``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from minillama.errors import MinillamaError
from minillama.generate import LanguageModel, load
from minillama.runtime.kv_cache import KVCache


def answer(**values: Any) -> None:
    """Write a line."""
    print(json.dumps(values), flush=True)


def timed(model: LanguageModel, cache: KVCache, run: dict[str, Any]) -> float:
    """Seconds for ``ids`` after the first ``at`` positions of the cache, at once or one by one."""
    cache.truncate(run["at"])
    parts = [[token] for token in run["ids"]] if run["one_by_one"] else [run["ids"]]
    start = time.perf_counter()
    for part in parts:
        model.forward(part, cache)
    return time.perf_counter() - start


def serve(request: dict[str, Any]) -> None:
    """Load, say so, and time runs until there are no more."""
    start = time.perf_counter()
    model = load(request["model"], threads=request["threads"], kv_type=request["kv_type"])
    model.check_makes_text()
    loaded = time.perf_counter() - start
    cache = model.new_cache()
    timed(model, cache, {"ids": request["ids"], "at": 0, "one_by_one": False})
    answer(load_seconds=loaded, cache_bytes_per_position=model.new_cache().bytes_per_position)
    for line in sys.stdin:
        answer(seconds=timed(model, cache, json.loads(line)))


if __name__ == "__main__":
    try:
        serve(json.loads(Path(sys.argv[1]).read_text()))
    except MinillamaError as error:
        sys.exit(str(error))
