"""Cutting text at stop strings, whatever way they are spread over tokens."""

from __future__ import annotations

from collections.abc import Sequence

from minillama.errors import InvalidInputError


class StopStrings:
    """Passes text on as soon as it cannot be the beginning of a stop string any more.

    Parameters
    ----------
    stops
        The strings; the earliest occurrence of any of them ends the text, and is not part of it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or any(not isinstance(stop, str) or not stop for stop in stops):
            raise InvalidInputError(f"stop is {stops!r}, a list of non-empty strings is wanted")
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Text that is certain now. After a stop string was found, ``found`` is set and nothing more comes."""
        if self.found:
            return ""
        self._held += text
        places = [self._held.find(stop) for stop in self._stops]
        if any(place >= 0 for place in places):
            self.found = True
            certain, self._held = self._held[: min(place for place in places if place >= 0)], ""
            return certain
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return certain

    def flush(self) -> str:
        """Text that was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins the stop string."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:length]):
                return length
        return 0
