"""Seconds of computation of one rank: matrix products, attention, memory-bound kernels."""

from dataclasses import dataclass
from functools import cached_property

from megatron_operator.planner.estimate.calibration import Calibration
from megatron_operator.planner.estimate.hardware import Accelerator
from megatron_operator.planner.estimate.model_shape import ModelShape
from megatron_operator.planner.estimate.workload import Workload

_BIAS_BYTES = 68
"""Bytes moved per element of the experts' output for its bias, forward and backward:
`TEGroupedMLP._apply_bias` multiplies by the token's weight, adds, concatenates and casts in FP32, and so do
the gradients."""
_CLAMP_BYTES = 40
"""Bytes moved per element of the experts' width for the clamp of a quick GEGLU and for the gradient of the
first bias: `weighted_bias_quick_geglu_impl` clamps both halves and concatenates them before its fused part
(16), the gradients do the same (20), and the bias' gradient reads the product's (4)."""
_FORWARD_AND_BACKWARD = 3
"""The backward pass of a product is two products of the same size."""


@dataclass(frozen=True, slots=True)
class ComputeTime:
    """Seconds of a forward and backward pass."""

    matmul: float
    """Seconds of matrix products."""
    attention: float
    """Seconds of attention scores and values."""
    elementwise: float
    """Seconds of memory-bound kernels."""

    @property
    def total(self) -> float:
        """Seconds of the whole pass."""
        return self.matmul + self.attention + self.elementwise


_NOTHING = ComputeTime(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class MatMul:
    """A matrix product of `rows` x `inner` by `inner` x `columns`, `count` of them in one launch."""

    rows: float
    inner: float
    columns: float
    count: float = 1

    def work(self, edge: float) -> float:
        """FLOPs including partly filled tiles: each dimension costs `edge` elements more than it has."""
        return 2 * (self.rows + edge) * (self.inner + edge) * (self.columns + edge) * self.count

    @property
    def operands(self) -> tuple[float, float, float]:
        """Elements of the input, the weight and the result, of all `count` products."""
        rows, inner, columns = self.count * self.rows, self.inner, self.columns
        return rows * inner, self.count * inner * columns, rows * columns


class ComputeModel:
    """Computation of one workload on one accelerator. All methods return seconds of one rank."""

    def __init__(self, w: Workload, on: Accelerator, constants: Calibration) -> None:
        self._w, self._on, self._c = w, on, constants
        reached = constants.reached(on.architecture)
        self._bf16, self._fp8 = on.bf16 * reached, (on.fp8 or on.bf16) * reached
        self._sequence_split = w.dims.tp if w.split_sequence else 1

    def layers(self, stage: int) -> tuple[int, int]:
        """Numbers of layers of a stage without and with experts.

        Multi-token-prediction layers count in the last stage.
        """
        w = self._w
        moe = w.moe_of_stage[stage]
        dense = w.stage_layers[stage] - moe
        if stage == w.dims.pp - 1 and w.shape.mtp_layers:
            if w.shape.moe_layers[-1]:
                moe += w.shape.mtp_layers
            else:
                dense += w.shape.mtp_layers
        return dense, moe

    def _output(self, stage: int) -> float:
        """Output layer and loss of the last stage, again for each multi-token prediction; always BF16.

        Own derivation: the loss passes over the FP32 logits, 4 bytes each, six times.
        """
        w, shape = self._w, self._w.shape
        if stage != w.dims.pp - 1:
            return 0.0
        columns = shape.padded_vocab(w.dims.tp) / w.dims.tp
        product = self._product(MatMul(w.tokens, shape.hidden, columns), fp8=False)
        loss = 4 * 6 * w.tokens * columns / (self._on.memory_bandwidth * self._c.memory)
        return (1 + shape.mtp_layers) * (product + loss)

    def stage(self, stage: int) -> ComputeTime:
        """Seconds of one micro batch on a stage, forward and backward, by kind of kernel.

        The output layer counts as a matrix product.
        """
        dense, moe = self.layers(stage)
        plain, mixed = self._dense if dense else _NOTHING, self._moe if moe else _NOTHING
        return ComputeTime(
            matmul=dense * plain.matmul + moe * mixed.matmul + self._output(stage),
            attention=dense * plain.attention + moe * mixed.attention,
            elementwise=dense * plain.elementwise + moe * mixed.elementwise,
        )

    def optimizer(self, held: tuple[float, float, float]) -> float:
        """Seconds of the optimizer's step; `held` are parameters as `held_parameters` returns them.

        Own derivation: the step is bound by memory traffic. The gradient norm reads all gradients. The update
        reads and writes weight, gradient and moments of the rank's shard and writes the weights.
        """
        w, n = self._w, self._w.numerics
        layers, experts, vocabulary = held
        copies, expert_copies = w.optimizer_copies
        part = (layers + vocabulary) / copies + experts / expert_copies
        moved = part * (2 * n.optimizer + 2 * n.gradient + n.weight) + sum(held) * n.gradient
        return moved / (self._on.memory_bandwidth * self._c.memory)

    @cached_property
    def _dense(self) -> ComputeTime:
        """One micro batch in a dense layer."""
        return self._layer(moe=False)

    @cached_property
    def _moe(self) -> ComputeTime:
        """One micro batch in a layer with experts."""
        return self._layer(moe=True)

    def _layer(self, *, moe: bool) -> ComputeTime:
        w = self._w
        products = [*_attention_products(w), *(_expert_products(w) if moe else _dense_products(w))]
        added = _adapter_products(w)
        factor = _FORWARD_AND_BACKWARD + (self._recomputed_share if w.recompute.granularity == "full" else 0)
        again = _recomputed_products(w, moe=moe)
        return ComputeTime(
            matmul=sum(self._product(product, passes=factor) for product in products)
            + sum(self._product(product, passes=factor, frozen=False) for product in added)
            + sum(self._product(product, passes=1) for product in again),
            attention=self._attention(),
            elementwise=self._elementwise(moe=moe) * factor / _FORWARD_AND_BACKWARD,
        )

    def waiting(self, stage: int, working: float) -> float:
        """Seconds that a micro batch, `working` seconds long, waits for the host to launch its kernels.

        Own derivation: no step is faster than its launches, and a share of the launches of experts is always
        visible. CUDA graphs of parts of a layer leave a share of the launches, those of a whole iteration
        none.
        """
        c, again = self._c, self._recomputed_share if self._w.recompute.granularity == "full" else 0.0
        dense, moe = self.layers(stage)
        left = {"none": 1.0, "partial": c.graph, "full": 0.0}[self._w.execution.graphs]
        launches = left * (c.fp8_launches if self._w.numerics.fp8 else 1) * (1 + again / 3)
        experts = moe * c.expert_layer_seconds * launches
        host = dense * c.layer_seconds * launches + experts
        return max(0.0, host - working) + c.expert_wait * min(experts, working)

    @property
    def _recomputed_share(self) -> float:
        """Share of the layers that full recomputation runs forward twice."""
        w = self._w
        if w.recompute.method == "uniform":
            return 1.0
        return min(1.0, w.recompute.layers / max(w.stage_layers))

    def _product(
        self, product: MatMul, fp8: bool = True, passes: float = 3, frozen: bool | None = None
    ) -> float:
        """Seconds of a product and, for three passes, of its two gradients, each with a start-up time.

        A `frozen` weight, by default any where adapters are trained, has no gradient.

        Roofline model (Williams et al. 2009): each pass takes the longer of arithmetic and memory traffic,
        which is two operands in the precision of the product and a result of 2 bytes; the weight gradient is
        read and written.
        """
        w, on, c = self._w, self._on, self._c
        in_fp8 = fp8 and w.numerics.fp8 and on.fp8 is not None
        peak = self._fp8 * c.fp8 if in_fp8 else self._bf16 * c.bf16
        size = 1 if in_fp8 else 2
        first, second, out = product.operands
        arithmetic, bandwidth = product.work(c.edge) / peak, on.memory_bandwidth * c.memory
        forward = max(arithmetic, (size * (first + second) + 2 * out) / bandwidth)
        if passes == 1:
            return forward + c.matmul_seconds
        inputs = max(arithmetic, (size * (out + second) + 2 * first) / bandwidth)
        if self._w.adapters is not None if frozen is None else frozen:
            return forward * (passes - 2) + inputs + (passes - 1) * c.matmul_seconds
        weights = max(arithmetic, (size * (out + first) + 2 * w.numerics.gradient * second) / bandwidth)
        return forward * (passes - 2) + inputs + weights + passes * c.matmul_seconds

    def _attention(self) -> float:
        """Seconds of scores and values of one layer, forward and backward, without the masked half.

        Forward s x core operations per token, where s is the sequence length and core = 2 x heads x head
        width or, for latent attention, heads x (query width + value width). The backward pass of
        FlashAttention is 2.5 times that (arXiv:2307.08691, section 3.1). A head of width d below 128 reaches
        d / (d + 64) of the peak instead of 2/3, as it has the same number of exponentials for fewer products
        (arXiv:2407.08608, figure 5). Selective and full recomputation repeat the forward pass. Unfused
        attention also computes the masked half and writes its probabilities: 12 bytes per score and pass.
        """
        w, shape, c = self._w, self._w.shape, self._c
        core = 2 * shape.heads * shape.head_dim
        if shape.latent is not None:
            core = shape.heads * (shape.latent.qk_dim + shape.latent.rope_dim + shape.latent.v_dim)
        forward = w.tokens * 2 * _keys(w) * core / w.dims.tp
        repeats = w.recompute.granularity == "full" or "core_attn" in self._selective
        passes = 3.5 + repeats
        if not w.execution.unfused_attention:
            width = core / (2 * shape.heads)
            reached = c.attention * min(1.0, 1.5 * width / (width + 64))
            return forward * passes / (self._on.bf16 * reached)
        scores = w.tokens * w.seq_length * shape.heads / w.dims.tp
        products = 2 * forward * (3 + repeats) / (self._bf16 * c.bf16)
        return products + scores * 12 * (3 + repeats) / (self._on.memory_bandwidth * c.memory)

    @property
    def _selective(self) -> frozenset[str]:
        recompute = self._w.recompute
        if recompute.granularity != "selective":
            return frozenset()
        return recompute.modules or frozenset({"core_attn"})

    def _elementwise(self, *, moe: bool) -> float:
        """Seconds of norms, residuals with dropout, rotation, activation, casts and permutation.

        Own derivation. Bytes moved per token in the forward pass, where h is the hidden size: two norms 4 h
        each, two residuals 6 h each, rotation 4 per query and key element, activation 6 (gated) or 4 per
        element. A cast to FP8 reads 2 and writes 2; with block scales it is done for rows and for columns.
        A token is permuted in both directions for each of its experts, 8 h; the bias of their output is added
        unfused. The backward pass moves twice as much.
        """
        w, shape = self._w, self._w.shape
        rotated = shape.heads * shape.head_dim + shape.groups * shape.head_dim
        moved = 20.0 * shape.hidden + 4 * rotated
        inputs = 2 * shape.hidden + shape.heads * shape.head_dim
        activation = 6 if shape.gated else 4
        if moe:
            width = shape.topk * shape.expert_ffn + shape.shared_ffn
            moved += 8 * shape.topk * shape.hidden + activation * width
            inputs += shape.topk * shape.hidden + width
        else:
            moved += activation * shape.ffn
            inputs += shape.ffn
        if w.numerics.fp8:
            moved += (8 if w.numerics.block_scaled else 4) * inputs
        eager = self._eager_bytes() if moe else 0.0
        moved = _FORWARD_AND_BACKWARD * moved / self._c.memory + eager / self._c.eager
        return moved * w.tokens / self._sequence_split / self._on.memory_bandwidth

    def _eager_bytes(self) -> float:
        """Bytes moved per token by operations of experts with biases that PyTorch runs one by one.

        Transformer Engine's fuser has all of them in the products.
        """
        shape, run = self._w.shape, self._w.execution
        if not shape.bias or run.fused_experts:
            return 0.0
        clamp = _CLAMP_BYTES * shape.expert_ffn if shape.quick_geglu else 0.0
        return shape.topk * (_BIAS_BYTES * shape.hidden + clamp)


def _keys(w: Workload) -> float:
    """Keys per query, averaged over all layers; a window is computed in whole tiles of 128 keys.

    Own derivation: causal attention of s tokens has s / 2 keys per query on average.
    """
    every = w.seq_length / 2
    if w.shape.window is None:
        return every
    return w.shape.windowed * min(every, w.shape.window + 128) + (1 - w.shape.windowed) * every


def _attention_products(w: Workload) -> list[MatMul]:
    """Linear layers of attention on one tensor-parallel rank, with the shapes of Megatron's `SelfAttention`
    or, for latent attention, `MLASelfAttention`."""
    shape, rows = w.shape, w.tokens
    if shape.latent is None:
        width = shape.heads * shape.head_dim
        return [
            MatMul(rows, shape.hidden, (width + 2 * shape.groups * shape.head_dim) / w.dims.tp),
            MatMul(rows, width / w.dims.tp, shape.hidden),
        ]
    m = shape.latent
    split = w.dims.tp if w.split_sequence else 1
    query, value = shape.heads * (m.qk_dim + m.rope_dim), shape.heads * m.v_dim
    products = [
        MatMul(rows / split, shape.hidden, m.kv_rank + m.rope_dim),
        MatMul(rows, m.kv_rank, shape.heads * (m.qk_dim + m.v_dim) / w.dims.tp),
        MatMul(rows, value / w.dims.tp, shape.hidden),
    ]
    if m.q_rank is None:
        return [*products, MatMul(rows, shape.hidden, query / w.dims.tp)]
    return [
        *products,
        MatMul(rows / split, shape.hidden, m.q_rank),
        MatMul(rows, m.q_rank, query / w.dims.tp),
    ]


def _feed_forward(shape: ModelShape, rows: float, width: float) -> list[MatMul]:
    return [MatMul(rows, shape.hidden, (2 if shape.gated else 1) * width), MatMul(rows, width, shape.hidden)]


def _dense_products(w: Workload) -> list[MatMul]:
    return _feed_forward(w.shape, w.tokens, w.shape.ffn / w.dims.tp)


def _expert_products(w: Workload) -> list[MatMul]:
    """The experts of a rank, with tokens routed evenly, and its share of the shared experts.

    Own derivation: a rank computes s b k e / t rows for all of its experts, where s b are the tokens of a
    micro batch on one context-parallel rank, k the experts per token, e is ETP and t is TP.
    """
    shape = w.shape
    local = shape.experts / w.dims.ep
    rows = w.tokens * shape.topk * w.dims.etp / w.dims.tp / local
    width = shape.expert_ffn / w.dims.etp
    products = [
        MatMul(rows, shape.hidden, (2 if shape.gated else 1) * width, count=local),
        MatMul(rows, width, shape.hidden, count=local),
    ]
    return products + (
        _feed_forward(shape, w.tokens, shape.shared_ffn / w.dims.tp) if shape.shared_ffn else []
    )


def _adapter_products(w: Workload) -> list[MatMul]:
    """The two products of each adapter of a dense layer."""
    if w.adapters is None:
        return []
    rows, dim = w.tokens, w.adapters.dim
    products = []
    for inputs, outputs in w.adapters.widths(w.shape):
        products += [MatMul(rows, inputs, dim / w.dims.tp), MatMul(rows, dim, outputs / w.dims.tp)]
    return products


def _recomputed_products(w: Workload, *, moe: bool) -> list[MatMul]:
    """Products that selective recomputation repeats."""
    modules = w.recompute.modules if w.recompute.granularity == "selective" else frozenset()
    again: list[MatMul] = []
    if "mla_up_proj" in modules and w.shape.latent is not None:
        again += [
            p for p in _attention_products(w) if p.inner in (w.shape.latent.q_rank, w.shape.latent.kv_rank)
        ]
    if "mlp" in modules and not moe:
        again += _dense_products(w)
    if "moe" in modules and moe:
        again += _expert_products(w)
    return again
