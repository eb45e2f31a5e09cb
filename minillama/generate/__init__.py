"""From text to text: loading a model, and the generation loop."""

from minillama.generate.conversation import Conversation
from minillama.generate.language_model import LanguageModel, load
from minillama.generate.prompt_cache import PromptCache
from minillama.generate.result import Generation, Piece, Timings
from minillama.generate.warmup import compile_kernels

__all__ = ["Conversation", "Generation", "LanguageModel", "Piece", "PromptCache", "Timings", "compile_kernels", "load"]
