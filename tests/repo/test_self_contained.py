"""Nothing in the repository needs a folder, a host or an address outside it."""

import re
from pathlib import Path

import pytest

from tests.repo.repository import ROOT, name, notebooks, project, repository_files, text_files

# Written in pieces, so that this file does not find itself.
OUTSIDE = [
    "/wo" + "rk/", "/ro" + "ot/", "/opt/" + "pypi", "/opt/" + "wheels", "sha" + "red/facts", "../sha" + "red",
    "sha" + "red/DESIGN", "sha" + "red/vllm_traces", "sha" + "red/workloads",
]  # fmt: skip
INDEXES = ("https://pypi.org/", "https://download.pytorch.org/whl/")


def test_no_file_names_a_folder_outside_the_repository():
    words = [*OUTSIDE, f"{ROOT}/", f"{Path.home()}/"]
    words = [word for word in words if word.count("/") > 1 or word in OUTSIDE]  # home may be "/"
    found = [
        f"{name(path)}:{number}: {word}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        for word in words
        if word in line
    ]
    assert not found, "\n".join(found[:20])


def test_packages_come_from_pypi_or_pytorch_only():
    pattern = re.compile(r"(?:index-url|find-links|INDEX(?:_URL)?)[ =?:\"']+(\w+://[^\s\"']+)")
    found = [
        f"{name(path)}: {address}"
        for path in text_files()
        for address in pattern.findall(path.read_text(encoding="utf-8", errors="replace"))
        if not address.startswith(INDEXES)
    ]
    assert not found


def test_every_address_of_the_repository_derives_from_the_one_in_pyproject():
    url = project()["urls"]["Repository"]
    owner, repository = url.removeprefix("https://github.com/").split("/")
    allowed = (
        url,
        f"git+{url}",
        f"https://{owner}.github.io/{repository}/",
        f"https://colab.research.google.com/github/{owner}/{repository}/",
    )
    pattern = re.compile(rf"(?:git\+)?https?://[^\s\"'()<>\]]*(?:{owner}|{repository})[^\s\"'()<>\]]*")
    wrong = [
        f"{name(path)}: {address}"
        for path in text_files()
        for address in pattern.findall(path.read_text(encoding="utf-8", errors="replace"))
        if not address.startswith(allowed)
    ]
    assert not wrong
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    assert f"url: {url}\n" in config and f"baseurl: {allowed[2]}\n" in config


def test_nothing_tells_the_reader_to_install_somebody_elses_package():
    words = re.compile(r"pip3? install[^\n]*\bmini" + r"[-_]vllm\b")
    found = [name(path) for path in text_files() if words.search(path.read_text(encoding="utf-8", errors="replace"))]
    assert not found, "the PyPI name mini-vllm belongs to somebody else"


def test_sizes():
    heavy = [f"{name(path)}: {path.stat().st_size:,} bytes" for path in notebooks() if path.stat().st_size > 600_000]
    assert not heavy, "a notebook may have 600 KB"
    total = sum(path.stat().st_size for path in repository_files())
    assert total <= 40_000_000, f"the tracked tree has {total:,} bytes, 40 MB are allowed"


@pytest.mark.parametrize("wanted", ["Makefile", ".ci/run", "README.md", "LICENSE", "_config.yml", "_toc.yml"])
def test_the_front_door_is_there(wanted):
    assert (ROOT / wanted).is_file()
