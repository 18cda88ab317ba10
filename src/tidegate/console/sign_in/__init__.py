"""``/console/sign-in`` and ``/console/sign-out``."""
