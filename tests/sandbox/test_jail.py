"""What a command in the jail can still do: its user, its rights, its limits. The command is a shell line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mini_vllm.grading.run_folder import _threads_of_this_user
from mini_vllm.sandbox import users

ROOT = os.geteuid() == 0


def jailed(tmp_path, line: str, **plan) -> subprocess.CompletedProcess:
    (tmp_path / "run").mkdir(exist_ok=True)
    whole = {
        "command": ["/bin/sh", "-c", line],
        "cwd": str(tmp_path / "run"),
        "env": {"PATH": "/usr/bin:/bin", "ONLY": "this"},
        "log": str(tmp_path / "jail.log"),
        "uid": None,
        "limits": {"RLIMIT_FSIZE": 1 << 20, "RLIMIT_CORE": 0, "RLIMIT_NONE_SUCH": 1},
        "landlock": False,
        "reads_everywhere": False,
        "readable": [],
        "writable": [],
        "hidden": [],
        **plan,
    }
    (tmp_path / "plan.json").write_text(json.dumps(whole))
    command = [sys.executable, "-m", "mini_vllm.sandbox.jail", str(tmp_path / "plan.json")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def open_folder(tmp_path):
    """A folder that any user may look into, and down to it."""
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(0o755)
    return tmp_path


def test_the_environment_is_the_plans(tmp_path):
    done = jailed(tmp_path, "env | grep -v -e PWD -e SHLVL -e '^_='; pwd")
    assert done.stdout.splitlines() == ["PATH=/usr/bin:/bin", "ONLY=this", str(tmp_path / "run")]


def test_a_file_cannot_grow_beyond_its_limit(tmp_path):
    done = jailed(tmp_path, "head -c 3000000 /dev/zero > big; wc -c < big")
    assert int(done.stdout) == 1 << 20


def test_a_user_of_its_own_reads_and_writes_nothing_of_roots(open_folder):
    """Who is not root cannot change the user: then nothing is started at all."""
    secret = open_folder / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    uid = users.pick()
    tries = f"cat {secret}; touch {open_folder}/new; kill -0 {os.getpid()}"
    done = jailed(open_folder, f"id -u; id -G; {tries}; grep -E 'CapEff|NoNew' /proc/self/status", uid=uid)
    if not ROOT:
        assert done.stdout == "" and "PermissionError" in (open_folder / "jail.log").read_text()
        return
    lines = done.stdout.split("\n")
    assert lines[:2] == [str(uid), str(uid)]
    assert done.stderr.count("ermi") == 3, done.stderr  # permission denied, twice; not permitted
    if sys.platform == "linux":
        assert lines[2].split() == ["CapEff:", "0000000000000000"] and lines[3].split() == ["NoNewPrivs:", "1"]


def test_nobody_can_fork_without_end(open_folder):
    line = "i=0; while [ $i -lt 30 ]; do sleep 1 & i=$((i+1)); done"
    uid, most = (users.pick(), 10) if ROOT else (None, _threads_of_this_user() + 10)
    done = jailed(open_folder, line, uid=uid, limits={"RLIMIT_NPROC": most})
    assert "fork" in done.stderr.lower()


def test_user_ids_are_nobodys():
    import pwd

    uid = users.pick()
    assert uid in users.IDS
    with pytest.raises(KeyError):
        pwd.getpwuid(uid)


def test_everybody_may_read(tmp_path):
    assert users.everybody_may_read(Path("/bin/sh"))
    (tmp_path / "f").write_text("x")
    (tmp_path / "f").chmod(0o600)
    assert not users.everybody_may_read(tmp_path / "f")
    assert not users.everybody_may_read(tmp_path / "gone")


def test_what_goes_wrong_is_in_the_log(tmp_path):
    done = jailed(tmp_path, "true", cwd=str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "FileNotFoundError" in (tmp_path / "jail.log").read_text()
