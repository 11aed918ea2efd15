"""The error whose message is shown to the user."""


class UserError(Exception):
    """An error that the user can fix. The message says what was got, what was expected and what to do.

    Any function may raise it. A docstring lists it if a function that it calls raises it.
    """
