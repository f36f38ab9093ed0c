"""Has Megatron-Bridge read which part of a head of GLM-4.5, Nemotron-4 and Qwen3-Next is rotated.

transformers 5 keeps `partial_rotary_factor` of config.json in `rope_parameters`, where Bridge 0.6.2 does not
look: it would rotate all of a head.
"""


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.glm import GLM45Bridge
    from megatron.bridge.models.nemotron.nemotron_bridge import NemotronBridge
    from megatron.bridge.models.qwen.qwen3_next_bridge import Qwen3NextBridge

    for bridge in (GLM45Bridge, NemotronBridge, Qwen3NextBridge):
        bridge.CONFIG_MAPPING = [
            *bridge.CONFIG_MAPPING,
            ("rope_parameters.partial_rotary_factor", "rotary_percent"),
        ]
