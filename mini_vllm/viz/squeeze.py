"""Takes comments and blanks out of the player's scripts and style sheet. Knows their tokens, not their meaning."""

from __future__ import annotations

import re

OPENERS = "{([,;=?:&|>"  # after one of these a line may be joined with the next
BEFORE_REGEX = "(,=:[!&|?{};\n"  # after one of these a slash begins a regular expression


def squeeze_style(text: str) -> str:
    """A style sheet in one line."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"\s+", " ", text)
    return re.sub(r" ?([{};,>]) ?|(:) ", r"\1\2", text).replace(";}", "}").strip()


def squeeze_script(text: str) -> str:
    """A script without comments and needless blanks; strings, templates and regular expressions stay as they are."""
    return _code(text, 0, "")[0].strip() + "\n"


def _code(text: str, at: int, end: str) -> tuple[str, int]:
    """Code from `at` to its closing bracket `end`, or to the end of the text; and the place behind it."""
    out, depth = "", 0
    while at < len(text):
        char = text[at]
        if char.isspace() or text.startswith(("//", "/*"), at):
            blank, at = _blank(text, at)
            out += _kept(out, blank, text[at : at + 1])
        elif char in "\"'":
            start, at = at, _behind(text, at, char)
            out += text[start:at]
        elif char == "`":
            template, at = _template(text, at)
            out += template
        elif char == "/" and (not out or out[-1] in BEFORE_REGEX):
            start, at = at, _behind(text, at, "/")
            out += text[start:at]
        else:
            depth += (char == "{") - (char == "}")
            if char == end and depth < 0:
                return out, at + 1
            out += char
            at += 1
    return out, at


def _template(text: str, at: int) -> tuple[str, int]:
    out, at = "`", at + 1
    while text[at] != "`":
        if text.startswith("${", at):
            code, at = _code(text, at + 2, "}")
            out += "${" + code.strip() + "}"
        else:
            size = 2 if text[at] == "\\" else 1
            out += text[at : at + size]
            at += size
    return out + "`", at + 1


def _behind(text: str, at: int, closing: str) -> int:
    """The place behind a literal that begins at `at`; in a regular expression a slash in [] does not close it."""
    at, in_class = at + 1, False
    while text[at] != closing or in_class:
        in_class = closing == "/" and (text[at] == "[" or (in_class and text[at] != "]"))
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _blank(text: str, at: int) -> tuple[str, int]:
    """Everything from `at` that is neither code nor literal."""
    found = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)+", re.S).match(text, at)
    assert found is not None
    return found[0], found.end()


def _kept(out: str, blank: str, following: str) -> str:
    """What is left of blanks between the code so far and the next character."""
    last = out[-1:]
    if "\n" in re.sub(r"/\*.*?\*/", "", blank, flags=re.S):
        return "" if not last or last in OPENERS or last == "\n" or following in "?:&|.)]" else "\n"
    is_word = re.compile(r"[\w$]").fullmatch
    return " " if (is_word(last) and is_word(following)) or (last == following and last in "+-") else ""
