"""A matrix product and its cost."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MatMul:
    """A matrix product of `rows` x `inner` by `inner` x `columns`, `count` of them in one launch."""

    rows: float
    inner: float
    columns: float
    count: float = 1
    in_bf16: bool = False
    """Whether it is in BF16 where linear layers are in FP8."""

    def work(self, edge: float) -> float:
        """FLOPs including partly filled tiles: each dimension costs `edge` elements more than it has."""
        return 2 * (self.rows + edge) * (self.inner + edge) * (self.columns + edge) * self.count

    @property
    def operands(self) -> tuple[float, float, float]:
        """Elements of the input, the weight and the result, of all `count` products."""
        rows, inner, columns = self.count * self.rows, self.inner, self.columns
        return rows * inner, self.count * inner * columns, rows * columns
