"""The contents of images, and the settings of the machine that a build receives."""

import subprocess

import pytest
from localcluster import images
from localcluster.buildah import build_environment, scratch_dockerfile
from localcluster.errors import ClusterError
from localcluster.paths import CHECKOUT
from localcluster.systemimages import mirrors

DEB822 = """Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates

Types: deb
URIs: http://mirror.example/debian-security
"""
ONE_LINE = """# deb http://old.example/debian buster main
deb [signed-by=/usr/share/keyrings/a.gpg] https://mirror.example/debian/ trixie main
deb http://packages.example/cloud sdk main
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEB822, ["http://mirror.example/debian"]),
        (ONE_LINE, ["https://mirror.example/debian"]),
        ("", []),
    ],
    ids=["deb822", "one line", "nothing"],
)
def test_the_mirror_is_that_of_the_machine(text: str, expected: list[str]) -> None:
    assert mirrors([text]) == expected


def test_settings_of_pip_are_passed_to_uv() -> None:
    text = build_environment({"PIP_INDEX_URL": "https://index.example/simple", "HOME": "/root"})
    assert "export UV_DEFAULT_INDEX='https://index.example/simple'\n" in text
    assert "HOME" not in text


def test_settings_of_uv_take_precedence() -> None:
    text = build_environment({"PIP_INDEX_URL": "https://a.example", "UV_DEFAULT_INDEX": "https://b.example"})
    assert "export UV_DEFAULT_INDEX='https://b.example'\n" in text


def test_paths_of_the_machine_are_not_passed_on() -> None:
    text = build_environment({"PIP_FIND_LINKS": "/opt/wheels", "UV_CACHE_DIR": "/fast/cache"})
    assert "/opt/wheels" not in text
    assert "/fast/cache" not in text


def test_a_shell_reads_back_what_was_quoted() -> None:
    value = "http://user:it's $HOME@proxy:3128"
    text = build_environment({"HTTPS_PROXY": value})
    shell = ["sh", "-c", text + 'printf %s "$HTTPS_PROXY"']
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == value


def test_a_program_image_holds_only_its_files() -> None:
    assert scratch_dockerfile([("pause", "/pause")], "/pause").splitlines() == [
        "FROM scratch",
        "COPY pause /pause",
        'ENTRYPOINT ["/pause"]',
    ]


@pytest.mark.parametrize("image", images.IMAGES, ids=lambda image: image.name)
def test_dockerfiles_end_as_an_ordinary_user(image: images.Image) -> None:
    lines = (CHECKOUT / image.dockerfile).read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 1000:1000"]


@pytest.mark.parametrize("image", images.IMAGES, ids=lambda image: image.name)
def test_requirements_are_in_a_layer_before_the_code(image: images.Image) -> None:
    text = (CHECKOUT / image.dockerfile).read_text()
    assert text.index("-r /opt/megatron/requirements.txt") < text.index("/opt/megatron/source")


def test_every_node_pulls_every_image() -> None:
    pod = images.pull_pod("node-1", ["registry.local/a:dev", "registry.local/b:dev"])
    assert pod["spec"]["nodeName"] == "node-1"
    pulled = [
        (container["image"], container["imagePullPolicy"]) for container in pod["spec"]["initContainers"]
    ]
    assert pulled == [("registry.local/a:dev", "Always"), ("registry.local/b:dev", "Always")]


def test_an_unknown_image_lists_the_known_ones() -> None:
    known = "megatron-operator, megatron-trainer-cpu, megatron-trainer-bridge-cpu"
    with pytest.raises(ClusterError, match=f"one of: {known}"):
        images.find_image("megatron-trainer")


def test_build_arguments_of_an_image_are_those_of_its_dockerfile() -> None:
    for image in (*images.IMAGES, images.BRIDGE_GPU_TRAINER):
        text = (CHECKOUT / image.dockerfile).read_text()
        for name, value in image.arguments:
            assert f"\nARG {name}=" in text
            assert (CHECKOUT / "trainer-image" / value).exists()


def pins(name: str) -> set[str]:
    """`package==version` of each package of a list of requirements, with its marker."""
    lines = (CHECKOUT / "trainer-image" / name).read_text().splitlines()
    return {line.removesuffix(" \\") for line in lines if line[:1].isalnum()}


def test_bridges_image_replaces_no_package_of_the_layers_that_both_images_have() -> None:
    shared, with_bridge = pins("requirements-cpu.txt"), pins("requirements-bridge-run.txt")
    assert len(shared) > 50
    assert shared <= with_bridge
