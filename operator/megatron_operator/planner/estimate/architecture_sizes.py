"""Sizes of the layers and towers that only Megatron-Bridge builds, from the catalog."""

from megatron_operator.catalog.architecture import Architecture, TowerSpec
from megatron_operator.planner.estimate.layers import DeltaNet, Diffusion, Mamba, Tower


def mamba(more: Architecture) -> Mamba | None:
    sizes = (more.mamba_num_heads, more.mamba_head_dim, more.mamba_state_dim, more.mamba_num_groups)
    if not all(sizes):
        return None
    heads, head_dim, state, groups = (size or 0 for size in sizes)
    return Mamba(heads, head_dim, state, groups, norm=more.mamba_norm is not False)


def delta(more: Architecture) -> DeltaNet | None:
    sizes = (
        more.linear_num_key_heads,
        more.linear_key_head_dim,
        more.linear_num_value_heads,
        more.linear_value_head_dim,
    )
    return DeltaNet(*map(int, sizes)) if all(sizes) else None  # type: ignore[arg-type]


def towers(more: Architecture) -> tuple[Tower, ...]:
    specs = [tower for tower in (more.tower, more.sound_tower) if tower is not None]
    return tuple(_tower(tower, 1 / len(specs)) for tower in specs)


def _tower(tower: TowerSpec, share: float) -> Tower:
    trained = tower.trained_parameters
    return Tower(
        layers=tower.layers,
        hidden=tower.hidden_size,
        ffn=tower.ffn_hidden_size,
        heads=tower.num_attention_heads,
        groups=tower.num_query_groups or tower.num_attention_heads,
        gated=tower.gated,
        conformer=tower.conformer,
        parameters=tower.parameters,
        trained=tower.parameters if trained is None else trained,
        projector=tower.projector_parameters,
        patches_per_token=tower.patches_per_token,
        split=tower.tensor_parallel,
        deepstack=tower.deepstack_layers,
        share=share,
    )


def diffusion(more: Architecture, hidden: int) -> Diffusion | None:
    spec = more.diffusion
    if spec is None:
        return None
    return Diffusion(
        joint=spec.joint_layers is not None,
        latent_channels=spec.latent_channels,
        text_channels=spec.text_channels,
        text_tokens=spec.text_tokens,
        text_hidden=hidden,
        time_channels=spec.time_channels,
        pooled_channels=spec.pooled_channels or 0,
        guidance=spec.guidance,
        latent_tokens=spec.latent_tokens,
    )
