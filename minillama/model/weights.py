"""Weights: read-only views of a file's packed blocks, usable as matrices, and bound to the names of a model."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from minillama.errors import GGUFError, InvalidInputError
from minillama.gguf import GGMLType, GGUFFile, TensorInfo
from minillama.kernels.layouts import weight_layout
from minillama.kernels.types import F32, I64, U8
from minillama.runtime.eager import Eager

# Bytes of each tensor that tell a model from others.
_SAMPLE = 4096

log = logging.getLogger("minillama.model")

T = TypeVar("T")


class Weight:
    """A packed tensor that behaves like a matrix without ever being decoded whole.

    ``x @ w.T`` multiplies on the packed blocks, exactly as the forward pass does; ``w[3:5]`` selects rows, and
    ``.dequantize()`` decodes them. ``np.asarray(w)`` decodes everything.

    Attributes
    ----------
    name
        The tensor's name in the file.
    shape
        Sizes, numpy's order: (rows, values of a row), or (values,).
    type
        Type of the blocks.
    packed
        The bytes, uint8 [rows, bytes of a row], read-only and shared with the file.
    """

    __array_ufunc__ = None  # so that ``x @ w.T`` asks us instead of numpy

    def __init__(self, name: str, shape: tuple[int, ...], type_: GGMLType, packed: U8, driver: Eager) -> None:
        self.name = name
        self._shape = shape
        self.type = type_
        self.packed = packed
        self._driver = driver

    @classmethod
    def of(cls, tensor: TensorInfo, driver: Eager) -> Weight:
        """A tensor of a file as a weight.

        Raises
        ------
        UnsupportedError
            No kernel reads the tensor's type.
        """
        layout = weight_layout(tensor.type, tensor.name)
        return cls(tensor.name, tensor.shape, layout.type, tensor.data, driver)

    def __repr__(self) -> str:
        return f"<Weight {self.name} {self._shape} {self.quant}, {self.nbytes / 1e6:.1f} MB>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, rows first."""
        return self._shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._shape)

    @property
    def quant(self) -> str:
        """The type as ggml spells it, for example ``Q4_K``."""
        return self.type.name

    @property
    def nbytes(self) -> int:
        """Bytes of the packed blocks."""
        return self.packed.nbytes

    def __len__(self) -> int:
        return self._shape[0]

    def __getitem__(self, rows: int | slice | I64) -> Weight:
        """Rows of a matrix, still packed; an index keeps the result a matrix of one row."""
        if self.ndim != 2:
            raise InvalidInputError(f"{self.name} has {self.ndim} axes, only rows of a matrix can be selected")
        if isinstance(rows, int | np.integer):
            if not -len(self) <= rows < len(self):
                raise IndexError(f"row {rows} of {self.name}, which has {len(self)}")
            rows = slice(rows % len(self), rows % len(self) + 1)
        try:
            part = self.packed[rows]
        except (IndexError, TypeError) as error:
            raise InvalidInputError(f"rows of {self.name}: {error}") from None
        if part.ndim != 2:
            raise InvalidInputError(f"rows of {self.name}: {rows!r} selects no rows, use an index, a slice or an array")
        return Weight(self.name, (len(part), self._shape[1]), self.type, np.ascontiguousarray(part), self._driver)

    def dequantize(self) -> F32:
        """Decode everything: float32 of this shape, bit-identical to ggml's ``to_float``."""
        n = self._shape[-1] if self._shape else 1
        rows = MatrixView(self.name, self.packed, self.type, (len(self.packed), n))
        decoded = self._driver.get_rows(rows, np.arange(len(self.packed)), name=self.name)
        return decoded.reshape(self._shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise InvalidInputError(f"{self.name} is packed, an array of it is always a copy")
        return np.asarray(self.dequantize(), dtype)

    @property
    def T(self) -> TransposedWeight:  # noqa: N802 - numpy's name
        """The transpose, for ``x @ w.T``."""
        return TransposedWeight(self)

    def matrix(self) -> MatrixView:
        """The weight as the drivers' operations take it."""
        return MatrixView(self.name, self.packed, self.type, (len(self.packed), self._shape[-1]))

    def experts(self, shape: tuple[int, int, int]) -> ExpertsView:
        """The weight as operations with experts take it."""
        return ExpertsView(self.name, self.packed.reshape(*shape[:2], -1), self.type, shape)


@dataclasses.dataclass(frozen=True)
class MatrixView:
    """A packed matrix, as the drivers' operations take it (:class:`minillama.runtime.operations.PackedMatrix`)."""

    name: str
    packed: U8
    type: GGMLType
    shape: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class ExpertsView:
    """The packed matrices of all experts (:class:`minillama.runtime.operations.PackedExperts`)."""

    name: str
    packed: U8
    type: GGMLType
    shape: tuple[int, int, int]


class TransposedWeight:
    """``w.T`` of a :class:`Weight`; all it can do is stand on the right of ``@``."""

    __array_ufunc__ = None

    def __init__(self, weight: Weight) -> None:
        self._weight = weight

    def __repr__(self) -> str:
        return f"<transpose of {self._weight!r}>"

    @property
    def T(self) -> Weight:  # noqa: N802 - numpy's name
        """The weight."""
        return self._weight

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, the weight's reversed."""
        return self._weight.shape[::-1]

    def __rmatmul__(self, x: npt.ArrayLike) -> F32:
        """``x @ w.T``: float32 [..., rows of w], in ggml's arithmetic."""
        weight = self._weight
        values = np.asarray(x)
        if weight.ndim != 2 or values.ndim == 0 or values.shape[-1] != weight.shape[1]:
            raise InvalidInputError(f"x @ w.T: x has shape {values.shape}, w ({weight.name}) has {weight.shape}")
        if values.dtype != np.float32:
            raise InvalidInputError(f"x @ w.T: x is {values.dtype}, float32 is wanted")
        rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
        product = weight._driver.mul_mat(rows, weight.matrix(), name=weight.name)
        return product.reshape(*values.shape[:-1], weight.shape[0])


class Weights(Mapping[str, Weight]):
    """All tensors of a file by name."""

    def __init__(self, file: GGUFFile, driver: Eager) -> None:
        self._file = file
        self._driver = driver

    def __getitem__(self, name: str) -> Weight:
        if name not in self._file.tensors:
            raise KeyError(f"there is no tensor {name!r}")
        return Weight.of(self._file.tensors[name], self._driver)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.tensors)

    def __len__(self) -> int:
        return len(self._file.tensors)


class Binder:
    """Finds a model's tensors by name, checks their shapes before any arithmetic, and keeps count of what was used.

    Attributes
    ----------
    products
        Shapes of the weights that are bound as packed matrices, or matrices of experts, by name.
    """

    def __init__(self, file: GGUFFile, driver: Eager) -> None:
        self.products: dict[str, tuple[int, ...]] = {}
        self._file = file
        self._driver = driver
        self._used: set[str] = set()
        self._missing: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the file has the tensor."""
        return name in self._file.tensors

    def matrix(self, name: str, shape: tuple[int, int]) -> MatrixView:
        """A packed matrix that must be there; if it is not, :meth:`finish` says so."""
        weight = self._find(name, shape)
        if weight is None:
            return MatrixView(name, np.zeros((0, 0), np.uint8), GGMLType.F32, (0, 0))
        self.products[name] = shape
        return weight.matrix()

    def experts(self, name: str, shape: tuple[int, int, int]) -> ExpertsView:
        """Packed matrices of all experts, which must be there."""
        weight = self._find(name, shape)
        if weight is None:
            return ExpertsView(name, np.zeros((0, 0, 0), np.uint8), GGMLType.F32, (0, 0, 0))
        self.products[name] = shape
        return weight.experts(shape)

    def values(self, name: str, shape: tuple[int, ...]) -> F32:
        """A tensor that must be there, decoded to float32: a matrix that is added or multiplied value by value."""
        weight = self._find(name, shape)
        return weight.dequantize() if weight is not None else np.zeros(shape, np.float32)

    def vector(self, name: str, size: int) -> F32:
        """A vector that must be there, decoded to float32."""
        return self.values(name, (size,))

    def optional_vector(self, name: str, size: int) -> F32 | None:
        """A vector that may be there."""
        return self.vector(name, size) if self.has(name) else None

    def finish(self) -> None:
        """Check that nothing is missing; unused tensors are logged by name.

        Raises
        ------
        GGUFError
            Tensors are missing; the message names them.
        """
        if self._missing:
            raise GGUFError(f"{_listed(self._missing)} missing", path=str(self._file.path))
        unused = [name for name in self._file.tensors if name not in self._used]
        if unused:
            log.warning("%s: %s not used by this architecture", self._file.path.name, _listed(unused))

    def _find(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        if name not in self._file.tensors:
            self._missing.append(name)
            return None
        tensor = self._file.tensors[name]
        # GGUF drops outer sizes of 1: a matrix of one row is a vector there.
        if tensor.shape != shape and (len(shape) == 1 or (1, *tensor.shape) != shape):
            raise GGUFError(
                f"tensor {name!r} has shape {tensor.shape}, the configuration wants {shape}", path=str(self._file.path)
            )
        self._used.add(name)
        return Weight.of(tensor, self._driver)


Shape = tuple[int, ...]


def bind_fields(
    binder: Binder,
    kind: type[T],
    prefix: str,
    shapes: Mapping[str, Shape],
    *,
    required: Sequence[str] = (),
    **others: Any,
) -> T:
    """The tensors that the fields of a dataclass name.

    Field ``attn_q`` is the tensor ``<prefix>attn_q.weight``, field ``attn_q_bias`` is ``<prefix>attn_q.bias``. A field
    with a default may be missing from the file, or from ``shapes``: this variation of the model has no such tensor.

    Parameters
    ----------
    binder
        Where the tensors are.
    kind
        The dataclass.
    prefix
        ``"blk.0."`` for layer 0.
    shapes
        Of each tensor: one size for a vector, two for a matrix, three for matrices of experts. A bias has the tensor's
        shape without its last size, if there is more than one.
    required
        Fields with a default that must be there all the same.
    others
        Values of fields that are no tensors, or come from elsewhere.
    """
    found: dict[str, Any] = dict(others)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in others:
            continue
        name = field.name.removesuffix("_bias")
        is_bias = name != field.name
        tensor = f"{prefix}{name}.{'bias' if is_bias else 'weight'}"
        if field.default is None and not (name in shapes and (field.name in required or binder.has(tensor))):
            continue
        shape = shapes[name]
        if is_bias:
            found[field.name] = binder.values(tensor, shape[:-1] or shape)
        else:
            bind: Callable[..., Any] = (binder.values, binder.matrix, binder.experts)[len(shape) - 1]
            found[field.name] = bind(tensor, shape)
    return kind(**found)


def bind_output(binder: Binder, shape: tuple[int, int], token_embd: MatrixView) -> MatrixView:
    """The head: ``output``, or the embedding if the file has no head of its own."""
    return binder.matrix("output.weight", shape) if binder.has("output.weight") else token_embd


def sample_digest(digest: hashlib._Hash, tensors: Mapping[str, TensorInfo]) -> None:
    """Feed the name, type, shape and first bytes of every tensor to a hash.

    Models that differ do so at the beginning of some tensor; hashing gigabytes would take seconds.
    """
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.type_name} {tensor.shape} ".encode())
        digest.update(tensor.data.reshape(-1)[:_SAMPLE].tobytes())


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} ({shown}{more})"
