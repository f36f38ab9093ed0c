"""Seconds of computation of one rank: matrix products, attention, memory-bound kernels."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from megatron_operator.planner.estimate import diffusion_layers, sparse_attention
from megatron_operator.planner.estimate.attention_kinds import Compressed, Heads, Indexed
from megatron_operator.planner.estimate.calibration import Calibration
from megatron_operator.planner.estimate.hardware import Accelerator
from megatron_operator.planner.estimate.layers import IMAGE_TOKENS, LayerKind, Tower
from megatron_operator.planner.estimate.matmul import MatMul
from megatron_operator.planner.estimate.model_shape import ffn_of, heads_of
from megatron_operator.planner.estimate.products import (
    adapter_products,
    layer_products,
    mixed_width,
    recomputed_products,
    scan_bytes,
    tower_patches,
    tower_products,
)
from megatron_operator.planner.estimate.residual_streams import moved_bytes
from megatron_operator.planner.estimate.workload import Workload

_BIAS_BYTES = 68
"""Bytes moved per element of the experts' output for its bias, forward and backward:
`TEGroupedMLP._apply_bias` multiplies by the token's weight, adds, concatenates and casts in FP32, and so do
the gradients."""
_CLAMP_BYTES = 40
"""Bytes moved per element of the experts' width for the clamp of a quick GEGLU and for the gradient of the
first bias: `weighted_bias_quick_geglu_impl` clamps both halves and concatenates them before its fused part
(16), the gradients do the same (20), and the bias' gradient reads the product's (4)."""
_FULL_NORM_BYTES = 96
"""Bytes moved per element of queries and keys by a norm over all heads (`_FullDimRMSNorm` of Megatron-Bridge,
unfused): forward a cast to FP32 (6), squares (8), their sum (4), the product with the root (8), a cast back
(6) and the product with the weight (4); backward is taken to be 5/3 of it."""
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


class ComputeModel:
    """Computation of one workload on one accelerator. All methods return seconds of one rank."""

    def __init__(self, w: Workload, on: Accelerator, constants: Calibration) -> None:
        self._w, self._on, self._c = w, on, constants
        reached = constants.reached(on.architecture)
        self._bf16, self._fp8 = on.bf16 * reached, (on.fp8 or on.bf16) * reached
        self._tf32 = on.tf32 * reached
        self._sequence_split = w.dims.tp if w.split_sequence else 1
        self._computed: dict[LayerKind, ComputeTime] = {}

    def layers(self, stage: int) -> Mapping[LayerKind, int]:
        """How many layers of each kind a stage computes, with multi-token predictions in the last stage."""
        w = self._w
        layers = Counter(w.kinds_of_stage[stage])
        if stage == w.dims.pp - 1:
            layers.update(w.shape.mtp_layers * w.shape.mtp_kinds)
        return layers

    def _output(self, stage: int) -> float:
        """Output layer and loss of the last stage, again for each multi-token prediction; never in FP8.

        Own derivation: the loss passes over the FP32 logits, 4 bytes each, six times.
        """
        w, shape = self._w, self._w.shape
        if stage != w.dims.pp - 1 or not shape.vocab:
            return 0.0
        columns = shape.padded_vocab(w.dims.tp) / w.dims.tp
        product = self._product(MatMul(w.tokens, shape.hidden, columns), fp8=False)
        loss = 4 * 6 * w.tokens * columns / (self._on.memory_bandwidth * self._c.memory)
        return (1 + shape.mtp_layers) * (product + loss)

    def stage(self, stage: int) -> ComputeTime:
        """Seconds of one micro batch on a stage, forward and backward, by kind of kernel.

        The output layer counts as a matrix product.
        """
        layers = [(self._of_kind(kind), count) for kind, count in self.layers(stage).items()]
        if stage == 0:
            layers += [(self._tower(tower), 1) for tower in self._w.shape.towers]
        return ComputeTime(
            matmul=sum(count * each.matmul for each, count in layers) + self._output(stage),
            attention=sum(count * each.attention for each, count in layers),
            elementwise=sum(count * each.elementwise for each, count in layers),
        )

    def _tower(self, tower: Tower) -> ComputeTime:
        """One micro batch in the tower, in BF16; only forward where it is frozen.

        Own derivation: as a dense layer, with attention between the patches of one image and no mask.
        """
        w, on, c = self._w, self._on, self._c
        passes = 1 if w.adapters is not None or tower.freezes_encoder(w.frozen) else 3
        split = w.dims.tp if tower.split else 1
        patches = tower_patches(w, tower)
        attended = 4 * patches * IMAGE_TOKENS * tower.patches_per_token * tower.hidden / split
        # Heads of 64 to 80 elements; the backward pass of attention is 2.5 times the forward pass.
        attention = attended * (1 if passes == 1 else 3.5) / (on.bf16 * c.attention * 0.75)
        # The convolution and its gate move as much as a part of the layer with its norm and residual.
        parts = 4 if tower.conformer else 2
        ffn = tower.ffn * (2 if tower.conformer else 1)
        moved = passes * patches * (10 * parts * tower.hidden + 6 * ffn) / split
        return ComputeTime(
            matmul=tower.layers
            * sum(self._product(p, fp8=False, passes=passes, frozen=False) for p in tower_products(w, tower)),
            attention=tower.layers * attention,
            elementwise=tower.layers * moved / (on.memory_bandwidth * c.memory),
        )

    def attention(self, kind: LayerKind) -> float:
        """Seconds of scores and values of one micro batch in a layer of this kind."""
        return self._of_kind(kind).attention

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

    def _of_kind(self, kind: LayerKind) -> ComputeTime:
        """One micro batch in a layer of this kind."""
        if kind not in self._computed:
            self._computed[kind] = self._layer(kind)
        return self._computed[kind]

    def _layer(self, kind: LayerKind) -> ComputeTime:
        w = self._w
        factor = _FORWARD_AND_BACKWARD + (self._recomputed_share if w.recompute.granularity == "full" else 0)
        mixing = self._scan(kind) if kind.scans else 0.0
        moving = (self._elementwise(kind) + mixing) * w.numerics.widths
        return ComputeTime(
            matmul=sum(self._product(product, passes=factor) for product in layer_products(w, kind))
            + sum(
                self._product(product, passes=factor, frozen=False) for product in adapter_products(w, kind)
            )
            + sum(self._product(product, passes=1) for product in recomputed_products(w, kind))
            # Their inputs have no gradients.
            + sum(self._product(product, passes=factor - 1) for product in _index_products(w, kind)),
            attention=self._attention_of(kind) if kind.attends else 0.0,
            elementwise=moving * factor / _FORWARD_AND_BACKWARD,
        )

    def _scan(self, kind: LayerKind) -> float:
        """Seconds of the kernels of a Mamba-2 layer or a gated delta net between its projections, forward and
        backward.

        Own derivation: they are Triton kernels bound by memory, whose bytes are counted and move at the share
        `scan` of the bandwidth.
        """
        w = self._w
        moved = scan_bytes(w, kind) * w.tokens / w.dims.tp
        return moved / (self._on.memory_bandwidth * self._c.scan)

    def waiting(self, stage: int, working: float) -> float:
        """Seconds that a micro batch, `working` seconds long, waits for the host to launch its kernels.

        Own derivation: no step is faster than its launches, and a share of the launches of experts is always
        visible. CUDA graphs of parts of a layer leave a share of the launches, those of a whole iteration
        none.
        """
        c, again = self._c, self._recomputed_share if self._w.recompute.granularity == "full" else 0.0
        left = {"none": 1.0, "partial": c.graph, "full": 0.0}[self._w.execution.graphs]
        launches = left * (c.fp8_launches if self._w.numerics.fp8 else 1) * (1 + again / 3)
        layers = self.layers(stage)
        moe = sum(count for kind, count in layers.items() if kind.is_moe)
        experts = moe * c.expert_layer_seconds * launches
        # A layer with one part has half of the kernels.
        dense = sum(count * kind.branches / 2 for kind, count in layers.items() if not kind.is_moe)
        host = dense * c.layer_seconds * launches + experts
        return max(0.0, host - working) + c.expert_wait * min(experts, working)

    @property
    def _recomputed_share(self) -> float:
        """Share of the layers that full recomputation runs forward twice."""
        w = self._w
        if w.recompute.method == "uniform":
            return 1.0
        return min(1.0, w.recompute.layers * w.dims.vp / max(w.stage_layers))

    def _product(
        self, product: MatMul, fp8: bool = True, passes: float = 3, frozen: bool | None = None
    ) -> float:
        """Seconds of a product and, for three passes, of its two gradients, each with a start-up time.

        A `frozen` weight, by default any of a frozen language model, has no gradient.

        Roofline model (Williams et al. 2009): each pass takes the longer of arithmetic and memory traffic,
        which is two operands in the precision of the product and a result of 2 bytes; the weight gradient is
        read and written. FP32 has 4 bytes; Transformer Engine multiplies it in TF32
        (`CUBLAS_COMPUTE_32F_FAST_TF32`), and PyTorch, which has the output layer, without tensor cores.
        """
        w, on, c = self._w, self._on, self._c
        in_fp8 = fp8 and not product.in_bf16 and w.numerics.fp8 and on.fp8 is not None
        peak = self._fp8 * c.fp8 if in_fp8 else self._bf16 * c.bf16
        if w.numerics.in_fp32:
            peak = self._tf32 * c.bf16 if fp8 else on.fp32
        result = 2 * w.numerics.widths
        size = 1 if in_fp8 else result
        first, second, out = product.operands
        arithmetic, bandwidth = product.work(c.edge) / peak, on.memory_bandwidth * c.memory
        forward = max(arithmetic, (size * (first + second) + result * out) / bandwidth)
        if passes == 1:
            return forward + c.matmul_seconds
        inputs = max(arithmetic, (size * (out + second) + result * first) / bandwidth)
        if self._w.language_frozen if frozen is None else frozen:
            return forward * (passes - 2) + inputs + (passes - 1) * c.matmul_seconds
        weights = max(arithmetic, (size * (out + first) + 2 * w.numerics.gradient * second) / bandwidth)
        return forward * (passes - 2) + inputs + weights + passes * c.matmul_seconds

    def _attention(self, own: Heads, keys: float) -> float:
        """Seconds of scores and values of one layer, forward and backward, without the masked half.

        Forward 2 x keys x core operations per token, where `keys` are half of the sequence, or fewer in a
        window, and core = 2 x heads x head
        width or, for latent attention, heads x (query width + value width). The backward pass of
        FlashAttention is 2.5 times that (arXiv:2307.08691, section 3.1). A head of width d below 128 reaches
        d / (d + 64) of the peak instead of 2/3, as it has the same number of exponentials for fewer products
        (arXiv:2407.08608, figure 5). Selective and full recomputation repeat the forward pass. Unfused
        attention also computes the masked half and writes its probabilities: 12 bytes per score and pass, 24
        in FP32, of which PyTorch computes the products without tensor cores.
        """
        w, shape, c = self._w, self._w.shape, self._c
        core = 2 * own.heads * own.head_dim
        if shape.latent is not None:
            core = shape.heads * (shape.latent.qk_dim + shape.latent.rope_dim + shape.latent.v_dim)
        if w.execution.unfused_attention:
            keys = w.seq_length / 2
        forward = w.tokens * 2 * keys * core / w.dims.tp
        repeats = w.recompute.granularity == "full" or "core_attn" in self._w.recompute.selected
        passes = 3.5 + repeats
        if not w.execution.unfused_attention:
            width = core / (2 * own.heads)
            reached = c.attention * min(1.0, 1.5 * width / (width + 64))
            return forward * passes / (self._on.bf16 * reached)
        scores = w.tokens * w.seq_length * own.heads / w.dims.tp
        peak = self._on.fp32 if w.numerics.in_fp32 else self._bf16 * c.bf16
        moved = scores * 12 * w.numerics.widths
        return (3 + repeats) * (2 * forward / peak + moved / (self._on.memory_bandwidth * c.memory))

    def _attention_of(self, kind: LayerKind) -> float:
        """Seconds of attention of one layer of this kind, forward and backward."""
        if kind.attention is None:
            return self._attention(heads_of(self._w.shape, kind), _keys(self._w))
        if isinstance(kind.attention, Heads):
            return self._attention(kind.attention, _keys_of(self._w, kind.attention))
        w, on, c = self._w, self._on, self._c
        full = self._recomputed_share if w.recompute.granularity == "full" else 0.0
        done = sparse_attention.work(w, kind.attention, forward_passes=1 + full)
        if isinstance(kind.attention, Indexed) or w.execution.fused_sparse_attention:
            # Taken to be as fast as dense attention of wide heads.
            flops = done.attention * (3.5 + full) + done.index
            return flops / (on.bf16 * c.attention) + done.moved * (1 + full) / (
                on.memory_bandwidth * c.memory
            )
        passes = _FORWARD_AND_BACKWARD + full
        flops = (done.attention * passes + done.index) / on.fp32
        return flops + done.moved * passes / (on.memory_bandwidth * c.memory)

    def _elementwise(self, kind: LayerKind) -> float:
        """Seconds of norms, residuals with dropout, rotation, activation, casts and permutation.

        Own derivation. Bytes moved per token in the forward pass, where h is the hidden size: for each part
        of the layer a norm, 4 h, and a residual, 6 h; rotation 4 per query and key element, activation 6
        (gated) or 4 per element, and without a fused kernel 4 more; the gate of the attention 6 per element.
        A cast to FP8 reads 2 and writes 2; with block scales it is done for rows and for columns. A token is
        permuted in both directions for each of its experts, 8 of its width; the bias of their output is added
        unfused. The backward pass moves twice as much.
        """
        w, shape = self._w, self._w.shape
        if kind.is_diffusion:
            seconds = diffusion_layers.moved_bytes(w, kind) / (self._on.memory_bandwidth * self._c.memory)
            return _FORWARD_AND_BACKWARD * seconds * w.tokens / self._sequence_split
        moved = (10.0 + 4 * (shape.norms - 1)) * kind.parts * shape.hidden
        moved += kind.parts * moved_bytes(shape.hidden, shape.streams)
        # Three norms and the router's, which read and write.
        moved += 16.0 * shape.hidden if shape.expert_norms and kind.is_moe else 0.0
        # A norm and a residual around each layer's own embedding.
        moved += 10.0 * shape.hidden if shape.per_layer_width else 0.0
        inputs = shape.hidden * kind.parts
        if kind.softmax:
            own = heads_of(shape, kind)
            heads = own.heads * own.head_dim
            moved += 4 * (heads + own.groups * own.head_dim)
            moved += 6 * heads if shape.gate or shape.head_gate else 0
            inputs += heads
            # DeepSeek-V4 normalizes each head's query in a kernel of its own, and rotates its output back.
            moved += 8 * heads if isinstance(kind.attention, Compressed) else 0
        if kind.scans:
            inputs += mixed_width(shape, kind)
        # Falcon-H1 scales the input and the output of both mixers, 4 each, and adds them.
        moved += 22.0 * shape.hidden if kind.mixer == "parallel" else 0.0
        activation = (6 if shape.gated else 4) + (4 if shape.gelu_gate else 0)
        if kind.is_moe:
            width = shape.topk * shape.expert_ffn + shape.shared_ffn
            moved += 8 * shape.topk * shape.expert_hidden + activation * width
            inputs += shape.topk * shape.expert_hidden + width
        elif kind.feed_forward is not None:
            moved += activation * ffn_of(shape, kind)
            inputs += ffn_of(shape, kind)
        if w.numerics.fp8:
            moved += (8 if w.numerics.block_scaled else 4) * inputs
        eager = self._eager_bytes(kind)
        moved = _FORWARD_AND_BACKWARD * moved / self._c.memory + eager / self._c.eager
        return moved * w.tokens / self._sequence_split / self._on.memory_bandwidth

    def _eager_bytes(self, kind: LayerKind) -> float:
        """Bytes moved per token by operations that PyTorch runs one by one: norms over all heads, and experts
        with biases.

        Transformer Engine's fuser has all of the experts' in the products.
        """
        shape, run, norms = self._w.shape, self._w.execution, 0.0
        if shape.qk_norm_of_all_heads and kind.softmax:
            own = heads_of(shape, kind)
            norms = _FULL_NORM_BYTES * (own.heads + own.groups) * own.head_dim
        if not kind.is_moe or not shape.bias or run.fused_experts:
            return norms
        clamp = _CLAMP_BYTES * shape.expert_ffn if shape.quick_geglu else 0.0
        return norms + shape.topk * (_BIAS_BYTES * shape.hidden + clamp)


def _index_products(w: Workload, kind: LayerKind) -> list[MatMul]:
    return sparse_attention.index_products(w, kind.sparse) if kind.sparse else []


def _keys(w: Workload) -> float:
    """Keys per query, averaged over all layers; a window is computed in whole tiles of 128 keys.

    Own derivation: causal attention of s tokens has s / 2 keys per query on average. Diffusion has no mask.
    """
    if w.shape.diffusion is not None:
        return diffusion_layers.keys(w)
    every, window = w.seq_length / 2, _window(w)
    return w.shape.windowed * window + (1 - w.shape.windowed) * every


def _keys_of(w: Workload, own: Heads) -> float:
    """Keys per query of a layer that has heads of its own."""
    return _window(w) if own.windowed else w.seq_length / 2


def _window(w: Workload) -> float:
    every = w.seq_length / 2
    return every if w.shape.window is None else min(every, w.shape.window + 128)
