"""Every setting of a broker (`catalogue.py`), and how the cluster changes them while brokers run (`live.py`)."""

from loadmanager.settings.catalogue import MAX_PORT, TOLERANCES, Description, Settings, Tolerance, descriptions

__all__ = ["MAX_PORT", "TOLERANCES", "Description", "Settings", "Tolerance", "descriptions"]
