"""PersistentVolumes for the claims of runs whose pods KWOK simulates: nothing is ever mounted."""

import logging
import threading

import urllib3

from testkit.api_server import Api, Object
from testkit.errors import ApiError

log = logging.getLogger(__name__)


def fake_volume(name: str, storage_class: str) -> Object:
    """A volume of 1 GiB that one claim can be bound to, and that outlives it."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "storageClassName": storage_class,
            "hostPath": {"path": "/nonexistent"},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }


class FakeProvisioner:
    """Stands in for a storage class's provisioner: a volume for each claim, deleted once it is released."""

    def __init__(self, api: Api, storage_class: str, interval: float = 0.2) -> None:
        """`interval` is the time between two reads of the claims, in seconds."""
        self._api = api
        self._storage_class = storage_class
        self._interval = interval
        self._made: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to provision."""
        self._thread.start()

    def stop(self) -> None:
        """End, and delete all volumes that were made."""
        self._stopping.set()
        self._thread.join()
        for name in self._made:
            self._api.delete("PersistentVolume", None, name)

    def provision(self) -> None:
        """Make the volumes that are missing, delete those that are released.

        Raises ApiError, and urllib3's HTTPError where the server is unreachable.
        """
        for claim in self._api.list("PersistentVolumeClaim"):
            spec, metadata = claim["spec"], claim["metadata"]
            if spec.get("storageClassName") != self._storage_class or spec.get("volumeName"):
                continue
            volume = fake_volume(f"{self._storage_class}-{metadata['uid']}", self._storage_class)
            volume["spec"]["claimRef"] = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                **{key: metadata[key] for key in ("namespace", "name", "uid")},
            }
            volume["spec"]["capacity"] = dict(spec["resources"]["requests"])
            volume["spec"]["accessModes"] = list(spec["accessModes"])
            self._api.apply(volume)
            self._made.add(volume["metadata"]["name"])
        for volume in self._api.list("PersistentVolume"):
            name = volume["metadata"]["name"]
            if name in self._made and (volume.get("status") or {}).get("phase") == "Released":
                self._api.delete("PersistentVolume", None, name)
                self._made.discard(name)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            try:
                self.provision()
            except (ApiError, urllib3.exceptions.HTTPError) as error:
                # Tests stop the API server and etcd.
                log.info("the claims are read again: %s", error)
