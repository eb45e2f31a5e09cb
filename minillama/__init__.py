"""GGUF inference in pure Python, bit-equal to llama.cpp's portable build."""

__version__ = "0.1.0"
