"""Products, activations and memory traffic of a layer of a diffusion transformer on one rank."""

from megatron_operator.planner.estimate.layers import Diffusion, LayerKind
from megatron_operator.planner.estimate.matmul import MatMul
from megatron_operator.planner.estimate.workload import Workload


def _sizes(w: Workload) -> Diffusion:
    assert w.shape.diffusion is not None, "only for diffusion transformers"
    return w.shape.diffusion


def _text(w: Workload) -> float:
    """Tokens of text of one micro batch; each context-parallel rank has all that Wan attends to."""
    return _sizes(w).text_tokens * w.micro_batch


def products(w: Workload, kind: LayerKind) -> list[MatMul]:
    """Matrix products of the forward pass of one layer on one rank."""
    h, f, tp, d = w.shape.hidden, w.shape.ffn, w.dims.tp, _sizes(w)

    def layer(rows: float) -> list[MatMul]:
        return [
            MatMul(rows, h, 3 * h / tp),
            MatMul(rows, h / tp, h),
            MatMul(rows, h, f / tp),
            MatMul(rows, f / tp, h),
        ]

    if kind.mixer == "cross":
        across = [MatMul(w.tokens, h, h / tp), MatMul(w.tokens, h / tp, h)]
        return [*layer(w.tokens), *across, MatMul(_text(w), d.text_hidden, 2 * h / tp)]
    if kind.mixer == "single":
        return [*layer(w.tokens), MatMul(w.micro_batch, h, 3 * h / tp)]
    text = _text(w) / w.dims.cp
    return [*layer(w.tokens - text), *layer(text), *2 * [MatMul(w.micro_batch, h, 6 * h / tp)]]


def keys(w: Workload) -> float:
    """Keys of a query: all of the sequence, and in Wan the text in a second attention."""
    d = _sizes(w)
    return w.seq_length + (0 if d.joint else d.text_tokens)


def layer_bytes(w: Workload, kind: LayerKind) -> float:
    """Bytes that one layer keeps of one micro batch on one rank.

    Own derivation, with 2 bytes an element, for each token: of each modulated part the input and the output
    of its norm, the modulated output, and what the gate multiplies, 8 h; queries, keys, values, the inputs of
    the norms of queries and keys, and the attention's output, 12 h; the first product and the activation,
    4 f. A single layer has one norm and one gate. The text's attention of Wan has the input and the output of
    a norm, 4 h, queries, the input of their norm and the output, 6 h, and keys and values of the text. Its
    norms of queries and keys read all heads, so that with tensor parallelism each rank keeps all of these.
    """
    h, f, tp = w.shape.hidden, w.shape.ffn, w.dims.tp
    split, whole = 12.0 * h + 4 * f, 8.0 * h * (1 if kind.mixer == "single" else 2)
    text = gathered = 0.0
    if kind.mixer == "cross":
        split, whole, gathered = split + 6 * h, whole + 4 * h, 6.0 * h
        text = _text(w) * 6 * h / tp
    normed = gathered * (1 - 1 / tp)
    return w.tokens * (split / tp + normed + whole / (tp if w.split_sequence else 1)) + text


def moved_bytes(w: Workload, kind: LayerKind) -> float:
    """Bytes moved per token by memory-bound kernels in the forward pass.

    Own derivation: a modulated part reads and writes for its norm, 4 h, its modulation, 4 h, and its gated
    residual, 6 h; norms and rotation of queries and keys 16 h, the activation 4 f. A single layer adds
    attention and feed-forward part, 6 h. The text's attention of Wan has a norm, 4 h, that of its queries,
    4 h, and a residual, 6 h.
    """
    h, f = w.shape.hidden, w.shape.ffn
    parts = {"joint": 28, "single": 14 + 6, "cross": 28 + 14}[str(kind.mixer)]
    return (parts + 16) * h + 4 * f
