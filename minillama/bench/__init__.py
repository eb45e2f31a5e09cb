"""Speed: ours and llama.cpp's in turn, beside what the machine can do."""

from minillama.bench.compare import bench
from minillama.bench.report import Bench, Machine, Spread, Test

__all__ = ["Bench", "Machine", "Spread", "Test", "bench"]
