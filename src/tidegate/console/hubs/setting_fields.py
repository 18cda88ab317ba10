"""The form fields of a hub's settings, generated from their declaration."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.console.frame.forms import optional_number
from tidegate.model.hub_settings import HUB_SETTINGS, HubChanges, HubSetting, HubSettings, hub_changes_in
from tidegate.model.limits import TierLimits


def setting_fields(limits: TierLimits) -> list[tuple[HubSetting, str]]:
    """Each setting of a hub, and the hint below its field in a namespace with these limits."""
    return [(each, _hint(each, limits)) for each in HUB_SETTINGS]


def _hint(setting: HubSetting, limits: TierLimits) -> str:
    default = setting.default if setting.default_value is None else str(setting.default_value(limits))
    most = "" if isinstance(setting.maximum, int) else f"; at most {setting.maximum(limits):,}"
    return f"Empty: {default}{most}."


def setting_texts(settings: HubSettings) -> dict[str, str]:
    """A hub's settings as its form shows them."""
    return {name: "" if value is None else str(value) for name, value in settings.settings().items()}


def changed_settings(fields: Mapping[str, str], before: Mapping[str, str]) -> HubChanges:
    """The settings whose fields differ from those shown. Raises FieldError.

    Unchanged fields are omitted, so that a value that comes from the tier stays the tier's.
    """
    fields = {name: text.replace("\r\n", "\n") for name, text in fields.items()}  # as browsers end lines
    return hub_changes_in(
        {
            each.name: optional_number(fields, each.name, each.noun)
            if each.kind is int
            else fields[each.name]
            for each in HUB_SETTINGS
            if each.name in fields and fields[each.name] != before.get(each.name)
        }
    )
