"""The error that a user is shown: one sentence."""


class UserError(Exception):
    """Something the user can mend. The message says what was got, what was expected and what to do.

    Any function may raise it. A docstring says so where that does not show in the function itself.
    """
