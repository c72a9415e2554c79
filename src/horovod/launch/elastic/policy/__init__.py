"""What an elastic job does next: which workers start, end, and form which world.

A pure state machine: events come in with the time, actions go out. It has no clock and no thread
and touches nothing. The driver tells it what happens and carries out what it decides. Its states:
*apart* (no world: before the first one, and from a member's loss or departure until the next),
*together*, *finishing* (a training function has returned, or a worker has exited with 0) and over.

A worker's own states; a reset follows a failure, or an update at a commit::

    starting --init--> provisional rank --train--> ready --rank--> running --done--> exit
                                                     ^                |
                                                     +---- reset -----+

The rules:

- Rank 0 is the survivor with the newest state version, so ``sync`` sends the newest commit.
- A newcomer starts in the background. Its first ``init`` gets a *provisional rank*, the numbers
  that it will probably have. Only when it is ready for the world an *update* interrupts the others,
  at their next commit. A *spare*, above ``--max-np``, waits at the same place. It takes over
  without an interruption of its own.
- The ranks of a world are assigned at one moment. Its members then connect under keys of this
  world. If one of them dies meanwhile, the driver *abandons* these keys: the store answers every
  member that waits there, and ``init`` asks for another rank. So no wait depends on a timeout while
  the driver lives.
- After a failure the survivors go on when all of them are ready, if they suffice.
- A worker that exits with 0 in training has failed if another one then asks for a rank.
- No decision ends the last worker that has the state. On a blacklisted or removed host it waits for
  newcomers, is rank 0 of a world with them, and leaves after their sync.
- The driver says whether ``sync`` is needed (``RankAssignment.must_sync``): it must be the same on
  all members, and only the driver knows whether a newcomer is among them.
- A worker is lost when its process ends, when the connection to its host ends, or when another
  member's error names it and it does not come back within a second (a stopped process: within the
  stall shutdown time). If no other worker has the state, it has the elastic timeout.
"""
