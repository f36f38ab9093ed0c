"""Weights of an optimizer on the CPU (`--optimizer-cpu-offload`) after a load without its states.

Megatron Core 0.19.2 renews its FP32 copies of BF16 and FP16 parameters. It leaves out the copies of those
that are in FP32 themselves, and all of an FP32 model: the first step would write the initial values back.
"""

from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer


def follow(*loaded: object) -> None:
    """Copy a model's parameters to those that its optimizer updates, unless it has states.

    `loaded`: what Megatron's load has been given, among it the optimizer. With states of a checkpoint it has
    the checkpoint's own copies, which are more precise. Does nothing for other optimizers.
    """
    for optimizer in loaded:
        for each in getattr(optimizer, "chained_optimizers", (optimizer,)):
            offloading = getattr(each, "optimizer", None)
            if isinstance(offloading, HybridDeviceOptimizer) and not offloading.state:
                for parameter, updated in offloading.param_to_inner_param.items():
                    if updated is not parameter:
                        updated.data.copy_(parameter.data)
