"""The base of all exceptions of this package.

TrainerError
├── SettingError, FlagError, UnsupportedError     the pod cannot start as configured
├── PreparationError, TokenizerError              megatron-prepare cannot build the corpus
├── ConversionError, AuditError,                  megatron-convert cannot convert, or the result differs
│   DestinationExistsError, DownloadError, AdaptersError
├── ForkServerLostError, StoreLostError           a process that the launcher depends on is gone
├── LeaseLostError                                another launcher owns the checkpoint directory
├── RunEndedError                                 the pod's part in the run is over
├── RunsError, SampleIndexError                   megatron-samples cannot find what a run has read
├── AnswerError, SampleLineError                  a chat, or a line of samples, cannot be learned from
├── ByteLevelError                                documents are encoded by Hugging Face, not by tiktoken
└── RankError                                     a rank ends, with an exit code
    BadLossError, WrongCheckpointError, UnreadableCheckpointError, FaultError
"""


class TrainerError(Exception):
    """Base of all exceptions that the trainer raises itself."""
