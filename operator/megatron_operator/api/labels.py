"""Identifiers that other programs read: API group and kind, labels, annotations, the field manager."""

from typing import Final

GROUP: Final = "megatron.training"
VERSION: Final = "v1beta1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
STORED_VERSION: Final = "v1alpha1"
"""Deprecated, with the same fields. Objects are stored in it, and the operator writes it: a release without
v1beta1 could neither read what is stored in that version, nor apply to what was written in it."""
STORED_API_VERSION: Final = f"{GROUP}/{STORED_VERSION}"
API_VERSIONS: Final = (API_VERSION, STORED_API_VERSION)
KIND: Final = "MegatronRecipe"
PLURAL: Final = "megatronrecipes"
SINGULAR: Final = "megatronrecipe"
SHORT_NAME: Final = "mr"

FIELD_MANAGER: Final = "megatron-operator"
"""Owner of the fields that the operator writes with server-side apply."""

LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
"""`megatron-operator` on every object that the operator creates."""
LABEL_RECIPE: Final = f"{GROUP}/recipe"
"""Name of the MegatronRecipe that an object belongs to."""
LABEL_ROLE: Final = f"{GROUP}/role"
"""`trainer`, `prepare`, `import`, `export` or `export-best`: what a pod runs."""
LABEL_CORDONED_AT: Final = f"{GROUP}/cordoned-at"
"""On nodes that the operator cordoned, and as an annotation on Jobs that check them: when, in seconds since
the epoch."""
ANNOTATION_CORDONED_FOR: Final = f"{GROUP}/cordoned-for"
"""On the same nodes: the evidence, as JSON."""
ANNOTATION_UNCORDONED_AT: Final = f"{GROUP}/uncordoned-at"
"""On nodes that were cordoned by the operator and uncordoned: when, in seconds since the epoch."""
LABEL_NODE_CHECK: Final = f"{GROUP}/node-check"
"""On Jobs and pods that check a cordoned node: a digest of the node's name."""
ANNOTATION_NODE_CHECK: Final = f"{GROUP}/node-check-result"
"""On nodes that were checked: when, and what the check found, as JSON."""
LABEL_POD_GROUP: Final = f"{GROUP}/pod-group"
"""On pods of a gang that Kubernetes' own scheduler places: its PodGroup; also the name of their scheduling
gate."""
ANNOTATION_RECOVERY_PRIORITY: Final = f"{GROUP}/recovery-priority-class"
"""On training jobs: the PriorityClass that pods get with which the run recovers."""
ANNOTATION_QUEUED_AS: Final = f"{GROUP}/queued-as"
"""On Jobs that import, prepare or export: the queue of Kueue and, after a slash, the WorkloadPriorityClass
for which they were created. An admission policy may give them other labels."""
ANNOTATION_PLACEMENT: Final = f"{GROUP}/placement"
"""On the same Jobs: a digest of the platform's `cpuJobs` that they were created with; none without any."""
LABEL_CLIQUE: Final = "nvidia.com/gpu.clique"
"""Set on nodes by NVIDIA's GPU feature discovery: nodes with the same value share an NVLink domain."""
ANNOTATION_HASH: Final = f"{GROUP}/hash"
"""Hash of a manifest as the operator rendered it; a different hash means that the spec changed."""
ANNOTATION_GENERATION: Final = f"{GROUP}/generation"
"""On Jobs that import, prepare or export: the generation of the recipe that they were created for."""
