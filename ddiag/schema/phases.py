"""Small integers that mean the same in the recorder and in the reader; never renumbered, only added to."""

from __future__ import annotations

from enum import IntEnum, IntFlag

FORMAT_VERSION = 1
"""Of everything in a run folder; a reader refuses a folder with a higher one."""


class Phase(IntEnum):
    """What the training thread is doing."""

    NONE = 0
    INPUT = 1
    H2D = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5
    CLIP = 6
    CHECKPOINT = 7
    EVALUATION = 8
    LOGGING = 9
    COMPILE = 10
    OTHER = 11
    ZERO_GRAD = 12


AGAIN = "again: "
"""Begins the label of a COMPILE phase of a function that was compiled before."""


class Kind(IntEnum):
    """What a record of the ring is about."""

    COLLECTIVE = 1
    PHASE = 2
    STEP = 3
    PAUSE = 4
    """Garbage collection: ``op`` is a :class:`Pause`."""
    UNIT = 5
    """A sharded unit is gathered, waited for or resharded: ``op`` is a :class:`Unit`."""
    COPY = 6
    """A host-device copy of offloading: ``op`` is a :class:`Copy`."""
    MARK = 7
    """A moment: ``op`` is a :class:`Mark`."""


class Op(IntEnum):
    """Collectives, by the field's names."""

    UNKNOWN = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    BROADCAST = 4
    REDUCE = 5
    ALL_TO_ALL = 6
    GATHER = 7
    SCATTER = 8
    SEND = 9
    RECV = 10
    BARRIER = 11
    COALESCED = 12
    WAIT = 13
    """The host waited for a collective (exposed communication on a host backend)."""


class Pause(IntEnum):
    """What stops the training thread; retries of a device's allocator are counted per step."""

    GC = 1


class Unit(IntEnum):
    UNSHARD = 1
    WAIT_UNSHARD = 2
    RESHARD = 3
    REDUCE_GRAD = 4
    PREFETCH = 5


class Copy(IntEnum):
    H2D = 1
    D2H = 2
    SWAP_IN = 3
    SWAP_OUT = 4
    CPU_OPTIMIZER = 5


class Mark(IntEnum):
    OPTIMIZER_SKIPPED = 1
    LOSS_SCALE = 2
    BUCKETS_REBUILT = 4
    UNSCALE = 5
    CLIP_BEFORE_UNSCALE = 6
    NO_SYNC = 7
    PROFILE_START = 8
    PROFILE_END = 9


class Flag(IntFlag):
    ASYNC = 1
    DEVICE_TIMED = 2
    """start and end are device times mapped to the host clock."""
    FROM_NATIVE = 4
    """Issued below Python (DDP's reducer, functional collectives)."""
    FAILED = 8
    END_IS_WAIT = 16
    """end_ns is when the host saw completion, not when it happened."""
    NO_SYNC = 32
    """Inside ``no_sync()``."""
    SAMPLED = 64
    """Only some steps are recorded with this tier."""
    INFERRED = 128
    """Not marked by a call of its own: a FORWARD that is the time from the last mark to the backward pass."""
    END_UNKNOWN = 256
    """Nobody tells when this collective is over: its state stays ISSUED, which says nothing about a hang.

    With DEVICE_TIMED the device has told meanwhile."""


class State(IntEnum):
    """How far a record got; what is left after a crash is the evidence."""

    FREE = 0
    OPEN = 1
    """Begun (a collective: about to be issued)."""
    ISSUED = 2
    """The issuing call returned."""
    DONE = 3
    FAILED = 4
