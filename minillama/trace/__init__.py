"""Looking inside: recording, replacing and stepping through the values of a forward pass."""

from minillama.trace import edits
from minillama.trace.points import Point, Points
from minillama.trace.recording import Recording
from minillama.trace.stepper import Stepper
from minillama.trace.trace import Site, Trace

__all__ = ["Point", "Points", "Recording", "Site", "Stepper", "Trace", "edits"]
