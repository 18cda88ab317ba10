"""What ``tidegate.processor`` exports is documented, typed, and exported once."""

from __future__ import annotations

import inspect

import tidegate.processor


def test_every_exported_name_is_documented_and_typed() -> None:
    """Each name has a docstring, and each public method of each class a docstring and a return type."""
    names = tidegate.processor.__all__
    assert len(names) == len(set(names))
    for name in names:
        exported = getattr(tidegate.processor, name)
        assert exported.__doc__, name
        if not inspect.isclass(exported):
            continue
        for attribute, value in vars(exported).items():
            function = value.__func__ if isinstance(value, classmethod) else value
            if attribute.startswith("_") or not inspect.isfunction(function):
                continue
            assert function.__doc__, f"{name}.{attribute}"
            assert "return" in function.__annotations__, f"{name}.{attribute}"
