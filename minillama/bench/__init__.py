"""Speed: ours and llama.cpp's in turn, beside what the machine can do."""

from minillama.bench.compare import bench
from minillama.bench.report import Bench, Machine, Measurement, Spread

__all__ = ["Bench", "Machine", "Measurement", "Spread", "bench"]
