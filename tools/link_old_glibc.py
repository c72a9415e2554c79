"""CMake's linker launcher for wheels: links what GCC compiled against an old glibc.

``link_old_glibc.py c++ -shared ...`` calls Zig's linker in place of ``c++``: Zig has every version
of glibc to link with. libstdc++ is linked statically and stays hidden, so that a process may have
another one. Functions that the old glibc lacks are in newer_glibc.c; wheels.py finds those that are
not.
"""

import os
import subprocess
import sys
from pathlib import Path

GLIBC = "2.28"
HERE = Path(__file__).parent


def main(compiler: str, *arguments: str) -> None:
    def ask(*question: str) -> str:
        return subprocess.check_output([compiler, *question], text=True).strip()

    machine = ask("-dumpmachine").split("-")[0]
    command = [
        *(sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.{GLIBC}"),
        # For Ninja's dependencies of a library on others: Zig does not know it.
        *(argument for argument in arguments if not argument.startswith("-Wl,--dependency-file")),
        str(HERE / "newer_glibc.c"),
        ask("-print-file-name=libstdc++.a"),
        ask("-print-file-name=libgcc_s.so.1"),
        f"-Wl,--version-script={HERE / 'exported.map'}",
        "-s",
    ]
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
