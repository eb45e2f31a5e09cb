"""GGUF files: reading and writing them. Knows nothing about models."""

from minillama.gguf.constants import BLOCK_SIZE, TYPE_SIZE, GGMLType, ValueType
from minillama.gguf.metadata import metadata_value
from minillama.gguf.reader import GGUFFile, open
from minillama.gguf.strings import StringArray
from minillama.gguf.tensors import TensorInfo
from minillama.gguf.writer import Writer

__all__ = [
    "BLOCK_SIZE",
    "TYPE_SIZE",
    "GGMLType",
    "GGUFFile",
    "StringArray",
    "TensorInfo",
    "ValueType",
    "Writer",
    "metadata_value",
    "open",
]
