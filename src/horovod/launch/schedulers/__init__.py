"""Jobs started by ``mpirun``, ``jsrun`` or LSF."""
