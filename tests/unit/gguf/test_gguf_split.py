"""Models split over several files."""

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf_bytes import F32, UINT16, entry, gguf, pair, save, u32

import minillama.gguf as ours
from minillama.errors import GGUFError


def shard(no: int, count: int, names: str, total: int | None = 3, extra: bytes | None = None) -> bytes:
    """A shard whose tensors are the letters of ``names``, each filled with its number in the alphabet."""
    pairs = [pair("split.no", UINT16, struct.pack("<H", no)), pair("split.count", UINT16, struct.pack("<H", count))]
    if total is not None:
        pairs.append(u32("split.tensors.count", total))
    if extra is not None:
        pairs.append(extra)
    entries = [entry(name, [8], F32, 32 * i) for i, name in enumerate(names)]
    return gguf(pairs, entries, b"".join(np.full(8, ord(name) - 96, np.float32).tobytes() for name in names))


def save_shards(folder: Path, *contents: bytes) -> list[Path]:
    names = [f"model-{i + 1:05d}-of-{len(contents):05d}.gguf" for i in range(len(contents))]
    return [save(folder, content, name) for content, name in zip(contents, names, strict=True)]


@pytest.mark.parametrize("opened", [0, 1, 2])
@pytest.mark.parametrize("use_mmap", [True, False])
def test_any_shard_opens_the_model(tmp_path, opened, use_mmap):
    paths = save_shards(
        tmp_path,
        shard(0, 3, "a", extra=u32("only.first", 1)),
        shard(1, 3, "b", extra=u32("later", 1)),
        shard(2, 3, "c"),
    )
    with ours.open(paths[opened], use_mmap=use_mmap) as file:
        assert list(file.tensors) == ["a", "b", "c"]
        assert [tensor.path for tensor in file.tensors.values()] == paths
        assert [tensor.data.view(np.float32)[0, 0] for tensor in file.tensors.values()] == [1, 2, 3]
        assert (file.path, file.paths) == (paths[0], tuple(paths))
        assert "only.first" in file.metadata
        assert "later" not in file.metadata


def test_first_shard_without_tensors(tmp_path):
    paths = save_shards(tmp_path, shard(0, 2, ""), shard(1, 2, "abc"))
    with ours.open(paths[0]) as file:
        assert list(file.tensors) == ["a", "b", "c"]


def test_split_count_of_one_is_a_whole_model(tmp_path):
    with ours.open(save(tmp_path, shard(0, 1, "a"))) as file:
        assert list(file.tensors) == ["a"]


def test_missing_shards_are_named(tmp_path):
    paths = save_shards(tmp_path, shard(0, 3, "a"), shard(1, 3, "b"), shard(2, 3, "c"))
    paths[1].unlink()
    with pytest.raises(GGUFError, match=r"1 of the 3 shards .* missing beside it: model-00002-of-00003\.gguf$"):
        ours.open(paths[2])


def test_renamed_shard(tmp_path):
    for name in ("other.gguf", "model-00002-of-00003.gguf", "model-1-of-3.gguf"):
        with pytest.raises(GGUFError, match=r"this is shard 1 of 3, whose name must end in -00001-of-00003\.gguf"):
            ours.open(save(tmp_path, shard(0, 3, "a"), name))


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (shard(1, 2, "a", 2), r"00002-of-00002\.gguf: tensor 'a' is in shard model-00001-of-00002\.gguf too"),
        (shard(0, 2, "b", 2), r"00002-of-00002\.gguf: key 'split\.no': 0 found, 1 wanted by the file's name"),
        (shard(1, 3, "b", 2), r"00002-of-00002\.gguf: key 'split\.count': 3 found, 2 wanted"),
        (gguf([], [entry("b", [8], F32, 0)], bytes(32)), r"00002-of-00002\.gguf: key 'split\.no' is missing"),
        (shard(1, 2, "bc", 2), r"key 'split\.tensors\.count': 2 tensors declared, 3 found in all 2 shards"),
        (shard(1, 2, "b", 3), r"00002-of-00002\.gguf: .*count': 3 found, 2 wanted as in model-.*another model's shard"),
        (shard(1, 2, "b", 2)[:-1], r"00002-of-00002\.gguf: tensor 'b': the file is incomplete"),
    ],
)
def test_shards_that_do_not_belong_together(tmp_path, second, expected):
    paths = save_shards(tmp_path, shard(0, 2, "a", 2), second)
    with pytest.raises(GGUFError, match=expected):
        ours.open(paths[0])


def test_total_is_required_of_the_first_shard_only(tmp_path):
    paths = save_shards(tmp_path, shard(0, 2, "a", 2), shard(1, 2, "b", None))
    ours.open(paths[0]).close()
    paths = save_shards(tmp_path, shard(0, 2, "a", None), shard(1, 2, "b", 2))
    with pytest.raises(GGUFError, match=r"00001-of-00002\.gguf: key 'split\.tensors\.count' is missing"):
        ours.open(paths[1])


@pytest.mark.parametrize(("no", "count"), [(0, 2**32 - 1), (0, 70000), (5, 3), (3, 3)])
def test_absurd_numbers(tmp_path, no, count):
    content = gguf([u32("split.no", no), u32("split.count", count)])
    with pytest.raises(
        GGUFError, match=rf"shard {no} of {count} found, numbers 0 to count - 1 and a count up to 65535"
    ):
        ours.open(save(tmp_path, content, f"m-{no + 1:05d}-of-{count:05d}.gguf"))
