"""Analysis of the recordings of one world: pure functions over ``Recording``, without texts.

They take the recordings of a world by rank, as ``horovod.trace.worlds`` collects them; ranks may
be missing. With too few events they return nothing instead of a guess. Durations are in
nanoseconds.
"""
