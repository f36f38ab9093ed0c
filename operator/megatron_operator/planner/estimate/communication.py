"""Seconds of communication that computation does not hide, for one micro batch or one step of one rank."""

from megatron_operator.planner.estimate.calibration import Calibration
from megatron_operator.planner.estimate.hardware import Accelerator
from megatron_operator.planner.estimate.workload import Workload


class CommunicationModel:
    """Communication of one workload on one accelerator.

    Ranks lie as Megatron orders them, tensor inside context inside data inside pipeline (`tp-cp-ep-dp-pp`),
    so a group whose ranks span no more than the link's domain stays on the link; others cross the network.
    """

    def __init__(self, w: Workload, on: Accelerator, constants: Calibration) -> None:
        self._w, self._c = w, constants
        self._domain = on.domain
        self._link = on.link_bandwidth * constants.link
        self._network = on.network_bandwidth * constants.network

    def _seconds(self, moved: float, span: int) -> float:
        """Time to move bytes within a group that spans so many ranks."""
        return moved / (self._link if span <= self._domain else self._network)

    def tensor(self, *, moe: bool) -> float:
        """Tensor-parallel exchanges of one layer, forward and backward.

        With sequence parallelism an all-gather and a reduce-scatter each around attention and the
        feed-forward network, in both directions: 8 x (t - 1)/t x 2 s b h bytes (arXiv:2205.05198, 4.2.2);
        without, four all-reduces of the same volume. Experts have exchanges of their own in the place of the
        second pair.
        """
        w = self._w
        if w.tp == 1:
            return 0.0
        pairs = 4 if moe and not w.shape.shared_ffn else 8
        seconds = self._seconds(pairs * (w.tp - 1) / w.tp * 2 * w.tokens * w.shape.hidden, w.tp)
        return seconds * (1 - self._c.hidden if w.execution.tensor_overlap else 1)

    def context(self, attention: float) -> float:
        """Keys and values sent round the context-parallel ring, less what attention hides.

        Forward (c - 1) blocks of keys and values, backward the same and their gradients (arXiv:2310.01889,
        3); a block's transfer hides behind the attention of the block before.
        """
        w, shape = self._w, self._w.shape
        if w.cp == 1:
            return 0.0
        width = 2 * shape.groups * shape.head_dim
        if shape.latent is not None:
            width = shape.heads * (shape.latent.qk_dim + shape.latent.rope_dim + shape.latent.v_dim)
        block = 2 * w.tokens * max(width / w.tp, 2 * shape.head_dim)
        seconds = self._seconds(3 * (w.cp - 1) * block, w.tp * w.cp)
        return max(seconds - self._c.hidden * attention, seconds * (1 - self._c.hidden))

    def expert(self) -> float:
        """Tokens to their experts and back, forward and backward: 4 x 2 s b h k bytes a rank, less their own
        share.

        Between domains every copy of a token crosses the network; the flex dispatcher (DeepEP, HybridEP)
        sends a token once to each domain that has some of its experts, k experts being evenly spread over
        them.
        """
        w, shape = self._w, self._w.shape
        if w.ep == 1:
            return 0.0
        span = w.ep * w.etp
        moved = 4 * 2 * w.tokens / w.tp * shape.hidden * shape.topk * w.etp * (w.ep - 1) / w.ep
        if span <= self._domain:
            seconds = moved / self._link
        else:
            domains = span / self._domain
            away = 1 - 1 / domains
            copies = (
                domains * (1 - away**shape.topk) / shape.topk if w.execution.deduplicated_dispatch else 1.0
            )
            seconds = max(moved * away * copies / self._network, moved / self._link)
        return seconds * (1 - self._c.hidden if w.execution.expert_overlap else 1)

    def pipeline(self) -> float:
        """Activations to the next stage and gradients back: 2 x 2 s b h / (t c) bytes for each chunk.

        The slowest boundary between stages sets the pace. Interleaved stages send while they compute
        (`--overlap-p2p-communication`, on by default).
        """
        w = self._w
        if w.pp == 1:
            return 0.0
        moved = 4 * w.tokens * w.shape.hidden / (w.tp if w.split_sequence else 1) * w.virtual
        seconds = self._seconds(moved, w.world)
        return seconds * (1 - self._c.hidden if w.virtual > 1 else 1)

    def data(self, held: tuple[float, float, float], forward: float, backward: float) -> float:
        """Gradients reduced and parameters gathered once a step, less what a micro batch's passes hide.

        Reduce-scatter of the gradients and all-gather of the parameters move (d - 1)/d of their bytes each
        (arXiv:1910.02054, 7); with several ranks of a group in one domain each one's NIC carries a part. The
        first runs behind the last backward pass (`--overlap-grad-reduce`), the second behind the first
        forward pass (`--overlap-param-gather`).
        """
        w, n, run = self._w, self._w.numerics, self._w.execution
        layers, experts, vocabulary = held
        reduced = gathered = 0.0
        for parameters, copies, stride in (
            (layers + vocabulary, w.dp * w.cp, w.tp),
            (experts, w.expert_dp, w.ep * w.etp),
        ):
            if copies == 1 or not parameters:
                continue
            seconds = self._ring(parameters * (copies - 1) / copies, copies, stride)
            reduced += n.gradient * seconds
            gathered += n.gathered_weight * seconds
        return self._visible(reduced, backward, run.gradient_overlap) + self._visible(
            gathered, forward, run.parameter_overlap
        )

    def _ring(self, moved: float, copies: int, stride: int) -> float:
        if copies * stride <= self._domain:
            return moved / self._link
        neighbours = max(1, self._domain // stride)
        return moved / min(self._link, self._network * neighbours)

    def _visible(self, seconds: float, behind: float, overlap: bool) -> float:
        if not overlap:
            return seconds
        return max(seconds - self._c.hidden * behind, seconds * (1 - self._c.hidden))
