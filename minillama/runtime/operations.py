"""The operations that a forward pass is written in, the same for every driver.

A driver says where results are put and when operations run (:class:`minillama.runtime.eager.Eager`: at once;
:class:`minillama.runtime.capture.Recorder`: later, as a plan). Each operation takes the name of its result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minillama.gguf.constants import GGMLType
from minillama.kernels.jit import Kernel
from minillama.kernels.layouts import LAYOUTS
from minillama.kernels.scratch import BLOCK_BYTES
from minillama.kernels.types import F32, I32, I64, U8
from minillama.runtime.attention import Attention
from minillama.runtime.low_rank import LowRank
from minillama.runtime.packed import PackedExperts, PackedMatrix
from minillama.runtime.plan import Ahead
from minillama.runtime.rotary import Rotary

_NO_SINKS = np.zeros(0, np.float32)
_NO_MASK = np.zeros((0, 0), np.float32)
_ZERO = np.float32(0)

# Of attention: window, softcap, sinks.
_Limits = tuple[int, np.float32, F32]


class Operations(Attention):
    """What a forward pass can do.

    Parameters
    ----------
    kernels
        The backend's kernels.
    """

    def get_rows(self, weight: PackedMatrix, ids: I64, *, name: str) -> F32:
        """Rows of a weight, decoded: float32 [n, n_values]."""

        def delta(rows: slice, update: LowRank) -> F32:
            return self._product(self._decoded(update.a, ids[rows], name), update.b, name)

        return self._named(name, self._updated(self._decoded(weight, ids, name), weight, delta, name))

    def _decoded(self, weight: PackedMatrix, ids: I64, name: str) -> F32:
        out = self._empty((len(ids), weight.shape[1]))
        kernel = self.kernels.get_rows[weight.type]
        self._run(
            name, kernel, len(ids), weight.packed, ids, out, scratch_bytes=BLOCK_BYTES, work_per_item=weight.shape[1]
        )
        return out

    def select_rows(self, x: F32, rows: I64, *, name: str) -> F32:
        """Rows of an array of values."""
        out = self._empty((len(rows), x.shape[1]))
        self._run(name, self.kernels.select_rows, len(rows), x, rows, out, work_per_item=x.shape[1])
        return self._named(name, out)

    def _rows(self, name: str, kernel: Kernel, out: F32, *arguments: Any, work: int = 1) -> F32:
        """Run a kernel over all rows of ``out``, which it takes last; ``work`` is the multiply-adds of a value."""
        return self._named(name, self._over_rows(name, kernel, out, *arguments, work=work))

    def _over_rows(self, name: str, kernel: Kernel, out: F32, *arguments: Any, work: int = 1) -> F32:
        """The same, without a named value."""
        self._run(name, kernel, len(out), *arguments, out, work_per_item=work * out.shape[1])
        return out

    def _norm(self, kernel: Kernel, x: F32, weight: F32, eps: float, out: F32, name: str) -> None:
        """Run a norm over rows as long as its weight."""
        rows, out_rows = (array.reshape(-1, len(weight)) for array in (x, out))
        self._run(name, kernel, len(rows), rows, weight, np.float32(eps), out_rows, work_per_item=4 * len(weight))

    def rms_norm(self, x: F32, weight: F32, eps: float, *, name: str) -> F32:
        """Root-mean-square norm, times a weight, of every row or of every head: float32 of x's shape."""
        out = self._empty(x.shape)
        self._norm(self.kernels.rms_norm, x, weight, eps, out, name)
        return self._named(name, out)

    def layer_norm(self, x: F32, weight: F32, bias: F32 | None, eps: float, *, name: str) -> F32:
        """LayerNorm, times a weight, of every row or of every head, plus the bias if there is one."""
        out = self._empty(x.shape)
        self._norm(self.kernels.layer_norm, x, weight, eps, out, name)
        if bias is None:
            return self._named(name, out)
        return self.add_row(self._named(f"{name}_no_bias", out), bias, name=name)

    def _activation(self, x: F32, type_: GGMLType, name: str) -> U8:
        """Rows in the form that products take; made once for products of the same rows that follow each other."""
        if self._activated is None or self._activated[0] is not x:
            self._activated = x, {}
        forms = self._activated[1]
        if type_ in forms:
            return forms[type_]
        out = self._empty((len(x), self.kernels.activation_bytes(type_, x.shape[1])), np.uint8)
        self._run(f"{name}_quantize", self.kernels.quantize[type_], len(x), x, out, work_per_item=4 * x.shape[1])
        if self._keeps_activated:
            forms[type_] = out
        else:
            self._activated = None
        return out

    def mul_mat(self, x: F32, weight: PackedMatrix, *, name: str) -> F32:
        """``x @ weight.T`` on the packed blocks: float32 [n_tokens, n_rows].

        As in ggml, x is first converted to the type that the weight's dot product takes.
        """

        def delta(rows: slice, update: LowRank) -> F32:
            return self._product(self._product(_part(x, rows), update.a, name), update.b, name)

        return self._named(name, self._updated(self._product(x, weight, name), weight, delta, name))

    def _product(self, x: F32, weight: PackedMatrix, name: str) -> F32:
        n_rows, n = weight.shape
        activation_type = LAYOUTS[weight.type].activation
        assert activation_type is not None  # weights of other types are refused when they are bound
        activation = self._activation(x, activation_type, name)
        others = self._products[1] if self._products and self._products[0] is activation else []
        out = self._empty((len(x), n_rows))
        self._run(
            name, self.kernels.mul_mat[weight.type], n_rows if len(x) else 0, weight.packed, activation, n, out,
            scratch_bytes=self.kernels.mul_mat_scratch(weight.type, n, len(x)), work_per_item=n * len(x),
            granularity=self.kernels.mul_mat_rows(weight.type), n_bytes=weight.packed.nbytes,
            ahead=Ahead(weight.packed), beside=bool(others),
        )  # fmt: skip
        if self._keeps_activated:
            self._products = (activation, [*others, out])
        return out

    def _updated(
        self, product: F32, weight: PackedMatrix | PackedExperts, delta: Callable[[slice, LowRank], F32], name: str
    ) -> F32:
        """A product of the batch plus the low-rank updates of the weight.

        Parameters
        ----------
        product
            Without updates: float32 [n_tokens or n_outputs, ...].
        weight
            The weight.
        delta
            ``delta(rows, update)``: what an update, not yet scaled, makes of some rows.
        name
            Of the operations.
        """
        by_token = len(product) == self._n_tokens  # so are outputs if all tokens' logits are wanted
        found = [(s.tokens if by_token else s.outputs, s.updates(weight)) for s in self._stretches]
        if not any(updates for _, updates in found):
            return product
        out = self._empty(product.shape)
        for rows, updates in found:
            total, into = _flat(product[rows]), _flat(out[rows])
            if not updates:
                self._over_rows(f"{name}_lora", self.kernels.select_rows, into, total, np.arange(len(total)))
            for i, update in enumerate(updates, 1):
                change = _flat(delta(rows, update))
                scaled = self._over_rows(
                    f"{name}_lora_scale", self.kernels.scale, self._empty(change.shape), change, update.scale, _ZERO
                )
                added = into if i == len(updates) else self._empty(into.shape)
                total = self._over_rows(f"{name}_lora", self.kernels.add, added, total, scaled)
        return out

    def linear(self, x: F32, weight: PackedMatrix, bias: F32 | None, *, name: str) -> F32:
        """``x @ weight.T``, plus the bias if there is one."""
        if bias is None:
            return self.mul_mat(x, weight, name=name)
        return self.add_row(self.mul_mat(x, weight, name=f"{name}_no_bias"), bias, name=name)

    def add(self, x: F32, y: F32, *, name: str) -> F32:
        """``x + y``."""
        return self._rows(name, self.kernels.add, self._empty(x.shape), x, y)

    def add_row(self, x: F32, row: F32, *, name: str) -> F32:
        """``x + row``, for one row."""
        return self._rows(name, self.kernels.add_bias, self._empty(x.shape), x, row)

    def mul_row(self, x: F32, row: F32, *, name: str) -> F32:
        """``x * row``, for one row."""
        return self._rows(name, self.kernels.mul_row, self._empty(x.shape), x, row)

    def mul_column(self, x: F32, column: F32, *, name: str) -> F32:
        """``x * column``, for a column [n_tokens, 1]."""
        return self._rows(name, self.kernels.mul_column, self._empty(x.shape), x, column)

    def div(self, x: F32, y: F32, *, name: str) -> F32:
        """``x / y``."""
        return self._rows(name, self.kernels.div, self._empty(x.shape), x, y)

    def scale(self, x: F32, factor: float | np.float32, *, name: str) -> F32:
        """``x * factor``."""
        return self._rows(name, self.kernels.scale, self._empty(x.shape), x, np.float32(factor), _ZERO)

    def softcap(self, x: F32, cap: float, *, name: str) -> F32:
        """``cap * tanh(x / cap)``."""
        return self._rows(name, self.kernels.softcap, self._empty(x.shape), x, np.float32(cap), work=32)

    def columns(self, x: F32, first: int, n: int, *, name: str) -> F32:
        """``n`` columns of x from ``first`` on."""
        return self._rows(name, self.kernels.select_columns, self._empty((len(x), n)), x, first)

    def activation(self, kind: str, x: F32, *, name: str) -> F32:
        """``silu``, ``gelu`` or another activation of every value; see ``kernels.reference.activations``."""
        return self._rows(name, self.kernels.activation[kind], self._empty(x.shape), x, work=32)

    def _gated(self, kernel: Kernel, gate: F32, up: F32, *constants: np.float32, name: str) -> F32:
        out = self._empty(gate.shape)
        rows = [array.reshape(-1, gate.shape[-1]) for array in (gate, up, out)]
        work = 32 * gate.shape[-1]
        self._run(name, kernel, len(rows[0]), *rows[:2], *constants, rows[2], work_per_item=work)
        return self._named(name, out)

    def swiglu(self, gate: F32, up: F32, *, name: str) -> F32:
        """``silu(gate) * up``."""
        return self._gated(self.kernels.swiglu, gate, up, name=name)

    def geglu(self, gate: F32, up: F32, *, name: str) -> F32:
        """``gelu(gate) * up``, GELU by its tangent."""
        return self._gated(self.kernels.gated["geglu"], gate, up, name=name)

    def swiglu_oai(self, gate: F32, up: F32, alpha: float, limit: float, *, name: str) -> F32:
        """``gate * sigmoid(alpha * gate) * (up + 1)``, gate and up clamped to ``limit``."""
        constants = np.float32(alpha), np.float32(limit)
        return self._gated(self.kernels.swiglu_oai, gate, up, *constants, name=name)

    def soft_max(self, x: F32, *, name: str) -> F32:
        """Softmax of every row."""
        out = self._empty(x.shape)
        everything = x[None], _NO_MASK, _NO_SINKS, np.float32(1), np.float32(0), out[None]
        self._run(name, self.kernels.soft_max, len(x), *everything, work_per_item=32 * x.shape[1])
        return self._named(name, out)

    def top_experts(self, scores: F32, n_used: int, *, name: str) -> tuple[I32, F32]:
        """The experts with the highest scores, highest first, and these: int32 and float32 [n_tokens, n_used]."""
        order = self._empty(scores.shape, np.int32)
        work = 16 * scores.shape[1]
        self._run(f"{name}_argsort", self.kernels.argsort, len(scores), scores, 1, order, work_per_item=work)
        ids, taken = self._empty((len(scores), n_used), np.int32), self._empty((len(scores), n_used))
        self._run(name, self.kernels.take_experts, len(scores), scores, order, ids, taken, work_per_item=n_used)
        return ids, self._named(name, taken)

    def normalize_weights(self, weights: F32, *, name: str) -> F32:
        """Every row divided by its sum."""
        return self._rows(name, self.kernels.normalize_weights, self._empty(weights.shape), weights)

    def mul_mat_id(self, x: F32, weight: PackedExperts, ids: I32, *, name: str) -> F32:
        """Products with the experts that each token uses: float32 [n_tokens, n_used, n_rows].

        Parameters
        ----------
        x
            float32 [n_tokens, n], or [n_tokens, n_used, n] with a row of its own for each expert.
        weight
            Matrices of all experts.
        ids
            Experts of each token, int32 [n_tokens, n_used].
        name
            Name of the result.
        """

        def delta(rows: slice, update: LowRank) -> F32:
            taken = _part(ids, rows)
            return self._product_id(self._product_id(_part(x, rows), update.a, taken, name), update.b, taken, name)

        return self._named(name, self._updated(self._product_id(x, weight, ids, name), weight, delta, name))

    def _product_id(self, x: F32, weight: PackedExperts, ids: I32, name: str) -> F32:
        _, n_rows, n = weight.shape
        n_tokens, n_used = ids.shape
        activation_type = LAYOUTS[weight.type].activation
        assert activation_type is not None  # weights of other types are refused when they are bound
        activation = self._activation(x.reshape(-1, n), activation_type, name)
        activation = activation.reshape(n_tokens, x.size // (n_tokens * n) if n_tokens else 1, activation.shape[-1])
        out = self._empty((n_tokens, n_used, n_rows))
        self._run(
            name, self.kernels.mul_mat_id[weight.type], n_rows if n_tokens else 0,
            weight.packed, activation, ids, n, out, scratch_bytes=self.kernels.mul_mat_scratch(weight.type, n, 1),
            work_per_item=n * n_tokens * n_used, granularity=self.kernels.mul_mat_rows(weight.type),
        )  # fmt: skip
        return out

    def linear_id(self, x: F32, weight: PackedExperts, bias: F32 | None, ids: I32, *, name: str) -> F32:
        """:meth:`mul_mat_id`, plus the experts' biases, float32 [n_expert, n_rows], if they have any."""
        if bias is None:
            return self.mul_mat_id(x, weight, ids, name=name)
        product = self.mul_mat_id(x, weight, ids, name=f"{name}_no_bias")
        out = self._empty(product.shape)
        work = out.shape[1] * out.shape[2]
        self._run(name, self.kernels.add_expert_bias, len(x), product, bias, ids, out, work_per_item=work)
        return self._named(name, out)

    def sum_experts(self, x: F32, weights: F32, *, name: str) -> F32:
        """The experts' results [n_tokens, n_used, n], weighted and added up: float32 [n_tokens, n]."""
        out = self._empty((len(x), x.shape[2]))
        return self._rows(name, self.kernels.sum_experts, out, x, weights, work=x.shape[1])

    def rope_table(self, position: I64, rotary: Rotary) -> F32:
        """Cosine and sine of every token's rotary angles: float32 [n_tokens, n_rot / 2, 2]."""
        out = self._empty((len(position), len(rotary.factors), 2))
        angles = position, rotary.theta_scale, rotary.freq_scale, rotary.factors
        kernel, details = self.kernels.rope_table, {"work_per_item": 100 * len(rotary.factors)}
        if rotary.yarn is None:
            self._run("rope_table", kernel, len(position), *angles, out, **details)
        else:
            yarn, kernel = rotary.yarn, self.kernels.rope_table_yarn
            scaling = yarn.ext_factor, yarn.attn_factor, yarn.first, yarn.last
            self._run("rope_table", kernel, len(position), *angles, *scaling, out, **details)
        return out

    def rope(self, x: F32, table: F32, n_head: int, pairing: str, *, name: str) -> F32:
        """Rotary embedding of every head; ``pairing`` is ``"norm"`` (neighbours) or ``"neox"`` (halves)."""
        out = self._empty(x.shape)
        kernel = self.kernels.rope_neox if pairing == "neox" else self.kernels.rope_norm
        self._run(name, kernel, len(x), x, table, n_head, out, work_per_item=4 * x.shape[1])
        return self._named(name, out)


def _flat(x: F32) -> F32:
    return x.reshape(-1, x.shape[-1])


def _part(x: Any, rows: slice) -> Any:
    """Some rows; the array itself if these are all, so that it is known to be the same."""
    return x if rows == slice(0, len(x)) else x[rows]
