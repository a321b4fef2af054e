"""A list of chat messages as one prompt. Knows the model's template; not what it means. Chapter 14."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from mini_vllm.errors import CorruptModelFileError, InvalidRequestError, MissingDependencyError
from mini_vllm.tokenization.tokenizer import Tokenizer

try:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError as error:
    raise MissingDependencyError("chat needs the package `jinja2`: pip install jinja2") from error

ROLES = ("system", "user", "assistant", "tool")
# Unicode's noncharacters: no text means anything by them, and one of them is free in any sane message.
_MARKS = [chr(plane * 0x10000 + low) for plane in range(1, 17) for low in (0xFFFE, 0xFFFF)]


class InvalidChatError(InvalidRequestError):
    """A chat message list that no template can turn into a prompt."""


class ChatTemplate:
    """The Jinja template that came with the model, run in a sandbox (a model file is data from a stranger).

    Raises CorruptModelFileError when the template itself is no Jinja.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self.source = source
        self._tokenizer = tokenizer
        # The settings that templates on the hub are written for.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CorruptModelFileError(f"the model's chat template cannot be read: {error}") from error

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The prompt as text. `messages` are {"role": …, "content": …}; it ends where the answer begins.

        The template sees these two entries of a message and no other ("name", "tool_calls", …).

        For a model's input take `encode`: in text, a "<|im_end|>" that a user typed looks like a real one.
        Raises InvalidChatError (which says what is wrong with which message).
        """
        checked = _checked(messages)
        settings = self._tokenizer.settings
        names = {name: settings.get(name, "") for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        try:
            return self._template.render(
                messages=checked,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **names,
            )
        except InvalidChatError:
            raise
        except Exception as error:  # a template may fail in any way: type errors, the sandbox's refusals, …
            raise InvalidChatError(
                f"the model's chat template does not take these messages: {type(error).__name__}: {error}"
            ) from error

    def encode(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> list[int]:
        """The prompt as token ids, in which only the template can put special tokens, never a message.

        A user who types "<|im_end|>\\n<|im_start|>system" sends those characters and opens no new turn, nor do
        messages that spell it together. This holds for templates that print a content whole or trimmed, as the
        usual ones do; one that deletes or replaces characters in it can make a special token of what is left.
        """
        tokenizer, checked = self._tokenizer, _checked(messages)
        specials = sorted(tokenizer.special_tokens, key=len, reverse=True)
        if not specials:
            prompt = self.apply_chat_template(checked, add_generation_prompt=add_generation_prompt)
            return tokenizer.encode(prompt, add_special_tokens=False)
        # Break each special token that stands in a message, or could be completed beyond its ends, with a mark
        # that no message contains; what is whole after rendering comes from the template. Then take the marks
        # out again.
        any_special = re.compile("(" + "|".join(map(re.escape, specials)) + ")")
        written = "".join(message["content"] for message in checked)
        mark = next((mark for mark in _MARKS if mark not in written), None)
        if mark is None:
            raise InvalidChatError("the messages contain every Unicode noncharacter: this is no text")
        guarded = []
        for message in checked:
            # A mark after every character: special tokens may overlap or stand within each other.
            content = any_special.sub(lambda m: mark.join(m[0]) + mark, message["content"])
            core = message["content"].strip()
            if any(_is_part_of(special, core) for special in specials):
                # Within the spaces, so that a template which trims still finds them; and not around every
                # content, for a template may ask how one begins.
                content = content.replace(content.strip(), mark + content.strip() + mark)
            guarded.append(message | {"content": content})
        prompt = self.apply_chat_template(guarded, add_generation_prompt=add_generation_prompt)
        ids: list[int] = []
        for piece in any_special.split(prompt):
            if piece in tokenizer.special_tokens:
                ids.append(tokenizer.special_tokens[piece])
            elif piece:
                text = piece.replace(mark, "")
                ids += tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Role and content of each message, as strings; what else it holds is left out. Raises InvalidChatError."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise InvalidChatError(f"messages must be a list, and is a {type(messages).__name__}: {_EXAMPLE}")
    if not messages:
        raise InvalidChatError(f"messages is empty; at least one is needed: {_EXAMPLE}")
    checked = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidChatError(f"message {index} is a {type(message).__name__}, not an object: {_EXAMPLE}")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise InvalidChatError(f"message {index} has role {role!r}; it must be one of {', '.join(ROLES)}")
        checked.append({"role": role, "content": _content_text(index, content)})
    return checked


def _is_part_of(special: str, text: str) -> bool:
    """Whether more text before or after `text` (not empty) could make `special` out of its beginning or end."""
    if not text:
        return False
    cuts = range(1, len(special))
    return text in special or any(text.startswith(special[cut:]) or text.endswith(special[:cut]) for cut in cuts)


def _content_text(index: int, content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # the OpenAI API's list of parts
        parts = [part if isinstance(part, Mapping) else {} for part in content]
        if all(part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts):
            return "".join(part["text"] for part in parts)
        kinds = [part.get("type") for part in parts]
        raise InvalidChatError(f"message {index} has parts of type {kinds}; only 'text' parts can be read")
    raise InvalidChatError(
        f"message {index} has content of type {type(content).__name__}; it must be a string: {_EXAMPLE}"
    )


def _raise_exception(message: str) -> None:
    raise InvalidChatError(f"the model's chat template refuses these messages: {message}")


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes < and > for web pages, which would change the prompt.
    return json.dumps(value, ensure_ascii=False, indent=indent)


_EXAMPLE = '[{"role": "user", "content": "Hello"}]'
