"""Which file a pattern means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillama.errors import HubError
from minillama.hub.candidates import select

QUANTS = ["Q2_K", "Q4_0", "Q4_0_4_4", "Q4_K_S", "Q4_K_M", "Q4_K", "Q6_K", "Q8_0", "IQ4_XS", "IQ4_NL", "F16", "BF16"]
FILES = [f"model-{quant}.gguf" for quant in QUANTS] + ["README.md", "config.json"]
OTHERS = [
    "Big.Q5_K_M.gguf",
    "big_q3_k_l_imatrix.gguf",
    "UD-Q4_K_XL/big-UD-Q4_K_XL-00001-of-00002.gguf",
    "UD-Q4_K_XL/big-UD-Q4_K_XL-00002-of-00002.gguf",
    "big-MXFP4.GGUF",
    "mmproj-Q8_0.gguf",
    "imatrix.gguf",
]


@pytest.mark.parametrize("quant", QUANTS)
def test_a_quant_is_found_as_a_whole(quant: str) -> None:
    assert select(FILES, quant) == select(FILES, quant.lower()) == [f"model-{quant}.gguf"]


@pytest.mark.parametrize(
    ("pattern", "first"),
    [
        ("q5_k_m", "Big.Q5_K_M.gguf"),
        ("Q3_K_L", "big_q3_k_l_imatrix.gguf"),
        ("UD-Q4_K_XL", "UD-Q4_K_XL/big-UD-Q4_K_XL-00001-of-00002.gguf"),
        ("q4_k_xl", "UD-Q4_K_XL/big-UD-Q4_K_XL-00001-of-00002.gguf"),
        ("big-UD-Q4_K_XL-00002-of-00002.gguf", "UD-Q4_K_XL/big-UD-Q4_K_XL-00001-of-00002.gguf"),
        ("mxfp4", "big-MXFP4.GGUF"),
        ("*Q5*", "Big.Q5_K_M.gguf"),
        ("UD-*/*", "UD-Q4_K_XL/big-UD-Q4_K_XL-00001-of-00002.gguf"),
        ("mmproj-Q8_0.gguf", "mmproj-Q8_0.gguf"),
        ("mmproj*", "mmproj-Q8_0.gguf"),
    ],
)
def test_names_globs_and_quants(pattern: str, first: str) -> None:
    assert select(OTHERS, pattern)[0] == first


def test_a_split_set_is_one_model_in_order() -> None:
    names = [f"m-{number:05}-of-00012.gguf" for number in range(1, 13)]
    assert select(reversed(names), None) == names


def test_a_split_set_with_gaps_is_refused() -> None:
    with pytest.raises(HubError, match=r"m-00001-of-00003\.gguf is part of a split set that lacks part 2 of 3"):
        select(["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"], None)


def test_the_only_model_needs_no_pattern() -> None:
    assert select(["README.md", "m-Q8_0.gguf", "mmproj-F16.gguf", "imatrix.gguf"], None) == ["m-Q8_0.gguf"]


@pytest.mark.parametrize(
    ("names", "pattern", "message"),
    [
        (["a.bin"], None, r"^it has no \.gguf file$"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], "q4_0", r"^2 models match 'q4_0', wanted one of: a-Q4_0\.gguf, b-Q4_0\.gguf$"),
        (["a-Q4_0.gguf", "a-Q8_0.gguf"], None, r"^2 models match a GGUF file, wanted one of: a-Q4_0\.gguf, a-Q8_0"),
        (["a-Q4_K_M.gguf"], "Q4_K", r"^no model matches 'Q4_K'; there are: a-Q4_K_M\.gguf$"),
        (["a-IQ4_XS.gguf"], "Q4_XS", "^no model matches"),
        (["x/a.gguf", "y/a.gguf"], "a.gguf", r"^2 models match 'a\.gguf', wanted one of: x/a\.gguf, y/a\.gguf$"),
    ],
)
def test_none_or_several_are_listed(names: list[str], pattern: str | None, message: str) -> None:
    with pytest.raises(HubError, match=message):
        select(names, pattern)


NAMES = st.text("aA0._-[]*+(/", min_size=1, max_size=8).map(lambda stem: f"{stem}.gguf")


@given(st.lists(NAMES, min_size=1, max_size=6, unique=True), st.data())
def test_an_exact_name_always_means_itself(names: list[str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(names))
    assert select(names, name) == [name]


def test_a_whole_path_goes_before_a_file_name() -> None:
    assert select(["a.gguf", "y/a.gguf"], "a.gguf") == ["a.gguf"]
    assert select(["a.gguf", "y/a.gguf"], "y/a.gguf") == ["y/a.gguf"]
