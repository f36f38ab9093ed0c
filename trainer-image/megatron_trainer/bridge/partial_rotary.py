"""Has Megatron-Bridge read which part of a head of GLM-4.5 is rotated.

transformers 5 keeps `partial_rotary_factor` of config.json in `rope_parameters`, where Bridge 0.6.2 does not
look: it would rotate all of a head.
"""


def install() -> None:
    """Call it once in a process, after Bridge is imported."""
    from megatron.bridge.models.glm import GLM45Bridge

    GLM45Bridge.CONFIG_MAPPING = [
        *GLM45Bridge.CONFIG_MAPPING,
        ("rope_parameters.partial_rotary_factor", "rotary_percent"),
    ]
