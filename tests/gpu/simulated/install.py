"""Puts the simulated CUDA driver into a folder that pods of the local cluster mount."""

import shutil
from pathlib import Path

from tests.gpu.simulated import build
from tests.gpu.simulated.control import Devices

HERE = Path(__file__).parent
NAME = "simulated-cuda"
STATES = "devices"
# The order of imports: what `sitecustomize` imports is beside it.
MODULES = (HERE / "pod" / "sitecustomize.py", HERE / "fused_adam.py", HERE / "host_decisions.py")


def install(folder: Path) -> Devices:
    """Build the driver into `folder`, with what pods need besides it. Returns the node's devices, healthy."""
    folder.mkdir(parents=True, exist_ok=True)
    build.build(folder)
    for module in MODULES:
        shutil.copy(module, folder)
    (folder / STATES).unlink(missing_ok=True)
    devices = Devices(folder / STATES)
    # A device writes its state too, as another user.
    devices.path.chmod(0o666)
    return devices
