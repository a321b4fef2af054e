"""Every error that mini_vllm raises on purpose. Knows no other module. All chapters.

A message names the value, the limit and the way out; a reader of a traceback should not have to open the code.
"""


class MiniVLLMError(Exception):
    """Base class: `except MiniVLLMError` catches everything that this package refuses."""


class MissingDependencyError(MiniVLLMError):
    """A part was used whose optional packages are not installed."""


class UnknownModelError(MiniVLLMError):
    """The model name is neither known nor a path to a file."""


class CorruptModelFileError(MiniVLLMError):
    """A model file is broken, cut short, or holds other tensors than its configuration demands."""


class DownloadError(MiniVLLMError):
    """A model could not be fetched."""


class ConfigError(MiniVLLMError):
    """A configuration contradicts itself or cannot work."""


class InvalidRequestError(MiniVLLMError):
    """A request is refused before it enters the scheduler. Its subclasses say why."""


class EmptyPromptError(InvalidRequestError):
    """A prompt without a single token: there is nothing to compute a next token from."""


class PromptTooLongError(InvalidRequestError):
    """The prompt leaves no room for one new token within `max_model_len`."""


class KVPoolTooSmallError(InvalidRequestError):
    """The whole KV pool could not hold this one request."""


class KVPoolExhaustedError(MiniVLLMError):
    """A running request needs a KV block, none is free, and this scheduler cannot evict anybody."""


class InvalidSamplingParamsError(InvalidRequestError):
    """A sampling parameter is out of its range."""


class DuplicateRequestError(InvalidRequestError):
    """A request id is already in use."""


class IllegalTransitionError(MiniVLLMError):
    """A request was sent along an edge that the state machine does not have."""


class SchedulerContractError(MiniVLLMError):
    """A scheduler's plan breaks the contract: over budget, a block given twice, an unknown request, …"""


class SchedulerStalledError(SchedulerContractError):
    """Requests are unfinished, nothing is scheduled, and nothing that could change this is to come."""


class TraceFormatError(MiniVLLMError):
    """A trace file cannot be read; the message names file and line."""


class GradingError(MiniVLLMError):
    """A notebook cannot be graded (unreadable file, unknown exercise set)."""


class KernelModeError(MiniVLLMError):
    """Triton kernels were asked to run where they cannot: too late for the interpreter, or without a GPU."""
