"""What Landlock leaves open, tried from a child process. Tiny folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mini_vllm.sandbox import landlock
from mini_vllm.sandbox.landlock import around


def paths(root: Path, *hidden: Path) -> list[tuple[str, bool]]:
    return [(str(path.relative_to(root)), listed_only) for path, listed_only in around(root, list(hidden))]


def tree(root: Path) -> Path:
    for name in ("lib/numpy/a.py", "lib/mini_vllm/b.py", "lib/torch/c.py", "bin/python"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def test_around_takes_the_hidden_one_out(tmp_path):
    root = tree(tmp_path)
    assert paths(root) == [(".", False)]
    assert paths(root, root / "elsewhere") == [(".", True), ("bin", False), ("lib", False)]
    assert paths(root, root / "lib" / "mini_vllm") == [
        (".", True),
        ("bin", False),
        ("lib", True),
        ("lib/numpy", False),
        ("lib/torch", False),
    ]
    assert paths(root, root / "lib", root / "bin") == [(".", True)]
    assert paths(root, root) == paths(root / "lib", root) == []
    (root / "lib64").symlink_to("lib")  # every virtual environment has it
    (root / "lib" / "loop").symlink_to(root)
    assert ("lib64", False) not in paths(root, root / "lib" / "mini_vllm")
    assert ("lib/loop", False) not in paths(root, root / "lib" / "mini_vllm")


TRY = """
import os, sys
from mini_vllm.sandbox import landlock
root, how = sys.argv[1:3]
hidden = [f"{root}/lib/mini_vllm"]
landlock.restrict(["/usr", "/lib", "/lib64", sys.prefix, sys.base_prefix, f"{root}/lib"], [f"{root}/run"], hidden)
try:
    print("done", eval(how, {"os": os, "root": root}))
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.skipif(landlock.version() == 0, reason="this system has no Landlock")
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("open(root + '/lib/numpy/a.py').read()", "done lib/numpy/a.py"),
        ("sorted(os.listdir(root + '/lib'))", "done ['link', 'mini_vllm', 'numpy', 'torch']"),
        ("open(root + '/lib/mini_vllm/b.py')", "PermissionError"),
        ("os.listdir(root + '/lib/mini_vllm')", "done ['b.py']"),  # names may be seen, what they hold may not
        ("open(root + '/run/../lib/mini_vllm/b.py')", "PermissionError"),
        ("open(root + '/run/link')", "PermissionError"),
        ("open(root + '/lib/link/b.py')", "PermissionError"),
        ("open(root + '/secret')", "PermissionError"),
        ("open(root + '/lib/numpy/new', 'w')", "PermissionError"),
        ("open(root + '/run/new', 'w').write('x')", "done 1"),
        ("os.rename(root + '/run/old', root + '/lib/numpy/old')", "PermissionError"),
        ("os.system('cat ' + root + '/secret 2>/dev/null') != 0", "done True"),
        ("os.kill(os.getppid(), 0)", "PermissionError" if landlock.version() >= 6 else "done None"),
    ],
)
def test_what_is_left_open(tmp_path, how, says):
    root = tree(tmp_path)
    (root / "secret").write_text("secret")
    (root / "run").mkdir()
    (root / "run" / "link").symlink_to(root / "secret")
    (root / "run" / "old").write_text("x")
    (root / "lib" / "link").symlink_to("mini_vllm")
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(root), how], capture_output=True, text=True, timeout=60, env={**os.environ}
    )
    assert done.stdout.strip() == says, done.stderr
