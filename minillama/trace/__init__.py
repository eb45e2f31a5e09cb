"""Looking inside: recording, replacing and stepping through the values of a forward pass."""

from minillama.trace import edits
from minillama.trace.comparison import Comparison, compare, layer_errors
from minillama.trace.differences import Difference, difference, kl_divergence, log_softmax
from minillama.trace.lens import Attribution, Lens, direct_logit_attribution, head_outputs, logit_lens
from minillama.trace.patching import PatchGrid, logit_difference, patch_grid
from minillama.trace.points import Point, Points
from minillama.trace.recording import Recording
from minillama.trace.stepper import Stepper
from minillama.trace.trace import Site, Trace

__all__ = [
    "Attribution",
    "Comparison",
    "Difference",
    "Lens",
    "PatchGrid",
    "Point",
    "Points",
    "Recording",
    "Site",
    "Stepper",
    "Trace",
    "compare",
    "difference",
    "direct_logit_attribution",
    "edits",
    "head_outputs",
    "kl_divergence",
    "layer_errors",
    "log_softmax",
    "logit_difference",
    "logit_lens",
    "patch_grid",
]
