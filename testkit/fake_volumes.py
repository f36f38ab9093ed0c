"""PersistentVolumes for the claims of runs whose pods KWOK simulates: nothing is ever mounted."""

from testkit.api_server import Object


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
