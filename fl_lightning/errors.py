"""Errors a federation can end with."""


class FederationError(RuntimeError):
    """A round could not be completed: too few clients answered. The last good model and checkpoint stay."""


class ResumeError(ValueError):
    """A checkpoint does not belong to this configuration, these clients or this data."""


# What a user can put right: told without a traceback.
MISTAKES = (ValueError, FederationError, OSError)
