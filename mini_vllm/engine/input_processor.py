"""What a user sends, checked and turned into requests. Knows tokenizer and chat template; runs nothing. Chapter 14."""

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from itertools import count, islice
from typing import Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.engine.engine_core import EngineCore
from mini_vllm.engine.sampler import seed_of
from mini_vllm.errors import (
    ConfigError,
    DuplicateRequestError,
    EmptyPromptError,
    InvalidRequestError,
    SchedulerContractError,
)
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

Prompt = str | Sequence[int] | Sequence[dict]

PROMPT_FORM = (
    'give a text, a list of token ids, a conversation ([{"role": "user", "content": "Hello"}]), or a list of such'
)
CHAT_FORM = 'give a conversation, [{"role": "user", "content": "Hello"}], or a list of conversations'
PRIORITY_FORM = "give a list of whole numbers, one for each prompt; smaller is sooner"
# Fields of SchedulerConfig that LLM passes on, beside those of its signature. The others need what this engine has not
# (adapters), follow from the model (its window), or would give wrong tokens.
SCHEDULER_SETTINGS = (
    "aging",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "max_num_scheduled_tokens",
    "num_speculative_tokens",
    "policy",
    "reserve_full_isl",
    "watermark",
)
PARAMS_FORM = "give a SamplingParams, e.g. SamplingParams(max_tokens=16), or a list with one for each prompt"


class InputProcessor:
    """Validates everything before anything enters the engine: a bad prompt leaves the good ones untouched."""

    def __init__(
        self, tokenizer, chat_template, engine_core: EngineCore, end_token_ids: Sequence[int] = (), seed: int = 0
    ):
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.seed = seed  # of answers that bring none
        self.end_token_ids = tuple(end_token_ids)  # beside the tokenizer's own; chat models often have several
        self.engine_core = engine_core
        self._num_drawn = 0  # answers that had no seed of their own; each gets another

    def process(
        self, prompts: Any, sampling_params: Any, request_ids: Any, priority: Any = None
    ) -> tuple[list[Request], list[str | None], list[int]]:
        """Requests; of each the text that a person typed (None where only token ids are known), and which of its
        prompt's answers it is."""
        if isinstance(prompts, str) or (is_list(prompts) and prompts and isinstance(prompts[0], Mapping)):
            prompts = [prompts]
        if not is_list(prompts):
            raise InvalidRequestError(f"prompts is {named(prompts)}: {PROMPT_FORM}")
        if prompts and isinstance(prompts[0], int):
            raise InvalidRequestError("prompts is one list of token ids; wrap it in a list: [[1, 2, 3]]")
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        if not is_list(sampling_params):
            raise InvalidRequestError(f"sampling_params is {named(sampling_params)}: {PARAMS_FORM}")
        request_ids = self._request_ids(request_ids, len(prompts))
        if len(sampling_params) != len(prompts):
            raise InvalidRequestError(
                f"{len(prompts)} prompts but {len(sampling_params)} sampling_params; give one for each"
            )
        priority = [0] * len(prompts) if priority is None else priority
        if not is_list(priority) or len(priority) != len(prompts):
            raise InvalidRequestError(f"priority is {named(priority)} for {len(prompts)} prompts: {PRIORITY_FORM}")
        requests: list[Request] = []
        texts: list[str | None] = []
        indices: list[int] = []
        for req_id, prompt, params, urgency in zip(request_ids, prompts, sampling_params, priority, strict=True):
            if not isinstance(params, SamplingParams):
                raise InvalidRequestError(f"sampling_params holds {named(params)}: {PARAMS_FORM}")
            text, token_ids = self._encode(prompt)
            if not token_ids:
                raise EmptyPromptError(
                    f"prompt {len(requests) + 1} of {len(prompts)} ({req_id}) is empty: 0 tokens, at least 1 needed"
                )
            for index, (name, each) in enumerate(self._answers(req_id, params)):
                if each.seed is None and not each.is_greedy:
                    each = replace(each, seed=seed_of(self.seed, self._num_drawn))
                    self._num_drawn += 1
                eos = self.tokenizer.eos_token_id
                request = Request(name, token_ids, each, time.monotonic(), eos, urgency)
                self.engine_core.validate(request)
                requests.append(request)
                texts.append(text)
                indices.append(index)
        return requests, texts, indices

    def _answers(self, req_id: str, params: SamplingParams) -> list[tuple[str, SamplingParams]]:
        """Name and parameters of each of the `n` answers: requests of their own, with random numbers of their own."""
        if self.end_token_ids and not params.ignore_eos:
            params = replace(params, stop_token_ids=(*params.stop_token_ids, *self.end_token_ids))
        if params.stop and not hasattr(self.engine_core.scheduler_cls, "finish_requests"):
            name = self.engine_core.scheduler_cls.__name__
            raise SchedulerContractError(f"{name} has no finish_requests(request_ids), which a stop text needs")
        if params.n == 1:
            return [(req_id, params)]
        seeds = [None if params.seed is None else params.seed + i for i in range(params.n)]
        return [(f"{req_id}/{i + 1}", replace(params, n=1, seed=seed)) for i, seed in enumerate(seeds)]

    def _request_ids(self, request_ids: Any, num_prompts: int) -> list[str]:
        """The ids given, or R1, R2, … beginning after those that the present run has seen."""
        if request_ids is None:
            used = {name.partition("/")[0] for name in self.engine_core.used_request_ids()}  # R1/2: one answer of R1
            return list(islice((name for name in (f"R{i}" for i in count(1)) if name not in used), num_prompts))
        if not is_list(request_ids):
            raise InvalidRequestError(f'request_ids is {named(request_ids)}: give a list of names, e.g. ["R1"]')
        if len(request_ids) != num_prompts:
            raise InvalidRequestError(f"{num_prompts} prompts but {len(request_ids)} request_ids; give one for each")
        if len(set(request_ids)) != len(request_ids):
            raise DuplicateRequestError(f"request_ids holds an id twice: {list(request_ids)}")
        return list(request_ids)

    def _encode(self, prompt: Any) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt)
        if not is_list(prompt):
            raise InvalidRequestError(f"prompts holds {named(prompt)}: {PROMPT_FORM}")
        if not prompt:
            return None, []
        if not isinstance(prompt[0], Mapping):
            other = next((t for t in prompt if not isinstance(t, int) or isinstance(t, bool)), None)
            if other is not None:
                raise InvalidRequestError(f"a prompt holds {named(other)}, which is no token id: {PROMPT_FORM}")
            return None, list(prompt)
        if self.chat_template is None:
            raise ConfigError("this model has no chat template, so it was not trained to chat; send text instead")
        token_ids = self.chat_template.encode(prompt)  # refuses what is no conversation
        shown = prompt[-1]["content"]
        return shown if isinstance(shown, str) else None, token_ids


def check_conversations(messages: Any) -> None:
    """Refuse what is neither one conversation nor a list of them."""
    if not is_list(messages):
        raise InvalidRequestError(f"messages is {named(messages)}: {CHAT_FORM}")
    other = next((m for m in messages if not isinstance(m, Mapping) and not is_list(m)), None)
    if other is not None:
        raise InvalidRequestError(f"messages holds {named(other)}: {CHAT_FORM}; for plain text take generate()")


def check_scheduler_class(scheduler_cls: Any) -> None:
    """Refuse what cannot be built with one argument before a model is loaded for it."""
    if not callable(scheduler_cls):
        raise SchedulerContractError(
            f"scheduler_cls is {named(scheduler_cls)}: give the class itself, not an object of it; it is built with "
            "one argument, the SchedulerConfig"
        )
    try:
        signature = inspect.signature(scheduler_cls)
    except ValueError:  # a class written in C does not tell
        return
    try:
        signature.bind(object())
    except TypeError as error:
        name = getattr(scheduler_cls, "__name__", repr(scheduler_cls))
        raise SchedulerContractError(
            f"{name} is built with one argument, the SchedulerConfig, but it is {name}{signature} ({error}): "
            "write def __init__(self, config)"
        ) from None


def check_scheduler_settings(settings: Mapping[str, Any]) -> None:
    """Refuse what `SchedulerConfig` does not know, and what this engine cannot do, before a model is loaded for it."""
    for name, value in settings.items():
        if name in SCHEDULER_SETTINGS:
            continue
        if name in {f.name for f in fields(SchedulerConfig)}:
            raise ConfigError(f"{name}={value!r} is for the simulator: this engine cannot serve with it; leave it out")
        near = get_close_matches(name, SCHEDULER_SETTINGS, 1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError(
            f"LLM has no setting {name}{meant}; for its scheduler it takes {', '.join(SCHEDULER_SETTINGS)}"
        )


def is_list(value: Any) -> bool:
    """A list or tuple, say; a text is none, and no tensor either."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def named(value: Any) -> str:
    """ "an int (5)": the kind of a value that is refused, and the value as far as it is short."""
    kind, shown = type(value).__name__, repr(value)
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    return f"{article} {kind}" + (f" ({shown})" if len(shown) <= 40 and "\n" not in shown else "")
