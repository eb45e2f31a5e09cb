"""The tables of docs/exactness.md: complete, without a difference, and what a sample measures again."""

from __future__ import annotations

import platform
import re
import sys

import pytest

from tests.reference import contracted, exactness, operations, spread
from tests.reference.document import read_table
from tests.unit.kernels import quantize_inputs

HAS_WHEELS = sys.platform == "linux" and platform.machine() == "x86_64"
BUILDS = [
    pytest.param(
        "packaged", 1, marks=pytest.mark.skipif(not HAS_WHEELS, reason="libggml-python has wheels for Linux on x86-64")
    ),
    pytest.param("baseline", 6, marks=pytest.mark.llama_cpp),
]
EQUAL = re.compile(r"(?P<equal>[\d,]+) of (?P<cases>[\d,]+)(, 0 ulp)?")


def number(figure: str) -> int:
    return int(figure.replace(",", ""))


@pytest.mark.parametrize("build", exactness.BUILDS)
def test_every_cell_is_measured_and_equal(build):
    head, rows = read_table(f"types, {build}")
    assert tuple(head) == exactness.HEAD
    assert [row[0] for row in rows] == [type_.name for type_ in exactness.TYPES]
    reasons = {"stored as it is", "ggml has none", "no search", "decode and dot only", "activations only"}
    for cell in (cell for row in rows for cell in row[1:] if cell not in reasons | {"summed in vectors"}):
        match = EQUAL.fullmatch(cell)
        assert match, cell
        assert match["equal"] == match["cases"]
        assert number(match["cases"]) >= 800  # the complete command's, not a sample's


@pytest.mark.parametrize(("build", "n_rows"), BUILDS)
@pytest.mark.parametrize("type_", exactness.TYPES, ids=lambda t: t.name)
def test_a_sample_says_what_the_table_says(type_, build, n_rows):
    (written,) = (row for row in read_table(f"types, {build}")[1] if row[0] == type_.name)
    for column, sampled, whole in zip(exactness.HEAD, exactness.cells(build, type_, n_rows), written, strict=True):
        match = EQUAL.fullmatch(sampled)
        if match is None:
            assert sampled == whole, column
        else:
            assert match["equal"] == match["cases"], f"{column}: {sampled}"
            assert number(match["cases"]) < number(EQUAL.fullmatch(whole)["cases"])


def test_every_operation_is_in_the_table_and_equal_to_the_baseline():
    head, rows = read_table("operations")
    assert tuple(head) == operations.HEAD
    assert [row[0] for row in rows] == list(dict.fromkeys(name.split(",")[0] for name in operations.OPERATIONS))
    for row in (dict(zip(head, row, strict=True)) for row in rows):
        assert number(row["equal to baseline"]) == number(row["values"]) > 0
        differs = number(row["equal to libggml-python"]) < number(row["values"])
        assert bool(row["why it differs"]) == differs, row


def test_what_contraction_changes_is_counted_for_every_search():
    head, rows = read_table("contraction")
    assert tuple(head) == contracted.HEAD
    assert [row[0] for row in rows] == [type_.name for type_ in quantize_inputs.SEARCHED]


def test_llama_cpps_own_spread_is_there():
    head, rows = read_table("spread")
    assert tuple(head) == spread.HEAD
    measured = {(row[0], row[1]) for row in rows}
    assert {model for model, _ in measured} == set(spread.MODELS)
    for row in rows:
        assert ("baseline, " in row[1]) == (row[2] == row[3]), row  # only the baseline build equals itself
