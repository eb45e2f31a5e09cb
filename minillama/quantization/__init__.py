"""Quantizing and decoding: arrays, and whole files in llama.cpp's standard mixes."""

from minillama.quantization.arrays import dequantize, quantize
from minillama.quantization.files import quantize_file
from minillama.quantization.imatrix import ImportanceMatrix, read_imatrix

__all__ = ["ImportanceMatrix", "dequantize", "quantize", "quantize_file", "read_imatrix"]
