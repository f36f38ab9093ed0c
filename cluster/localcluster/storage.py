"""StorageClass `local-shared`: ReadWriteMany volumes from Rancher's local-path-provisioner.

Both nodes are on one machine, so a folder on it serves as the shared file system.
"""

from __future__ import annotations

import json

import yaml

from localcluster.addresses import SYSTEM_NODE
from localcluster.binaries import Binaries
from localcluster.controlplane import ControlPlane
from localcluster.kubectl import LOADER, Kubectl, Object
from localcluster.systemimages import BASE_IMAGE, PROVISIONER_IMAGE

MODULE = "github.com/rancher/local-path-provisioner"
CLASS = "local-shared"
NAMESPACE = "local-path-storage"


def adapt(objects: list[Object], folder: str) -> list[Object]:
    """The provisioner's own manifest with this cluster's image, folder and storage class."""
    for item in objects:
        if item["kind"] == "Deployment":
            pod = item["spec"]["template"]["spec"]
            pod["nodeSelector"] = {"kubernetes.io/hostname": SYSTEM_NODE}
            pod["containers"][0]["image"] = PROVISIONER_IMAGE
            pod["containers"][0]["command"] = ["/usr/bin/local-path-provisioner", "start"]
            pod["containers"][0]["command"] += ["--config", "/etc/config/config.json"]
        elif item["kind"] == "StorageClass":
            item["metadata"] = {
                "name": CLASS,
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            }
            # Every node has the folder, so binding need not wait for a pod's node.
            item["volumeBindingMode"] = "Immediate"
        elif item["kind"] == "ConfigMap":
            data = item["data"]
            data["config.json"] = json.dumps({"nodePathMap": [], "sharedFileSystemPath": folder})
            data["helperPod.yaml"] = data["helperPod.yaml"].replace("image: busybox", f"image: {BASE_IMAGE}")
    return objects


def install(plane: ControlPlane, kubectl: Kubectl, binaries: Binaries) -> None:
    """Apply the provisioner and its storage class. Raises ClusterError."""
    folder = plane.paths.home / "volumes"
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    source = binaries.module_directory("local-path-provisioner", MODULE)
    text = (source / "deploy" / "local-path-storage.yaml").read_text()
    objects = [item for item in yaml.load_all(text, Loader=LOADER) if item]
    kubectl.apply(adapt(objects, str(folder)))
