"""The bytes of a file on disk: mapped, with a watch on the file, or read into memory."""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path

from minillama.errors import GGUFError


class Storage:
    """A file's bytes.

    Parameters
    ----------
    path
        The file.
    use_mmap
        Map the file, or read it into memory that begins at a page too.

    Attributes
    ----------
    data
        The bytes, read-only.
    """

    def __init__(self, path: Path, use_mmap: bool) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._memory: mmap.mmap | None = None
        with path.open("rb") as file:
            self._state = _state(file.fileno())
            size, _ = self._state
            if size == 0:
                raise GGUFError("the file is empty", path=str(path))
            if use_mmap:
                self.data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                # Of the very file that is mapped, whatever gets its name later.
                self._descriptor = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._descriptor)
                return
            self._memory = mmap.mmap(-1, size)
            found = file.readinto(self._memory)
        if found < size:
            raise GGUFError(f"the file shrank while it was read: {size} bytes wanted, {found} found", path=str(path))
        self.data = memoryview(self._memory).toreadonly()

    def writable(self) -> memoryview:
        """The bytes as memory of our own, which ``data`` shows from now on."""
        if self._memory is None:
            self._memory = mmap.mmap(-1, len(self.data))
            self._memory[:] = self.data
            self.data, self._descriptor = memoryview(self._memory).toreadonly(), None
        return memoryview(self._memory)

    def check(self) -> None:
        """Raise if the mapped file is no longer what it was: touching a page that was cut off would end the process.

        Raises
        ------
        GGUFError
            The file was cut short, written to, or is no longer reachable. A file that was replaced by another of its
            name is still there for those who have it mapped, and is no error.
        """
        if self._descriptor is None:
            return
        try:
            state = _state(self._descriptor)
        except OSError as error:
            raise GGUFError(f"the file is no longer reachable: {error.strerror}", path=str(self._path)) from None
        if state != self._state:
            was, now = self._state[0], state[0]
            found = f"it had {was} bytes and has {now}" if was != now else "it was written to"
            raise GGUFError(f"the file changed while it was mapped: {found}; load it again", path=str(self._path))


def _state(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns
