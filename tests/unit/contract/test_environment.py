"""The environment variables of a trainer pod."""

from megatron_contract import environment


def test_every_variable_is_described() -> None:
    names = {value for name, value in vars(environment).items() if name.startswith("ENV_")}
    assert set(environment.SETTINGS) == names


def test_every_default_is_part_of_the_description() -> None:
    for name, default in vars(environment).items():
        if name.startswith("DEFAULT_"):
            variable = vars(environment)[name.replace("DEFAULT_", "ENV_")]
            assert f"default {default}" in environment.SETTINGS[variable]
