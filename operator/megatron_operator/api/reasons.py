"""Reasons of conditions and Events, each with what it means and what a user can do about it.

Declared once: the controller reports a member, `reference` prints the table of docs/operations.md from here.
"""

from enum import StrEnum


class Reason(StrEnum):
    """A `reason` as users and alerts read it. Renaming a value breaks both."""

    reported: str
    """Conditions and Events that carry the reason."""
    meaning: str
    action: str
    """What to do; empty where nothing is to be done."""

    def __new__(cls, value: str, reported: str, meaning: str, action: str = "") -> "Reason":
        member = str.__new__(cls, value)
        member._value_ = value
        member.reported, member.meaning, member.action = reported, meaning, action
        return member

    PLANNED = "Planned", "`Planned=True`", "The layout is chosen; the message shows it."
    REFUSED = (
        "Refused",
        "`Planned=False`, Event",
        "The recipe contradicts itself, the model or the platform, and no job is created for it.",
        "Correct the fields that the message names.",
    )
    CHECKPOINT_INCOMPATIBLE = (
        "CheckpointIncompatible",
        "`Planned=False`, Event",
        "The run's checkpoints cannot be loaded after this change. A running job continues unchanged.",
        "Revert the change, or create another recipe.",
    )
    INTERNAL_ERROR = (
        "InternalError",
        "`InternalError=True`, `Running=False`, Event",
        "The operator failed on this recipe in an unexpected way; its log has the traceback. A running job "
        "continues and is followed as it is, `suspend` and deletion work, and the operator retries.",
        "Report it with the traceback. Until it is fixed, another spec may avoid it.",
    )

    PLANNER_TIMEOUT = (
        "PlannerTimeout",
        "`Planned=False`, Event",
        "Planning was stopped at its limit of processor time or memory, which the message names. A running "
        "job continues unchanged. It is planned again when spec, platform, catalog or operator change.",
        "Correct sizes that are far too large, or set the parallel sizes.",
    )

    IMPORTING = "Importing", "`Imported=False`", "The import Job is starting or running."
    IMPORTED = (
        "Imported",
        "`Imported=True`, Event",
        "The weights are imported and audited; the message has the folder of the checkpoint.",
    )
    IMPORT_FAILED = (
        "ImportFailed",
        "`Imported=False`, `Failed`, `Running=False`, Event",
        "The import Job failed; the message ends with its termination message.",
        "Correct `init.from.huggingFace` or the folder; any edit of the spec starts it again.",
    )

    PREPARING = "Preparing", "`Prepared=False`", "The preparation Job is starting or running."
    CHECKING = (
        "Checking",
        "`Prepared=False`",
        "The preparation Job has built the dataset, and checks its token ids and samples against the run; or "
        "the check Job does so with `data.blend` or `data.datasetRoot`.",
    )
    CHECKED = (
        "Checked",
        "`Prepared=True`",
        "`data.blend` or `data.datasetRoot` is checked against the run; the message has the numbers, and a "
        "warning where the index of the samples could not be built.",
    )
    CHECK_FAILED = (
        "CheckFailed",
        "`Prepared=False`, `Failed`, Event",
        "The check Job found that the run cannot read `data.blend` or `data.datasetRoot` as set; the message "
        "ends with its termination message, which names the field, the file and the fix.",
        "Correct the data or the recipe, or set `data.check: false`; any edit of the spec starts it again.",
    )
    PREPARED = (
        "Prepared",
        "`Prepared=True`",
        "Tokenizer and dataset are complete; the message has the numbers, and a warning where the index of "
        "the samples could not be built.",
    )
    NOTHING_TO_PREPARE = (
        "NothingToPrepare",
        "`Prepared=True`",
        "The recipe has random data or `data.check: false`, or the run had begun before a release that "
        "checks its data.",
    )
    PREPARE_FAILED = (
        "PrepareFailed",
        "`Prepared=False`, `Failed`, Event",
        "The preparation Job failed; the message ends with its termination message.",
        "Correct `data.prepare`; any edit of the spec starts it again.",
    )

    WEIGHTS_NOT_READY = (
        "WeightsNotReady",
        "`Running=False`",
        "The recipe that `init.from.recipe` names does not exist, has not succeeded, or its checkpoints have "
        "another architecture, engine or claim; the message names what differs.",
        "Wait for that run, or correct what differs; it is checked again without an edit.",
    )
    VOLUME_CLAIM_MISSING = (
        "VolumeClaimMissing",
        "`Running=False`",
        "A PersistentVolumeClaim that the recipe names does not exist.",
        "Create the claim, or correct `claimName`.",
    )
    VOLUME_CLAIM_TERMINATING = (
        "VolumeClaimTerminating",
        "`Running=False`, `Prepared=False`",
        "A claim of the run is being deleted; Kubernetes keeps it while a pod mounts it.",
        "Wait; for a claim that the recipe names, create it again.",
    )
    VOLUME_CLAIM_REFUSED = (
        "VolumeClaimRefused",
        "`Running=False`",
        "The API server rejected a claim that the operator creates or changes; the message is its own.",
        "Correct the volume's size, access mode or storage class.",
    )
    VOLUME_CLAIM_OF_ONE_NODE = (
        "VolumeClaimOfOneNode",
        "`Running=False`, `Prepared=False`",
        "Several pods (`data.prepare.workers`) are to prepare data on a claim that one node mounts.",
        "Name a claim with ReadWriteMany, or set `workers: 1`, which uses all processors of its node.",
    )
    VOLUME_CLAIM_UNBOUND = (
        "VolumeClaimUnbound",
        "`Running=False`, `Imported=False`, `Prepared=False`, `Exported=False`",
        "A claim that the pods mount has no volume yet; the message names the claims of the first pod.",
        "`kubectl describe pvc` has the reason. Create its StorageClass, or delete the claim and set another "
        "`storageClassName`.",
    )
    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        "`Running=False`, `Imported=False`, `Prepared=False`, `Exported=False`",
        "The namespace's ResourceQuota is used up; the message is the API server's.",
        "Request less, or raise the quota.",
    )
    PYTORCHJOB_MISSING = (
        "PyTorchJobMissing",
        "`Running=False`",
        "The cluster has no PyTorchJob resource.",
        "Install the Kubeflow training-operator; the recipe then continues automatically.",
    )
    JOBSET_MISSING = (
        "JobSetMissing",
        "`Running=False`",
        "The platform sets `jobBackend: jobset`, and the cluster has no JobSet resource.",
        "Install JobSet, or set `jobBackend` to `pytorchjob`; the recipe then continues automatically.",
    )
    TRAINJOB_MISSING = (
        "TrainJobMissing",
        "`Running=False`",
        "The platform sets `jobBackend: trainjob`, and the cluster has no TrainJob resource.",
        "Install Kubeflow Trainer v2, or set another `jobBackend`; the recipe then continues automatically.",
    )
    COMPUTE_DOMAIN_MISSING = (
        "ComputeDomainMissing",
        "`Running=False`",
        "The profile sets `computeDomain`, but the cluster has no ComputeDomain resource, or refused it.",
        "Install NVIDIA's DRA driver for GPUs, or remove `computeDomain` from the profile.",
    )
    POD_GROUP_MISSING = (
        "PodGroupMissing",
        "`Running=False`",
        "The platform sets `gangScheduling.scheduler: kubernetes`, but the cluster serves no PodGroups of "
        "`scheduling.k8s.io/v1alpha2`, refused one, or does not assign pods to it.",
        "Switch on Kubernetes 1.36's feature gates GenericWorkload and GangScheduling, and install the "
        "chart's policy for pods ([platform](platform.md#gang-scheduling-without-kueue)); then it continues.",
    )
    WORKLOAD_PRIORITY_CLASS_MISSING = (
        "WorkloadPriorityClassMissing",
        "`Running=False`, `Prepared=False`",
        "The WorkloadPriorityClass of `workloadPriorityClassName`, the recipe's or the platform's, does not "
        "exist, so Kueue would never take up the job.",
        "Create the class, or correct the name; then it continues.",
    )
    JOB_REFUSED = (
        "JobRefused",
        "`Running=False`, `Prepared=False`, `Exported=False`, Event",
        "The API server rejected the training job, its NetworkPolicy, the Secret with its gang's token, "
        "a Job that imports, prepares, checks or exports, or to delete one that an edit or `suspend` ends, "
        "or the job that an edit replaces, which trains on; the message is the API server's. The Event: it "
        "rejected to delete or change job or pods as recovery, `suspend` or the end of the run requires.",
        "Correct the recipe, or the admission policy that rejects it. Where a webhook failed, its controller "
        "does not run: `kubectl get pods` in its namespace.",
    )
    NAME_TAKEN = (
        "NameTaken",
        "`Running=False`, `Prepared=False`, `Exported=False`",
        "A training job, Job or claim with a name that the run needs belongs to something else: it lacks the "
        "recipe's label or an owner reference with its UID. It is neither changed nor deleted.",
        "Rename the recipe, or delete that object; a claim can be used with `claimName`.",
    )
    PREVIOUS_JOB_ENDING = (
        "PreviousJobEnding",
        "`Running=False`, `Prepared=False`, `Exported=False`",
        "A job or claim of an earlier recipe of this name is being deleted, or what Trainer made for an "
        "earlier TrainJob of this one.",
    )
    JOB_REPLACED = (
        "JobReplaced",
        "`Running=False`",
        "The spec changed: the job is deleted and re-created from the newest checkpoint.",
    )
    PODS_ENDING = "PodsEnding", "`Running=False`", "Pods of the previous job are still terminating."
    JOB_CREATED = "JobCreated", "`Running=False`", "The training job is created; it has no pods yet."
    QUEUED = (
        "Queued",
        "`Running=False`, `Imported=False`, `Prepared=False`, `Exported=False`",
        "Kueue has not admitted the job, or has suspended it again; the message has Kueue's reason, which is "
        "read every 15 s at first, and then less often.",
        "Wait, or check the queue's quota.",
    )
    SUSPENDED = (
        "Suspended",
        "`Running=False`, `Imported=False`, `Prepared=False`",
        "`spec.suspend` is true: jobs and pods are deleted, volumes stay.",
        "Set `suspend: false` to continue from the newest checkpoint.",
    )
    PODS_STARTING = (
        "PodsStarting",
        "`Running=False`, `Prepared=False`",
        "Not all pods are running yet. After a minute on a node the message names the first such pod.",
        "`kubectl describe pod` has what it waits for: an image that is large, or a volume that cannot be "
        "mounted.",
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        "`Running=False`, `Imported=False`, `Prepared=False`, `Exported=False`",
        "The scheduler finds no node for a pod; the message is the scheduler's.",
        "Wait, or request other accelerators. Of a Job without accelerators the message names the field of "
        "the [platform](platform.md#jobs-without-accelerators) that has it run on other nodes.",
    )
    PODS_NOT_CREATED = (
        "PodsNotCreated",
        "`Running=False`, `Imported=False`, `Prepared=False`, `Exported=False`",
        "Admission or Pod Security rejects the pods; the message is the job controller's.",
        "See [Platform configuration](platform.md).",
    )
    IMAGE_PULL_FAILED = (
        "ImagePullFailed",
        "`Running=False`, `Imported=False`, `Prepared=False`, `Exported=False`",
        "The kubelet cannot pull the image; the message is the kubelet's.",
        "Correct `image` or `imagePullSecrets`.",
    )
    POD_CONFIG_ERROR = (
        "PodConfigError",
        "`Running=False`, `Imported=False`, `Prepared=False`, `Exported=False`",
        "The kubelet cannot create the container; the message is the kubelet's.",
        "Create or correct the Secret, ConfigMap or security setting that the message names.",
    )
    LEFT_EARLY = (
        "LeftEarly",
        "`Running=False`",
        "A pod exited with 0 before the run was complete; the operator replaces it.",
    )
    PODS_RUNNING = "PodsRunning", "`Running=True`", "All pods are running; no iteration is reported yet."
    PROGRESS_UNREACHABLE = (
        "ProgressUnreachable",
        "`Running=True`, Event",
        "All pods run, but none has answered the operator for two minutes. The run goes on; its progress is "
        "not known, and hang detection is blind.",
        "Let the operator reach port 8432 of the pods: NetworkPolicies, a service mesh, the pod network.",
    )
    TRAINING = "Training", "`Running=True`", "Iterations complete."

    PODS_LOST = (
        "PodsLost",
        "`Recovering=True`",
        "Pods of a run that had begun are missing; their replacements are starting.",
    )
    RANK_RESTARTED = (
        "RankRestarted",
        "`Recovering=True`, Event",
        "A rank exited; all ranks restarted from the checkpoint inside their pods.",
    )
    PODS_REPLACED = "PodsReplaced", "`Recovering=True`, Event", "Pods ended and were replaced."
    NODE_LOST = "NodeLost", "`Recovering=True`, Event", "A node was lost, and its pods were replaced."
    HANG_FOUND = (
        "HangFound",
        "`Recovering=True`, Event",
        "No iteration completed within the hang timeout; the trainer restarted its ranks.",
    )
    LOSS_ROLLED_BACK = (
        "LossRolledBack",
        "`Recovering=True`, Event",
        "The loss was not finite, or a spike; the run resumed from a checkpoint before it.",
        "If it repeats, check the data and the learning rate, or set `recovery.loss.onRepeat: skip`.",
    )
    GANG_RESTARTED = (
        "GangRestarted",
        "`Recovering=True`, `Running=False`, Event",
        "The operator deleted all pods so that the job re-creates them.",
    )
    SHRUNK = (
        "Shrunk",
        "`Recovering=True`, `Running=False`, Event",
        "The run continues on fewer accelerators, with another layout.",
    )
    GROWN = (
        "Grown",
        "`Recovering=True`, `Running=False`, Event",
        "The run continues on more accelerators, with another layout.",
    )
    RECOVERED = "Recovered", "`Recovering=False`", "The run trains again; the message is the last cause."
    NODE_NOT_CORDONED = (
        "NodeNotCordoned",
        "Event",
        "`platform.badNodes.cordon` is set, but the operator may not cordon the node that the run avoids: it "
        "has no rights on nodes (the option was set without `helm upgrade`, or the release has "
        "`watchNamespaces`), or a cap (`maxShare`, `maxPerHour`) is reached.",
        "Inspect the nodes; cordon this one yourself, run `helm upgrade` with the option, or raise the cap. "
        "With `watchNamespaces` set `badNodes.cordon` to false.",
    )
    NODE_NOT_AVOIDED = (
        "NodeNotAvoided",
        "Event",
        "A node's hardware failed, or its maintenance is announced, but `platform.badNodes.maxShare` or "
        "`maxPerHour` is reached, or the other nodes have no room, or the job could not be created again "
        "because an edit was refused: the run uses it all the same. `status.recovery.nodeEvidence` or "
        "`maintenance` has the reason. Or its label `kubernetes.io/hostname`, by which nodes are excluded, "
        "is not its name.",
        "Inspect the nodes; cordon this one yourself, raise the cap, or add nodes.",
    )
    MOVED_FOR_MAINTENANCE = (
        "MovedForMaintenance",
        "`Recovering=True`, `Running=False`, Event",
        "A condition, taint or start time of `platform.maintenance` announced that a node will go, or a "
        "device that the run uses was tainted, or, with `platform.badNodes.moveRuns`, a node reports failed "
        "hardware: the run saved a checkpoint and moves to other nodes. It costs "
        "no restart of the budget.",
    )
    DOMAIN_CHANGED = (
        "DomainChanged",
        "Event",
        "Pods must share a topology domain (`requiredTopology`), theirs, or each that a job without placed "
        "pods may use, has had no room for all of them for two minutes, and another one has: the job is "
        "re-created there and continues from the newest checkpoint. It costs no restart of the budget.",
    )
    POD_DELETED_BY_FORCE = (
        "PodDeletedByForce",
        "Event",
        "A pod was to be removed and stayed: it had ended a minute ago, or its node does not answer or is "
        "gone. Nothing could replace it, or the run that comes could not start: the operator deleted it with "
        "a grace period of 0.",
        "Check the kubelet of its node: a volume that cannot be unmounted keeps a pod.",
    )
    POD_NOT_ENDING = (
        "PodNotEnding",
        "Event",
        "A deleted pod still runs two minutes after its grace period, on a node that is up: a process of it, "
        "as one that waits for a volume, cannot be killed. The run waits; `Running` names pod and node.",
        "Reboot the node, or drain it for that; `kubectl delete pod --force` once its processes are gone.",
    )
    NODE_AVOIDED = (
        "NodeAvoided",
        "Event",
        "The hardware of a node failed, or the node was lost `recovery.nodes.avoidAfter` times; the run's "
        "next pods avoid it.",
        "Check the node; `status.recovery.nodeEvidence` has the evidence.",
    )
    SLOW_RANK = (
        "SlowRank",
        "Event",
        "The own work of ranks takes, for at least 30 s, at least 1.5 times as long as that of the other "
        "ranks of their pipeline stage, and all others wait for them; `status.stragglers` has pod and node.",
        "Compare clocks, temperature and errors of that node's devices, and its CPU load, with those of "
        "another node.",
    )
    NODE_RELEASED = "NodeReleased", "Event", "The run uses an avoided node again."

    EVENTS_DROPPED = (
        "EventsDropped",
        "Event",
        "The recipe had more Events than are posted for one; the status and the operator's log have what "
        "they report.",
    )
    SUCCEEDED = "Succeeded", "`Succeeded`, `Running=False`, Event", "The run reached its last iteration."
    EXPORTING = (
        "Exporting",
        "`Exported=False`",
        "The run has reached its last iteration; the export Job is starting or running.",
    )
    EXPORTED = (
        "Exported",
        "`Exported=True`, Event",
        "The weights are exported and audited; the message has their folder.",
    )
    EXPORT_FAILED = (
        "ExportFailed",
        "`Exported=False`, `Failed`, `Running=False`, Event",
        "The run has trained to the end, and the export Job failed; the message ends with its termination "
        "message.",
        "Correct `export` or the folder; any edit of the spec that changes no setting of the training starts "
        "only the export again.",
    )
    JOB_FAILED = (
        "JobFailed",
        "`Failed`, `Running=False`, Event",
        "The trainer failed in a way that would repeat: bad flags, missing data, a loss that is not finite. "
        "The message is the termination message of the pod.",
        "Correct the cause; any edit of the spec starts the run again.",
    )
    RESTARTS_SPENT = (
        "RestartsSpent",
        "`Failed`, `Running=False`, Event",
        "More than `recovery.maxRestarts` restarts without a new checkpoint.",
        "Fix the first cause in the message; any edit of the spec starts the run again.",
    )
