"""GGUF inference in pure Python."""
