"""Comparing a model with ggml and llama.cpp: tensors, tokens, logits."""

from minillama.verify.comparison import LEVELS, compare
from minillama.verify.llama_cpp import LlamaCpp
from minillama.verify.report import Level, Report

__all__ = ["LEVELS", "Level", "LlamaCpp", "Report", "compare"]
