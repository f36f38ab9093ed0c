"""Seconds of communication that computation does not overlap, per micro batch or per step of one rank."""

from megatron_operator.planner.estimate.calibration import Calibration
from megatron_operator.planner.estimate.hardware import Accelerator
from megatron_operator.planner.estimate.layers import LayerKind
from megatron_operator.planner.estimate.model_shape import heads_of
from megatron_operator.planner.estimate.products import projections
from megatron_operator.planner.estimate.sparse_parameters import key_width
from megatron_operator.planner.estimate.workload import Workload


class CommunicationModel:
    """Communication of one workload on one accelerator. All methods return seconds of one rank.

    Ranks are ordered as in Megatron: tensor within context within data within pipeline (`tp-cp-ep-dp-pp`). A
    group that spans no more ranks than an NVLink domain uses the link; others cross the network, and where a
    platform describes racks or blocks, the uplinks of those that are smaller than the group. Neighbours in a
    group are as far apart as the ranks of all groups before it; of the ranks of a domain, those at its border
    alone send out of it, and share its uplinks. In the formulas s is the part of the sequence on one
    context-parallel rank, in tokens, b the micro batch in samples and h the hidden size.
    """

    def __init__(self, w: Workload, on: Accelerator, constants: Calibration) -> None:
        self._w, self._c = w, constants
        self._domain = on.domain
        self._link = on.link_bandwidth * constants.link
        self._network = on.network_bandwidth * constants.network
        self._levels = [(level.ranks, level.uplink * constants.network) for level in on.levels]

    def _seconds(self, moved: float, span: int, stride: int) -> float:
        """Seconds to move activations, of `moved` bytes in 16 bits, within a group that spans `span` ranks,
        every `stride`th of them."""
        moved *= self._w.numerics.widths
        nearest = moved / (self._link if span <= self._domain else self._network)
        return max(nearest, self._uplinks(moved, span, stride))

    def _uplinks(self, moved: float, span: int, stride: int) -> float:
        """Seconds that the slowest uplink needs for what each rank sends to the next one of its group."""
        crossed = [moved / max(1, ranks // stride) / uplink for ranks, uplink in self._levels if span > ranks]
        return max(crossed, default=0.0)

    def tensor(self, kind: LayerKind) -> float:
        """Tensor-parallel communication of one layer, forward and backward, for one micro batch.

        With sequence parallelism an all-gather and a reduce-scatter each around attention and the
        feed-forward network, in both directions: 8 x (t - 1)/t x 2 s b h bytes, where t is TP
        (arXiv:2205.05198, section 4.2.2). Without it, four all-reduces of the same volume. Experts replace
        the second pair with their own exchange, a layer of a hybrid model has one of the two, and a Mamba-2
        mixer beside attention has a third. So has Wan around the text's attention, and it gathers queries,
        keys and the text's queries of all heads for their norms; their gradients are gathered as well
        (`DiTSelfAttention`).
        """
        w = self._w
        if w.dims.tp == 1:
            return 0.0
        pairs = 4 * (kind.branches - (kind.is_moe and not w.shape.shared_ffn)) + 6 * (kind.mixer == "cross")
        seconds = self._seconds(
            pairs * (w.dims.tp - 1) / w.dims.tp * 2 * w.tokens * w.shape.hidden, w.dims.tp, 1
        )
        return seconds * (1 - self._c.hidden if w.execution.tensor_overlap else 1)

    def context(self, kind: LayerKind, attention: float) -> float:
        """Keys and values passed around the context-parallel ring, less what attention overlaps.

        `attention` is the seconds of attention of one layer of this kind. Forward (c - 1) blocks of keys and
        values, backward the same blocks and their gradients, where c is CP (arXiv:2310.01889, section 3). The
        transfer of a block overlaps the attention of the previous one.
        """
        w, shape = self._w, self._w.shape
        if w.dims.cp == 1 or not kind.attends or kind.sparse:
            return 0.0
        own = heads_of(shape, kind)
        width = 2 * own.groups * own.head_dim
        if shape.latent is not None:
            width = shape.heads * (shape.latent.qk_dim + shape.latent.rope_dim + shape.latent.v_dim)
        block = 2 * w.tokens * max(width / w.dims.tp, 2 * own.head_dim)
        seconds = self._seconds(3 * (w.dims.cp - 1) * block, w.dims.tp * w.dims.cp, w.dims.tp)
        return max(seconds - self._c.hidden * attention, seconds * (1 - self._c.hidden))

    def gathered_keys(self, kind: LayerKind) -> float:
        """All-gather of the keys of attention that selects or compresses them, and reduce-scatter of their
        gradients, of one layer; nothing overlaps them (`cp_comm_type` allgather in `DSAttention`).

        2 x 2 (c - 1) s b w bytes, where c is CP and w the width of the one key that all heads share, and of
        the indexer's.
        """
        w = self._w
        width = key_width(w.shape, kind)
        return self._seconds(4 * w.tokens * width * (w.dims.cp - 1), w.dims.tp * w.dims.cp, w.dims.tp)

    def heads(self, kind: LayerKind) -> float:
        """All-to-all of a Mamba-2 layer or a gated delta net, forward and backward, which gives each
        context-parallel rank some of the heads of all tokens (`mamba_context_parallel.py`).

        2 x 2 (c - 1)/c bytes per token and element of the input projection's result and the output
        projection's input, where c is CP.
        """
        w = self._w
        if w.dims.cp == 1 or not kind.scans:
            return 0.0
        width = sum(projections(w.shape, kind)) / w.dims.tp
        moved = 4 * w.tokens * width * (w.dims.cp - 1) / w.dims.cp
        return self._seconds(moved, w.dims.tp * w.dims.cp, w.dims.tp)

    def expert(self) -> float:
        """All-to-all of tokens to their experts and back, forward and backward, for one layer.

        4 x 2 s b h k e / t bytes per rank, where k is the experts per token, e is ETP and t is TP, less the
        rank's own share of 1 / EP; own derivation from the shapes that Megatron's dispatchers exchange.
        Between domains every copy of a token crosses the network. The flex dispatcher (DeepEP, HybridEP)
        sends a token once to each domain that has some of its experts; the k experts are assumed to be spread
        evenly.
        """
        w, shape = self._w, self._w.shape
        if w.dims.ep == 1:
            return 0.0
        span = w.dims.ep * w.dims.etp
        moved = (
            4
            * 2
            * w.numerics.widths
            * w.tokens
            / w.dims.tp
            * shape.expert_hidden
            * shape.topk
            * w.dims.etp
            * (w.dims.ep - 1)
            / w.dims.ep
        )
        if span <= self._domain:
            seconds = moved / self._link
        else:
            domains = span / self._domain
            away = 1 - 1 / domains
            copies = (
                domains * (1 - away**shape.topk) / shape.topk if w.execution.deduplicated_dispatch else 1.0
            )
            crossed = [
                moved * (1 - ranks / span) * copies / uplink for ranks, uplink in self._levels if span > ranks
            ]
            seconds = max(moved * away * copies / self._network, moved / self._link, *crossed)
        return seconds * (1 - self._c.hidden * self._paired if w.execution.expert_overlap else 1)

    @property
    def _paired(self) -> float:
        """Share of the forward passes that run together with a backward pass, which hides their exchange.

        The first forward pass has none and the last backward pass runs alone
        (`combined_1f1b_schedule_for_no_pipelining`), with v virtual stages the first (v - 1) p + 1 of the
        last of p stages (`get_pp_rank_microbatches`); what earlier stages run before is in the bubble.
        """
        dims = self._w.dims
        alone = (dims.vp - 1) * dims.pp + 1
        return max(0.0, 1 - alone / (self._w.micro_batches * dims.vp))

    def pipeline(self) -> float:
        """Activations to the next stage and gradients back: 2 x 2 s b h / t bytes for each chunk and each
        residual stream.

        Own derivation, where t is TP, or 1 without sequence parallelism. The slowest boundary between
        stages determines the time. Interleaved stages send while they compute
        (`--overlap-p2p-communication`, on by default).
        """
        w = self._w
        if w.dims.pp == 1:
            return 0.0
        moved = (
            4
            * w.tokens
            * w.shape.streams
            * w.shape.hidden
            / (w.dims.tp if w.split_sequence else 1)
            * w.dims.vp
        )
        seconds = self._seconds(moved, w.dims.world_size, w.dims.world_size // w.dims.pp)
        return seconds * (1 - self._c.hidden if w.dims.vp > 1 else 1)

    def data(self, held: tuple[float, float, float], forward: float, backward: float) -> float:
        """Gradient reduction and parameter gathering of one step, less what a micro batch overlaps.

        `held` are parameters as `held_parameters` returns them, `forward` and `backward` seconds of the
        passes that may overlap. Reduce-scatter of the gradients and all-gather of the parameters move
        (d - 1)/d of their bytes each, where d is DP (arXiv:1910.02054, section 7). With several ranks of a
        group in one domain, the NIC of each carries a part. The former overlaps the last backward pass
        (`--overlap-grad-reduce`), the latter the first forward pass (`--overlap-param-gather`). Megatron FSDP
        gathers the weights for the forward and for the backward pass of each micro batch, and reduces its
        gradients (`megatron_fsdp.py` of megatron-core 0.19.2).
        """
        w, n, run = self._w, self._w.numerics, self._w.execution
        layers, experts, vocabulary = held
        reduced = gathered = 0.0
        for parameters, copies, stride in (
            (layers + vocabulary, w.dims.dp * w.dims.cp, w.dims.tp),
            (experts, w.dims.expert_dp, w.dims.ep * w.dims.etp),
        ):
            if copies == 1 or not parameters:
                continue
            seconds = self._ring(parameters * (copies - 1) / copies, copies, stride)
            reduced += n.gradient * seconds
            gathered += n.gathered_weight * seconds
        of_forward = self._visible(gathered, forward, run.parameter_overlap)
        if w.fully_sharded:
            of_backward = self._visible(gathered + reduced, backward, run.gradient_overlap)
            return w.micro_batches * (of_forward + of_backward)
        return self._visible(reduced, backward, run.gradient_overlap) + of_forward

    def _ring(self, moved: float, copies: int, stride: int) -> float:
        if copies * stride <= self._domain:
            return moved / self._link
        nics = max(1, self._domain // stride)
        return max(
            moved / min(self._link, self._network * nics), self._uplinks(moved, copies * stride, stride)
        )

    def _visible(self, seconds: float, overlapped: float, overlap: bool) -> float:
        if not overlap:
            return seconds
        return max(seconds - self._c.hidden * overlapped, seconds * (1 - self._c.hidden))
