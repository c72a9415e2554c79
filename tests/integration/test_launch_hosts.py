"""Jobs on several hosts: this machine under several names, through a fake ssh."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fake_hosts import FakeHosts, launch

pytestmark = pytest.mark.usefixtures("no_child_is_left")


PLACES = (
    'echo "$FAKE_HOST $HOROVOD_HOSTNAME $HOROVOD_RANK/$HOROVOD_SIZE '
    '$HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE $HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE"'
)


def test_every_rank_gets_its_place(fake: FakeHosts) -> None:
    hosts = "localhost:1,host-a:2,host-b:3"
    status, out, err = launch(fake, "-np", "5", "-H", hosts, "sh", "-c", PLACES)
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == [
        "[0]<stdout>: localhost 0/5 0/1 0/3",
        "[1]<stdout>:host-a host-a 1/5 0/2 1/3",
        "[2]<stdout>:host-a host-a 2/5 1/2 0/2",
        "[3]<stdout>:host-b host-b 3/5 0/2 2/3",
        "[4]<stdout>:host-b host-b 4/5 1/2 1/2",
    ]
    assert len(fake.asked) == 2


def test_a_hostfile_and_no_more_hosts_than_needed(fake: FakeHosts, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("host-a slots=2\nhost-b slots=2\nhost-c slots=2\n")
    arguments = ("-np", "3", "--hostfile", f"{tmp_path}/hosts")
    status, out, _ = launch(fake, *arguments, "sh", "-c", PLACES)
    assert status == 0
    assert [line.split()[0].partition(":")[2] for line in sorted(out.splitlines())] == [
        "host-a",
        "host-a",
        "host-b",
    ]


def test_the_environment_of_a_worker_elsewhere(fake: FakeHosts) -> None:
    environ = {
        **fake.environ,
        "KEPT": "a 'b' \udcff\n",
        "OLDPWD": "/",
        "BASH_FUNC_f%%": "() { :; }",
        "CUDA_VISIBLE_DEVICES": "3",
        "_HOROVOD_SECRET_KEY": "old",
        "SSH_CONNECTION": "mine",
    }
    fake.first("host-b", "settings=OF_HOST=yes")
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    arguments = ("-np", "2", "-H", "localhost:1,host-b:1", "--cache-capacity", "7")
    status, out, _ = launch(fake, *arguments, sys.executable, "-c", script, env=environ)
    assert status == 0
    here, there = (
        json.loads(line.partition("{")[1] + line.partition("{")[2])
        for line in sorted(out.splitlines())
    )
    assert here["CUDA_VISIBLE_DEVICES"] == "3"
    assert there["KEPT"] == here["KEPT"] == environ["KEPT"]
    assert there["OF_HOST"] == "yes"
    assert there["PATH"] == fake.environ["PATH"]
    assert there["HOROVOD_CACHE_CAPACITY"] == "7"
    assert there["SSH_CONNECTION"].startswith("127.0.0.1 ")
    for name in ("_HOROVOD_SECRET_KEY", "HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_CONTROLLER"):
        assert there[name] == here[name]
    assert not {"OLDPWD", "BASH_FUNC_f%%", "CUDA_VISIBLE_DEVICES", "HOROVOD_GLOO_IFACE"} & set(
        there
    )


def test_one_other_host_is_a_world_on_one_host(fake: FakeHosts) -> None:
    script = "echo $HOROVOD_GLOO_IFACE $NCCL_SOCKET_IFNAME $HOROVOD_LOCAL_SIZE"
    status, out, _ = launch(fake, "-np", "1", "-H", "host-a:1", "sh", "-c", script)
    assert (status, out) == (0, "[0]<stdout>:lo lo 1\n")


def test_named_interfaces_travel_to_the_workers(fake: FakeHosts) -> None:
    script = "echo $HOROVOD_GLOO_IFACE $NCCL_SOCKET_IFNAME"
    arguments = ("-np", "2", "-H", "localhost:1,host-a:1", "--network-interfaces", "lo")
    status, out, _ = launch(fake, *arguments, "sh", "-c", script)
    assert status == 0
    assert sorted(out.splitlines()) == ["[0]<stdout>:lo lo", "[1]<stdout>:lo lo"]


def test_the_words_of_ssh(fake: FakeHosts) -> None:
    arguments = ("-np", "1", "-H", "host-a:1", "-p", "2222", "-i", "/some key")
    status, _, _ = launch(fake, *arguments, "true")
    assert status == 0
    assert fake.asked[0].startswith(
        "-o PasswordAuthentication=no -o StrictHostKeyChecking=no -o ConnectTimeout=10 "
        "-o ServerAliveInterval=15 -o ServerAliveCountMax=8 "
        "-p 2222 -i /some key host-a exec /bin/sh -c "
    )


def test_kubexec_replaces_ssh(fake: FakeHosts) -> None:
    program = fake.folder / "kubexec.sh"
    program.write_text('#!/bin/sh\nexport FAKE_HOST=pod.$1\nshift\nexec /bin/sh -c "$*"\n')
    program.chmod(0o755)
    environ = {**fake.environ, "OMPI_MCA_plm_rsh_agent": str(program)}
    arguments = ("-np", "1", "-H", "host-a:1", "sh", "-c", "echo $FAKE_HOST")
    status, out, _ = launch(fake, *arguments, env=environ)
    assert (status, out) == (0, "[0]<stdout>:pod.host-a\n")


def test_the_working_directory_is_the_launchers(fake: FakeHosts, tmp_path: Path) -> None:
    folder = tmp_path / "a 'folder'"
    folder.mkdir()
    status, out, _ = launch(fake, "-np", "1", "-H", "host-a:1", "pwd", cwd=folder)
    assert (status, out) == (0, f"[0]<stdout>:{folder}\n")


def test_a_working_directory_that_is_not_there(fake: FakeHosts, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    fake.first("host-a", f"rmdir {tmp_path}/gone; cd /")
    status, out, _ = launch(fake, "-np", "1", "-H", "host-a:1", "pwd", cwd=tmp_path / "gone")
    assert (status, out) == (0, "[0]<stdout>:/\n")


def test_a_host_without_this_python_uses_its_own(fake: FakeHosts) -> None:
    (fake.folder / "bin").mkdir()
    (fake.folder / "bin" / "python3").symlink_to(sys.executable)
    line = f'set -- "$(echo "$*" | sed s:{sys.executable}:/none/python3:g)"'
    fake.first("host-a", f"{line}; settings=PATH={fake.folder}/bin")
    status, out, err = launch(fake, "-np", "1", "-H", "host-a:1", "echo", "here")
    assert (status, out, err) == (0, "[0]<stdout>:here\n", "")


def test_the_secret_is_in_no_command_line_and_no_message(fake: FakeHosts) -> None:
    script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo; echo \"secret $_HOROVOD_SECRET_KEY\""
    arguments = (
        "-np",
        "1",
        "-H",
        "host-a:1",
        "--verbose",
        "--output-filename",
        f"{fake.folder}/logs",
    )
    status, out, err = launch(fake, *arguments, "sh", "-c", script)
    assert status == 0
    *lines, told = out.splitlines()
    secret = told.split()[-1]
    assert len(secret) == 44
    assert secret not in err
    assert "horovod.launch" in "".join(lines)
    assert not [line for line in lines if secret in line]
    assert not [line for line in fake.asked if secret in line]


def test_all_workers_reach_the_store(fake: FakeHosts) -> None:
    script = (
        "import base64, os\n"
        "from horovod.rendezvous.store.client import StoreClient\n"
        "where = os.environ['HOROVOD_GLOO_RENDEZVOUS_ADDR']\n"
        "port = int(os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT'])\n"
        "secret = base64.b64decode(os.environ['_HOROVOD_SECRET_KEY'])\n"
        "store = StoreClient((where, port), secret, timeout_s=30)\n"
        "rank = int(os.environ['HOROVOD_RANK'])\n"
        "store.set(f'r{rank}', b'x')\n"
        "for other in range(4): store.get(f'r{other}', 30)\n"
    )
    arguments = ("-np", "4", "-H", "host-a:1,localhost:1,host-b:2")
    status, out, err = launch(fake, *arguments, sys.executable, "-c", script)
    assert (status, out, err) == (0, "", "")


def test_verbose_lines(fake: FakeHosts) -> None:
    arguments = ("-np", "3", "-H", "localhost:1,host-a:1,host-b:1", "--verbose", "true")
    status, _, err = launch(fake, *arguments)
    assert status == 0
    for text in (
        "Filtering local host names.",
        "Remote host found: host-a host-b",
        "Checking ssh on all remote hosts.",
        "SSH was successful into all the remote hosts.",
        "Launched horovod server.",
        "started rank 2 on host-b (pid ",
        "rank 2 on host-b (pid ",
    ):
        assert text in err


def test_sixty_four_hosts(fake: FakeHosts) -> None:
    hosts = ",".join(f"host-{index}:1" for index in range(64))
    arguments = ("-np", "64", "--start-timeout", "120", "-H", hosts, "sh", "-c", "echo $FAKE_HOST")
    status, out, err = launch(fake, *arguments)
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == sorted(f"[{i}]<stdout>:host-{i}" for i in range(64))
    assert len(fake.asked) == 64


def test_standard_input_reaches_rank_0_only_on_this_machine(fake: FakeHosts) -> None:
    (fake.folder / "input").write_text("typed\n")
    for hosts, expected in (("localhost:1,host-a:1", 1), ("host-a:1,localhost:1", 0)):
        with (fake.folder / "input").open() as file:
            status, out, _ = launch(fake, "-np", "2", "-H", hosts, "cat", stdin=file)
        assert status == 0
        assert out.count("typed") == expected
