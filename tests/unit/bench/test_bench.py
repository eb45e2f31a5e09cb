"""Benchmarks of tiny models: what is asked of either side and in which order, what is counted, what is shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from minillama import gguf
from minillama.bench import Bench, Machine, Measurement, Spread, bench, compare
from minillama.bench.machine import multiply_add_rate, read_bandwidth
from minillama.bench.memory import memory_of
from minillama.bench.profiling import profile, rows_of
from minillama.bench.side import Side, our_side
from minillama.bench.work import Work
from minillama.cli import main
from minillama.errors import InvalidInputError, MinillamaError, MissingDependencyError
from minillama.generate import load
from minillama.gguf import GGMLType
from minillama.runtime.plan import Call
from tests.tiny_models import TinyModel

# Answers as llama.cpp's worker does; a run of n tokens takes n hundredths of a second, and is written down.
FAKE = """
import json, sys
request = json.load(open(sys.argv[1]))
print(json.dumps({"load_seconds": 0.5}), flush=True)
for line in sys.stdin:
    run = json.loads(line)
    with open(request["log"], "a") as log:
        log.write(json.dumps([len(run["ids"]), run["at"], run["one_by_one"]]) + chr(10))
    print(json.dumps({"seconds": len(run["ids"]) / 100}), flush=True)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = TinyModel(n_layer=2, matrix_type=GGMLType.Q8_0, embedding_type=GGMLType.Q8_0)
    return tiny.write(tmp_path_factory.mktemp("bench") / "tiny.gguf")


def fake_side(log: Path) -> Side:
    return Side("llama.cpp", [sys.executable, "-c", FAKE], dict(os.environ), {"log": str(log)})


def runs(log: Path) -> list[list[object]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_work_counts_what_a_token_reads(tmp_path: Path) -> None:
    n_vocab, layer = 266, 256 * 256 * 2 + 128 * 256 * 2 + 3 * 512 * 256
    for tied in (False, True):
        tiny = TinyModel(n_layer=1, tied=tied, matrix_type=GGMLType.Q8_0, embedding_type=GGMLType.F16)
        work = Work.of(gguf.open(tiny.write(tmp_path / "tiny.gguf")))
        assert (work.layers, work.head) == (layer, n_vocab * 256)
        head = n_vocab * 256 * 2 if tied else n_vocab * 256 * 34 / 32
        assert work.bytes_per_token == layer * 34 / 32 + head + 3 * 256 * 4
        assert work.of_prompt(10) == 10 * layer + n_vocab * 256


def test_of_experts_only_those_used_count(tmp_path: Path) -> None:
    path = tmp_path / "experts.gguf"
    with gguf.Writer(path, "mixture") as writer:
        writer.add("mixture.expert_count", 8)
        writer.add("mixture.expert_used_count", 2)
        writer.add_tensor("blk.0.ffn_up_exps.weight", np.ones((8, 4, 32), np.float32))
    work = Work.of(gguf.open(path))
    assert (work.bytes_per_token, work.layers, work.head) == (2 * 4 * 32 * 4, 2 * 4 * 32, 0)


def test_the_machine_is_measured() -> None:
    assert 1e8 < read_bandwidth(1, n_bytes=1 << 22) < 1e13
    assert 1e8 < multiply_add_rate(2) < 1e13


def test_a_side_reaches_a_depth_once_and_goes_back_to_it(tmp_path: Path) -> None:
    with fake_side(tmp_path / "log") as side:
        assert side.load_seconds == 0.5
        assert side.first_token_seconds > 0
        assert side.prompt(range(8)) == 0.08
        assert side.decode([1, 2], 20) == side.decode([1, 2], 20) == 0.02
    assert runs(tmp_path / "log") == [[8, 0, False], [12, 8, False], [2, 20, True], [2, 20, True]]


def test_our_side_times_what_the_model_computes(path: Path) -> None:
    request = {"model": str(path), "threads": 1, "kv_type": "f32"}
    with our_side(request) as side:
        assert side.prompt(range(8)) > 0
        assert side.decode([1, 2], 40) > 0
        assert side.cache_bytes_per_position == 2 * 2 * 2 * 64 * 4


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the memory of processes")
def test_an_idle_side_uses_no_processor(path: Path) -> None:
    with our_side({"model": str(path), "threads": 2, "kv_type": "f32"}) as side:
        side.prompt(range(64))
        time.sleep(0.1)
        used = [_processor_ticks(side) for _ in range(2) if time.sleep(0.3) is None]
        memory = side.memory()
    assert used[1] - used[0] <= 1
    assert memory is not None
    assert memory.private < memory.peak


def _processor_ticks(side: Side) -> int:
    fields = Path(f"/proc/{side._process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_memory_of_no_process_is_unknown() -> None:
    assert memory_of(2**30) is None


@pytest.mark.parametrize(("code", "message"), [("import sys; sys.exit('broken')", "broken"), ("", "exit status 0")])
def test_a_side_that_dies_says_why(code: str, message: str) -> None:
    with pytest.raises(MinillamaError, match=f"llama.cpp failed: {message}"):
        Side("llama.cpp", [sys.executable, "-c", code], dict(os.environ), {})


def test_our_errors_come_through(tmp_path: Path) -> None:
    path = TinyModel(without=("output_norm.weight",)).write(tmp_path / "bad.gguf")
    with pytest.raises(MinillamaError, match=r"minillama failed: .*output_norm.weight.* missing"):
        our_side({"model": str(path), "threads": 1, "kv_type": "f32"})


class FakeLlama:
    """An installed llama.cpp, as far as the benchmark is concerned."""

    version = "0.0"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that is known and a llama.cpp that does not compute; returns the log of its runs."""
    monkeypatch.setattr(compare, "read_bandwidth", lambda n_threads: 1e9)
    monkeypatch.setattr(compare, "multiply_add_rate", lambda n_threads: 1e12)
    monkeypatch.setattr(compare, "their_side", lambda llama, request: fake_side(tmp_path / "log"))
    return tmp_path / "log"


def test_rates_ratios_and_fractions(path: Path, quick: Path) -> None:
    said: list[str] = []
    found = bench(
        path, prompts=(16, 8), n_decode=4, threads=1, rounds=3, llama_cpp=FakeLlama(), profiled=True,
        progress=lambda done, total, what: said.append(f"{done}/{total} {what}"),
    )  # fmt: skip
    assert [(test.kind, test.n_tokens, test.at) for test in found.tests] == [
        ("prompt", 8, 0), ("decode", 4, 8), ("prompt", 16, 0), ("decode", 4, 16),
    ]  # fmt: skip
    # The first run of everything does not count, and no depth is reached by more than a prompt.
    assert runs(quick)[:8] == [[8, 0, False]] * 4 + [[1, 8, True]] + [[4, 8, True]] * 3
    work = Work.of(gguf.open(path))
    for test in found.tests:
        assert test.theirs is not None
        assert test.theirs.median == pytest.approx(100)
        assert test.ratio == test.ours.median / test.theirs.median
        if test.kind == "decode":
            assert test.of_machine == pytest.approx(test.ours.median * work.bytes_per_token / 1e9)
        else:
            assert test.of_machine == pytest.approx(
                test.ours.median * work.of_prompt(test.n_tokens) / test.n_tokens / 1e12
            )
    assert found.theirs is not None
    assert found.theirs.load_seconds == 0.5
    assert [(p.n_tokens, p.at) for p in found.profiles] == [(16, 0), (8, 0), (1, 16), (1, 8)]
    assert "2/3 llama.cpp, decode of 4 tokens after 16" in said
    turns = [line.split(",")[0] for line in said if line.startswith("1/3")]
    assert turns == ["1/3 minillama", "1/3 llama.cpp"] * 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompts": (0,)}, "prompts is 0"),
        ({"prompts": ()}, "prompts is empty"),
        ({"rounds": 0}, "rounds is 0"),
        ({"depths": (-1,)}, "depths is -1"),
        ({"n_decode": 600}, "856 positions asked for, .* was trained for 512"),
        ({"kv_type": "q5_0"}, "kv_type is 'q5_0'"),
    ],
)
def test_bad_numbers_are_refused(path: Path, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        bench(path, **wrong)


def test_profiles_group_operations_and_add_up() -> None:
    def call(name: str, work: int, n_bytes: int) -> Call:
        return Call(name, 0, (), 1, 0, work, 1, n_bytes, (0, 0, 0, 0), 1, beside=False)

    calls = [call("blk.0.q", 10, 5), call("blk.0.kqv", 7, 0), call("blk.1.q", 10, 5), call("add", 3, 0)]
    rows = {row.name: row for row in rows_of(calls, np.array([0.5, 0.25, 0.5, 4]))}
    assert list(rows) == ["add", "q", "kqv"]
    assert (rows["q"].calls, rows["q"].seconds, rows["q"].multiply_adds, rows["q"].bytes_read) == (2, 1, 20, 10)
    assert (rows["kqv"].multiply_adds, rows["kqv"].bytes_read) == (7, None)
    assert (rows["add"].multiply_adds, rows["add"].bytes_read) == (None, None)


def test_a_profile_accounts_for_all_operations(path: Path) -> None:
    model = load(path, threads=2)
    for n_tokens, at in ((9, 0), (1, 9)):
        found = profile(model, n_tokens, at)
        assert found.seconds == pytest.approx(sum(row.seconds for row in found.rows))
        assert all(row.seconds >= 0 for row in found.rows)
        (gate,) = [row for row in found.rows if row.name == "ffn_gate"]
        # The last layer goes on with the token whose logits are wanted.
        assert (gate.calls, gate.multiply_adds) == (2, (n_tokens + 1) * 512 * 256)
        assert gate.bytes_read == 2 * 512 * 256 * 34 // 32


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["bench", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_prints_a_table_that_fits(path: Path, quick: Path) -> None:
    text = run("-m", str(path), "-p", "8", "-n", "2", "--rounds", "1", "-t", "1", "--vs", "nothing", "--profile")
    assert "prompt 8 " in text
    assert "decode 2 at 8 " in text
    assert "others" in text or "result_output" in text
    assert max(map(len, text.splitlines()[1:])) <= 80
    assert not quick.exists()


def test_the_command_prints_json_of_every_model_and_thread_count(path: Path, quick: Path) -> None:
    arguments = ("-m", str(path), "-p", "8", "-n", "2", "--rounds", "1", "-t", "1,2", "--vs", "nothing", "--json")
    found = json.loads(run(*arguments))
    assert [entry["n_threads"] for entry in found] == [1, 2]
    assert found[0]["model"] == str(path)
    assert found[0]["theirs"] is found[0]["tests"][0]["ratio"] is None


def test_without_llama_cpp_ours_is_measured_and_the_way_to_the_other_told(
    path: Path, quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(site: Path | None) -> None:
        raise MissingDependencyError("llama-cpp-python is needed: pip install it")

    monkeypatch.setattr("minillama.verify.LlamaCpp", missing)
    arguments = ["bench", "-m", str(path), "-p", "8", "-n", "2", "--rounds", "1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    assert "ours alone; to compare with llama.cpp: llama-cpp-python is needed: pip install it" in result.stderr
    assert CliRunner().invoke(main, [*arguments, "--llama-cpp", "nowhere"]).exit_code == 2


def test_numbers_that_are_none_are_refused() -> None:
    result = CliRunner().invoke(main, ["bench", "-p", "8,many"])
    assert result.exit_code == 2
    assert "wanted whole numbers such as 256,2048" in result.stderr


def test_a_plot_is_drawn_or_the_way_to_it_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minillama.bench.plot import plot

    tests = [Measurement("decode", 4, at, Spread(9, 8, 10), Spread(5, 4, 6), 0.5) for at in (0, 64)]
    found = Bench("tiny", 1, 3, "f32", "llama-cpp-python 0.0", Machine(1, 1, "generic"), tests, None, None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'minillama\[plot\]'"):
        plot([found], tmp_path / "plot.png")
    monkeypatch.undo()
    assert plot([found], tmp_path / "plot.svg").read_text().count("llama-cpp-python") >= 1


def test_warmup_leaves_nothing_to_compile(tmp_path: Path) -> None:
    path = TinyModel(n_layer=1).write(tmp_path / "tiny.gguf")
    env = {**os.environ, "MINILLAMA_CACHE": str(tmp_path)}

    def minillama(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "minillama", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True)

    first = minillama("warmup", str(path), "--kv-type", "f32").stdout
    assert " kernels compiled in " in first
    assert f"kept in {tmp_path / 'kernels'}" in first
    assert "nothing to do" in minillama("warmup", str(path), "--kv-type", "f32").stdout
    assert "compiling" not in minillama("generate", "the", "-m", str(path), "-n", "3").stderr
    code = (
        "import logging, sys, minillama; logging.basicConfig(level=logging.INFO); "
        "minillama.Tokenizer.from_gguf(sys.argv[1]).encode('the ' * 10_000)"
    )
    long_text = [sys.executable, "-c", code, str(path)]
    assert "compiling" not in subprocess.run(long_text, env=env, capture_output=True, text=True, check=True).stderr


def test_kernels_are_compiled_for_the_same_machine_as_elsewhere() -> None:
    """Numba's target is made with the first kernel; kernels/jit.py must have told it the features by then."""

    def target(module: str) -> str:
        code = f"import {module}; from numba.core.registry import cpu_target as t; " + (
            "print(t.target_context.codegen().magic_tuple())"
        )
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert target("minillama.bench") == target("minillama.kernels.jit")
