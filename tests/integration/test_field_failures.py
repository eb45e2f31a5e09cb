"""What broke for others doing this job, in files, rotary embedding, attention and caches, and the tests of each.

Rows are those of the list "field failures", sections A (files), D (rotary embedding) and E (attention, cache, context).
``COVERED`` says where each one's test is; those that are nobody's subject elsewhere are here.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import ContextFullError
from minillama.generate import LanguageModel
from minillama.model.model import Model
from minillama.model.rotary import rotary
from tests.tiny_families import FAMILIES
from tests.tiny_models import TinyModel

TESTS = Path(__file__).parents[1]
GGUF, RUN = "unit/gguf/test_gguf", "integration/test"

COVERED: dict[int, list[str]] = {
    # A. GGUF parsing and loading
    2: [f"{GGUF}_bad_files.py::test_bad_tensors"],  # element count wraps, a million dimensions
    4: [f"{GGUF}_bad_files.py::test_declared_size_beyond_the_file"],  # giant string in a tiny file
    7: [f"{GGUF}_bad_files.py::test_bad_alignment"],  # alignment of 0
    9: [f"{GGUF}_reader.py::test_header_that_ends_on_a_multiple_of_the_alignment_gets_no_padding"],
    10: [f"{GGUF}_bad_files.py::test_bad_tensors"],  # nine dimensions
    12: [f"{GGUF}_bad_files.py::test_file_cut_inside_tensor_data", f"{RUN}_changed_files.py::test_cut_short"],
    14: [  # two tensors with one name, in a file and in two shards
        f"{GGUF}_bad_files.py::test_bad_tensors",
        f"{GGUF}_split.py::test_shards_that_do_not_belong_together",
        f"{GGUF}_writer.py::test_refused_tensor_names",
    ],
    16: [  # the other byte order
        f"{GGUF}_big_endian.py::test_a_converted_file_equals_the_original",
        f"{RUN}_file_variants.py::test_big_endian",
    ],
    17: [f"{GGUF}_bad_files.py::test_version_1", f"{RUN}_file_variants.py::test_version_2"],
    19: [f"{RUN}_model_errors.py::test_unsupported_tensor_type_names_type_and_tensor"],
    21: [  # an array where a number is expected
        f"{RUN}_file_variants.py::test_a_llama_with_layers_of_unequal_sizes",
        f"{RUN}_file_variants.py::test_arrays_of_equal_numbers_are_like_one_number",
        f"{RUN}_model_errors.py::test_wrong_metadata",
    ],
    23: [f"{RUN}_model_errors.py::test_a_file_without_vocabulary_works_on_ids"],
    24: [f"{GGUF}_split.py::test_any_shard_opens_the_model", f"{RUN}_file_variants.py::test_split"],
    27: [f"{GGUF}_bad_files.py::test_shards_joined_with_cat"],
    29: [
        f"{RUN}_model_errors.py::test_missing_tensors_are_all_named",
        f"{RUN}_model_errors.py::test_extra_tensors_are_a_warning_that_names_them",
    ],
    31: [f"{GGUF}_writer.py::test_list_of_bytes_is_an_array_of_strings"],
    # D. Rotary embedding
    66: ["unit/kernels/test_rope.py::test_frequency_factors_of_llama_3", "reference/test_families.py::test_live"],
    67: ["unit/kernels/test_rope.py::test_permuted_projections_use_their_own_head_count"],
    70: ["unit/kernels/test_rope.py::test_the_attention_factor_is_honoured"],
    71: [f"{RUN}_field_failures.py::test_linear_scaling_has_no_ramp"],
    # E. Attention, KV cache, context
    73: [
        "unit/kernels/test_attention.py::test_query_heads_share_kv_heads_in_order",
        f"{RUN}_model_bits.py::test_order_of_kv_heads_matters",
    ],
    75: [f"{RUN}_field_failures.py::test_a_window_reached_token_by_token"],
    78: [f"{RUN}_field_failures.py::test_a_prompt_near_the_limit_ends"],
    79: [
        f"{RUN}_field_failures.py::test_a_prompt_longer_than_the_context_names_both_numbers",
        f"{RUN}_kv_cache.py::test_a_prompt_longer_than_the_context_computes_nothing",
    ],
    81: [f"{RUN}_generate.py::test_the_same_prompt_twice_gives_the_same"],
}


@pytest.mark.parametrize("row", COVERED)
def test_every_row_has_a_test(row: int) -> None:
    for place in COVERED[row]:
        file, _, name = place.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, place


def tiny(folder: Path, n_ctx: int) -> LanguageModel:
    return LanguageModel(gguf.open(TinyModel(n_layer=1, n_ctx=n_ctx).write(folder / "tiny.gguf")))


@pytest.mark.parametrize(
    "scaling", [{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope.scale_linear": 4.0}]
)
def test_linear_scaling_has_no_ramp(tmp_path: Path, scaling: dict[str, object]) -> None:
    path = replace(FAMILIES["llama-linear"], metadata=scaling).write(tmp_path / "tiny.gguf", "f16")
    config = Model(gguf.open(path)).config
    angles = rotary(config, np.ones(config.n_rot // 2, np.float32))
    assert (config.rope_freq_scale, angles.freq_scale, angles.yarn) == (0.25, 0.25, None)


def test_a_window_reached_token_by_token(tmp_path: Path) -> None:
    """A window of 8, and tokens before it is full, when it is, and after."""
    family = replace(FAMILIES["gemma2"], metadata={**FAMILIES["gemma2"].metadata, "attention.sliding_window": 8})
    model = Model(gguf.open(family.write(tmp_path / "tiny.gguf", "f16")))
    ids = np.random.default_rng(4).integers(0, 256, 20)
    expected, cache = model.logits(ids), model.new_cache()
    model.forward(ids[:6], cache, logits=None)
    for i in range(6, 20):
        np.testing.assert_array_equal(model.forward(ids[i : i + 1], cache), expected[i], f"token {i}")


def test_a_prompt_near_the_limit_ends(tmp_path: Path) -> None:
    result = tiny(tmp_path, 16).generate(list(range(15)), max_tokens=10, ignore_eos=True)
    assert result.finish_reason == "context"
    assert len(result.tokens) <= 2


def test_a_prompt_longer_than_the_context_names_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(ContextFullError, match=r"9 more asked for, the context is 8 \(n_ctx\)"):
        tiny(tmp_path, 8).generate(list(range(9)))
