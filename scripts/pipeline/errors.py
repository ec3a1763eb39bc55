"""The one exception a user is meant to read."""


class PipelineError(Exception):
    """A mistake in parameters, claims, inputs or assets.

    The message names the paper, key or file, says what was found and what is allowed, and ends
    with what to do. Programs print it without a traceback and exit with status 1.
    """
