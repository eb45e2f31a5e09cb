"""Logits to the next token: filters, penalties, the draw, and log probabilities."""

from minillama.sampling.logprobs import TokenLogprobs, logprobs
from minillama.sampling.params import SamplingParams
from minillama.sampling.sampler import Distribution, Processor, Sampler

__all__ = ["Distribution", "Processor", "Sampler", "SamplingParams", "TokenLogprobs", "logprobs"]
