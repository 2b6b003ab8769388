# SPDX-License-Identifier: Apache-2.0
"""What a call raises besides the handler's own exceptions. All are a HapaxError."""
from __future__ import annotations


class HapaxError(Exception):
    """An operation that gave no result.

    answer:       "in_flight", …: the answer of Hapax; what docs/door.md and problems of a gate call it
    retry_after:  seconds after which asking again, with the same key, may help; None: time does not help
    differs:      of a Mismatch: "fingerprint" or "caller"
    attempt:      of the record, where one was seen; otherwise 0
    """

    answer = "error"

    def __init__(self, text: str = "", *, retry_after: float | None = None, differs: str | None = None,
                 attempt: int = 0):
        super().__init__(text or self.answer)
        self.retry_after, self.differs, self.attempt = retry_after, differs, attempt


class InFlight(HapaxError):
    """Another attempt runs: ask again after `retry_after`."""
    answer = "in_flight"


class Unknown(HapaxError):
    """Nobody knows what an earlier attempt did. An operator decides; nothing was run."""
    answer = "unknown"


class Mismatch(HapaxError):
    """The key was used with other arguments, or by another caller."""
    answer = "mismatch"


class Failed(HapaxError):
    """All attempts that the policy attempts_max allows are used up; or a stored failure is replayed."""
    answer = "failed"


class Gone(HapaxError):
    """It took effect, but its result was too long to be kept."""
    answer = "gone"


class Expired(HapaxError):
    """The key's time is over: it took effect, and its result is no longer kept (policy tombstone); or it was made
    longer ago than results are kept (policy key_expires). Nothing was run now."""
    answer = "expired"


class StoreDown(HapaxError):
    """The store, or the door, cannot be reached, ends, or has no room; nothing was run."""
    answer = "store_down"


class BadKey(HapaxError):
    """The key is malformed, or shorter than the policy key_min."""
    answer = "bad_key"


class MissingKey(BadKey):
    """The policy asks for a key, and there is none."""
    answer = "missing_key"


class MissingOwner(HapaxError):
    """The policy asks for an owner, and there is none; or the owner or the caller that was given is empty."""
    answer = "missing_owner"


class TooLarge(HapaxError):
    """What was asked is over a limit."""
    answer = "too_large"


class Limited(HapaxError):
    """The owner of the key is over a limit; from a gate alone."""
    answer = "limited"


class Invalid(HapaxError, ValueError):
    """The door refuses the call: a policy, a name or a limit. The text says which; nothing was run."""
    answer = "invalid"


class Indeterminate(HapaxError):
    """The door is gone, or took no result. The handler ran, and whether its result is stored is not known: ask again,
    with the same key."""
    answer = "indeterminate"


class ClaimLost(HapaxError):
    """Raised by Op.check(): another attempt may be running. Stop, and write nothing more."""
    answer = "lost"


class NotRun(Exception):
    """Raise this in a handler to say that surely nothing was done: the next call runs the handler. Once a step was
    begun the attempt has failed all the same: the step may have had its effect. It counts once, for the call whose
    handler raised it: where it passes on through the handler of another call, that one has failed. Raise a new one
    each time."""


class NotRunElsewhere(NotRun):
    """What a task of Celery raises in place of its handler's NotRun, with the same arguments. It has counted, and
    counts for no other call, though a backend of results makes it anew in another process."""


BY_ANSWER = {error.answer: error for error in (*HapaxError.__subclasses__(), MissingKey)}
