"""What recordings of one world mean. Pure functions over ``Recording``: no texts, no output.

All take the recordings of a world by rank, as ``horovod.trace.worlds`` collects them; a rank may
be missing. Where too little was recorded they return nothing instead of a guess. Durations are in
nanoseconds.
"""
