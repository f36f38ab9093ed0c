"""The diffusion recipes that `make bridge-training` trains on CPU ranks (tests/trainer/test_diffusion.py)."""

from typing import Final

WAN: Final = "wan2.1-1.3b"
FLUX: Final = "flux1-12b"
PRETRAINED: Final = (WAN, FLUX)
"""On random latents, from random weights."""
FINE_TUNED: Final = (f"{WAN}-sft", f"{FLUX}-sft")
"""On latents from tar files, from the weights of the other two."""
