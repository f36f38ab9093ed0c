"""Adam with the interface of Apex's and Transformer Engine's FusedAdam, for machines that have neither.

torch.optim.Adam keeps `step` as a tensor in the state of every parameter. Megatron's distributed optimizer
expects it once in the parameter group, as in FusedAdam; otherwise it fails at the first resume
(`assert len(steps) == 1` over a state that does not exist yet).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.adam import adam


class FusedAdamOnCpu(torch.optim.Optimizer):
    """Adam (Kingma and Ba, 2015) or AdamW (Loshchilov and Hutter, 2019) through torch's own fused CPU kernel.

    `lr`, `betas`, `eps` and `weight_decay` are the papers' dimensionless constants. Raises ValueError for
    `capturable`. The state of a parameter is `exp_avg` and `exp_avg_sq`, of its shape and dtype. `step`, the
    number of updates done, is in the parameter group. As in Transformer Engine's, a parameter without
    gradient has a state too: Megatron FSDP saves the states of all, also where a rank has no part of one.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
        capturable: bool = False,
    ) -> None:
        if capturable:
            raise ValueError("capturable: a CPU has no CUDA graph to capture the optimizer in")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": True,
        }
        super().__init__(params, defaults)
        self.adam_w_mode = adam_w_mode

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Do one update of every parameter that has a gradient. Returns what `closure` returned, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = int(group.get("step", 0)) + 1
            params = [p for p in group["params"] if p.grad is not None]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p.data)
                    state["exp_avg_sq"] = torch.zeros_like(p.data)
            beta1, beta2 = group["betas"]
            adam(
                params,
                [p.grad for p in params],
                [self.state[p]["exp_avg"] for p in params],
                [self.state[p]["exp_avg_sq"] for p in params],
                [],
                # torch's kernel increments the step itself.
                [torch.tensor(float(group["step"] - 1), device=p.device) for p in params],
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
                decoupled_weight_decay=self.adam_w_mode,
            )
        return loss
