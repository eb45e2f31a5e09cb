"""Quantizing and decoding: arrays, and whole files in llama.cpp's standard mixes."""

from minillama.quantization.arrays import dequantize, quantize
from minillama.quantization.files import quantize_file

__all__ = ["dequantize", "quantize", "quantize_file"]
