"""The import path for starting a job by ``mpirun``; the code is in ``horovod.launch.compat``."""

from horovod.launch.compat.runs import (
    is_intel_mpi,
    is_mpich,
    is_open_mpi,
    is_spectrum_mpi,
    mpi_available,
    mpi_run,
)

__all__ = ["is_intel_mpi", "is_mpich", "is_open_mpi", "is_spectrum_mpi", "mpi_available", "mpi_run"]
