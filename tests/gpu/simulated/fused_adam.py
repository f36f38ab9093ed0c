"""A fused Adam for Megatron's distributed optimizer, which takes it from Transformer Engine or Apex only.

Megatron and the trainer are imported already when this module is.
"""

import megatron.core.optimizer
import megatron.core.optimizer.distrib_optimizer
from megatron_trainer.platform.adam import FusedAdamOnCpu

megatron.core.optimizer.Adam = FusedAdamOnCpu
megatron.core.optimizer.USING_PYTORCH_OPTIMIZER = False
megatron.core.optimizer.distrib_optimizer.HAVE_APEX_OR_TE = True
megatron.core.optimizer.distrib_optimizer.USING_APEX_OPTIMIZER = True
