"""Install wheels into empty environments and run them on two ranks: ``make test-wheels``.

The environments are temporary, and their programs find no compiler: nothing but the environment is
on the path. A wheel of another architecture runs under QEMU's emulation, for which Debian's Python
of that architecture is unpacked; without QEMU, or without such a Python, it is left out.
``--examples`` runs the examples of all frameworks, too.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from wheels import find_python, run

ROOT = Path(__file__).parent.parent
EXAMPLES = {
    "torch": "pytorch/digits.py",
    "tensorflow-cpu": "tensorflow/digits.py",
    "jax": "jax/digits.py",
    "keras": "keras/digits_fit.py",
}
DEBIAN = {"aarch64": "arm64", "x86_64": "amd64"}
SUITES = {"3.11": "bookworm", "3.13": "trixie"}  # of Debian, and the Python that each has
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
OPTIONS = (
    *("--disable-pip-version-check", "-q", "--only-binary=:all:"),
    f"-c{ROOT}/requirements/constraints.txt",
)
PROGRAM = """
import numpy as np
import horovod.numpy as hvd

hvd.init()
assert hvd.size() == 2
for length in (3, 100_000):
    total = hvd.allreduce(np.full(length, hvd.rank() + 1, np.float32), op=hvd.Sum)
    assert (total == 3).all()
assert hvd.allgather_object(hvd.rank()) == [0, 1]
hvd.shutdown()
"""
# In a compiled program an error of the engine passes through the library of the framework.
COLLECTIVES = {
    "jax": """
import jax
import horovod.jax as hvd

collective, ones = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum)), jax.numpy.ones
""",
    "tensorflow-cpu": """
import tensorflow as tf
import horovod.tensorflow as hvd

collective, ones = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum)), tf.ones
""",
}
MISTAKES = """
import numpy as np

hvd.init()
for _ in range(3):
    try:
        np.asarray(collective(ones(2 + hvd.rank())))
    except Exception as error:
        assert "shapes must match" in str(error), error
    else:
        raise AssertionError("no error")
    assert np.asarray(collective(ones(2))).tolist() == [2, 2]
hvd.shutdown()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--examples", nargs="*", choices=EXAMPLES, default=[])
    given = parser.parse_args()
    skipped = 0
    for wheel in given.wheels:
        with tempfile.TemporaryDirectory() as folder:
            if platform.machine() in wheel.name:
                try_here(wheel, Path(folder), given.examples)
            elif not try_emulated(wheel, Path(folder)):
                skipped += 1
                print(f"{wheel.name}: nothing here runs it")
    print(f"{len(given.wheels) - skipped} passed, 0 failed, {skipped} skipped")


def python_of(wheel: Path) -> str:
    """The oldest version that the wheel is for."""
    return "3." + wheel.name.split("-")[2].removeprefix("cp3")


def emulated_python_of(wheel: Path) -> str | None:
    """A version that the wheel is for, among those that Debian has."""
    oldest = python_of(wheel)
    for version in SUITES:
        is_newer = int(version.split(".")[1]) > int(oldest.split(".")[1])
        if version == oldest or ("abi3" in wheel.name and is_newer):
            return version
    return None


def try_here(wheel: Path, folder: Path, examples: list[str]) -> None:
    run(find_python(python_of(wheel)), "-m", "venv", str(folder))
    pip = (f"{folder}/bin/python", "-m", "pip", "install", *OPTIONS)
    run(*pip, *examples, *(["optax", "scikit-learn"] if examples else []), "numpy")
    start = time.monotonic()
    run(*pip, str(wheel))
    print(f"{wheel.name}: installed in {time.monotonic() - start:.1f} s", flush=True)
    programs = [write_program(folder, PROGRAM)]
    for name in examples:
        programs.append(ROOT / "examples" / EXAMPLES[name])
        if name in COLLECTIVES:
            programs.append(write_program(folder, COLLECTIVES[name] + MISTAKES, f"wrong_{name}.py"))
    for program in programs:
        run_on_two_ranks([f"{folder}/bin/horovodrun"], f"{folder}/bin/python", program, folder)


def write_program(folder: Path, text: str, name: str = "program.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def run_on_two_ranks(
    horovodrun: list[str], python: str, program: Path, folder: Path, **environment: str
) -> None:
    print("+ horovodrun -np 2", python, program, flush=True)
    subprocess.run(
        [*horovodrun, "-np", "2", python, str(program)],
        cwd=folder,
        env={"HOME": str(folder), "PATH": f"{folder}/bin", **environment},
        check=True,
        timeout=900,
    )


def try_emulated(wheel: Path, folder: Path) -> bool:
    """Run a wheel of another architecture; False where that cannot be."""
    architecture = wheel.stem.rpartition("_2_28_")[2]
    version = emulated_python_of(wheel)
    qemu = shutil.which(f"qemu-{architecture}-static")
    if qemu is None or version is None:
        return False
    if not unpack_debian(DEBIAN[architecture], version, folder):
        return False
    python = folder / f"usr/bin/python{version}"
    emulated = python.rename(python.with_suffix(".emulated"))
    # What starts `sys.executable` starts QEMU again.
    python.write_text(f'#!/bin/sh\nexec {qemu} -L {folder} -0 "$0" {emulated} "$@"\n')
    python.chmod(0o755)
    packages = folder / "packages"
    platforms = [f"--platform=manylinux{name}_{architecture}" for name in ("_2_28", "2014")]
    target = ("--target", str(packages), "--python-version", version, *platforms)
    pip = (sys.executable, "-m", "pip", "install", *OPTIONS)
    run(*pip, *target, str(wheel))
    launch = [str(python), "-m", "horovod.runner.launch"]
    program = write_program(folder, PROGRAM)
    run_on_two_ranks(launch, str(python), program, folder, PYTHONPATH=str(packages))
    return True


def unpack_debian(architecture: str, version: str, folder: Path) -> bool:
    """Unpack Debian's Python and what it needs into ``folder``; False without Debian's mirror."""
    ask = ("apt-get", "indextargets", "--format=$(REPO_URI)", "Created-By: Packages")
    targets = subprocess.run([*ask, "Label: Debian"], capture_output=True, text=True)
    if targets.returncode or not targets.stdout:
        return False
    apt = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True)
    mirror = targets.stdout.split()[0]
    keys = f"signed-by={KEYS}"
    (apt / "sources.list").write_text(f"deb [{keys}] {mirror} {SUITES[version]} main\n")
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Dir::State": str(apt),
        "Dir::State::status": "/dev/null",
        "Dir::Cache": str(apt),
        "Dir::Etc::sourcelist": str(apt / "sources.list"),
        "Dir::Etc::sourceparts": "/dev/null",
    }
    apt_get = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    run(*apt_get, "update")
    packages = (f"python{version}", "libstdc++6")
    download = [*apt_get, "-y", "--no-install-recommends", "--download-only", "install", *packages]
    if subprocess.run(download).returncode:
        return False
    for package in (apt / "archives").glob("*.deb"):
        run("dpkg-deb", "-x", str(package), str(folder))
    if not (folder / "lib").exists():  # newer suites have all libraries in usr/lib
        (folder / "lib").symlink_to("usr/lib")
    return True


if __name__ == "__main__":
    main()
