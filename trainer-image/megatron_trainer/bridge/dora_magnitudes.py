"""DoRA's magnitudes at a tensor-parallel size above 1: one for each row of the whole weight.

Of a layer whose input is split over the ranks Bridge 0.6.2 takes the norm of the columns that a rank has.
Each rank would scale the output of all by another factor, and what one of them has would be saved.
"""

from typing import Any


def install() -> None:
    """Call it once in a process, after Bridge is imported and before it adds adapters."""
    from megatron.bridge.peft.dora_layers import DoRALinear, ParallelLinearDoRAAdapter

    inner, begin = DoRALinear._get_weight_norm, ParallelLinearDoRAAdapter.init_weight_magnitude

    def norms(layer: Any) -> Any:
        return _norms_of_split_rows(layer) if layer.adapter.input_is_parallel else inner(layer)

    def init_weight_magnitude(adapter: Any, value: Any) -> None:
        begin(adapter, value)
        if adapter.input_is_parallel:
            # Each rank has the gradient of a part of the tokens; Megatron adds them up.
            adapter.weight_magnitude.sequence_parallel = adapter.config.sequence_parallel

    DoRALinear._get_weight_norm = norms
    ParallelLinearDoRAAdapter.init_weight_magnitude = init_weight_magnitude


def _norms_of_split_rows(layer: Any) -> Any:
    """Norms of the rows of W + s B A, [outputs], in the dtype of the weight."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

    with torch.no_grad():
        adapter = layer.adapter
        outputs = gather_from_tensor_model_parallel_region(adapter.linear_out.weight.T).T
        weight = layer.to_wrap.weight + layer.scaling * outputs @ adapter.linear_in.weight
        squares = weight.float().square().sum(dim=1)
        if parallel_state.get_tensor_model_parallel_world_size() > 1:
            group = parallel_state.get_tensor_model_parallel_group()
            torch.distributed.all_reduce(squares, group=group)
        return squares.sqrt().to(weight.dtype)
