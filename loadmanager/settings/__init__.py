"""Every setting with its unit, default and bounds.

Sources are the environment (`LOADMANAGER_…`), the command line and code; for live settings also the cluster's own
values (`loadmanager.settings.dynamic`). Pydantic checks input from outside; inside, settings are passed as this frozen
object, never read ambiently. Each section of the fields has its own file; this one has the constraints between fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pydantic import field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from loadmanager.settings.access import Access
from loadmanager.settings.advising import Advising
from loadmanager.settings.balancing import TOLERANCES, Balancing, Tolerance
from loadmanager.settings.describing import Description, described
from loadmanager.settings.http import HttpLimits
from loadmanager.settings.load import Load
from loadmanager.settings.observing import Observing
from loadmanager.settings.place import Place
from loadmanager.settings.reshaping import Reshaping
from loadmanager.settings.running import Running
from loadmanager.settings.shedding import Shedding
from statechannel.law.bundle import DOTS

__all__ = ["MAX_PORT", "TOLERANCES", "Description", "Settings", "Tolerance", "descriptions"]

MAX_PORT = 65_535
MOST = 1e15
"""The upper bound of every number: larger ones could overflow in 64-bit columns or in a database."""
MOST_S = 1e9
"""The upper bound of every duration: 30 years."""


class Settings(
    Advising, Reshaping, Shedding, Balancing, Load, Running, HttpLimits, Access, Observing, Place, BaseSettings
):
    """How one broker runs. Durations end in `_s`, sizes in `_bytes`."""

    model_config = SettingsConfigDict(env_prefix="LOADMANAGER_", frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Code before the environment, which is only searched if it names a setting: a search takes milliseconds."""
        assert isinstance(env_settings, EnvSettingsSource)
        named = {f"{env_settings.env_prefix}{name}".lower() for name in cls.model_fields}
        return (init_settings,) if named.isdisjoint(env_settings.env_vars) else (init_settings, env_settings)

    @model_validator(mode="after")
    def _within_reason(self) -> Settings:
        for name, value in self:
            most = MOST_S if descriptions()[name].unit == "s" else MOST
            if isinstance(value, int | float) and value > most:
                raise ValueError(f"{name} must not be above {most:g}")
        return self

    @field_validator("cluster")
    @classmethod
    def _no_path(cls, cluster: str) -> str:
        if cluster in DOTS:  # it is a part of paths, in ZooKeeper and on disks
            raise ValueError("a cluster's name must not be . or ..")
        return cluster

    @model_validator(mode="after")
    def _ordered(self) -> Settings:
        if self.load_ttl_s < 2 * self.load_report_max_interval_s:
            most = f"load_report_max_interval_s ({self.load_report_max_interval_s:g})"
            raise ValueError(f"load_ttl_s must be at least twice {most}")
        if self.load_report_max_interval_s < self.load_report_min_interval_s:
            least = f"load_report_min_interval_s ({self.load_report_min_interval_s:g})"
            raise ValueError(f"load_report_max_interval_s must not be below {least}")
        if self.session_timeout_s < self.proof_validity_s:
            raise ValueError(f"session_timeout_s must not be below proof_validity_s ({self.proof_validity_s:g})")
        if self.tombstone_delay_s <= self.in_flight_timeout_s:
            raise ValueError(f"tombstone_delay_s must be above in_flight_timeout_s ({self.in_flight_timeout_s:g})")
        if self.avg_high_percent < self.avg_low_percent:
            raise ValueError(f"avg_high_percent must not be below avg_low_percent ({self.avg_low_percent:g})")
        if not isinstance(self.balancing_tolerance, str) and not 0 < self.balancing_tolerance <= 1:
            raise ValueError("balancing_tolerance must be tight, default, loose, or a fraction above 0 and up to 1")
        return self

    @model_validator(mode="after")
    def _complete(self) -> Settings:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key belong together: give both or neither")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tls_client_ca needs tls_certificate: clients show certificates over TLS only")
        if self.tls_client_required and not self.tls_client_ca:
            raise ValueError("tls_client_required needs tls_client_ca, the authorities of the required certificates")
        for name, url in (("token_keys", self.token_keys), ("token_issuer", self.token_issuer)):
            if url.startswith("http://"):
                raise ValueError(f"{name} must be https: whoever is on the way could replace the keys")
        if self.token_issuer and not self.token_keys and not self.token_issuer.startswith("https://"):
            raise ValueError("token_keys is missing: only an https token_issuer is asked for its keys")
        if self.takes_tokens and not self.token_audience:
            raise ValueError("token_audience must not be empty: a token for any other service would do here")
        if self.authentication and not self.superuser_names:
            raise ValueError("superusers is empty: name at least one, who writes the first access policy")
        if "*" in self.superuser_names:
            raise ValueError("superusers must be names; for everybody (*), write an access policy")
        if self.superuser_names and not self.authentication:
            raise ValueError("superusers needs token_keys, token_issuer or tls_client_ca: nobody could prove to be one")
        return self

    @property
    def tolerance(self) -> float:
        """By how much a broker may be fuller than the mean, as a fraction of the mean."""
        chosen = self.balancing_tolerance
        return TOLERANCES[chosen] if isinstance(chosen, str) else chosen

    @property
    def margin_s(self) -> float:
        """How long the leader waits beyond V: at least 100 ms, and enough for clocks that drift apart."""
        return max(0.1, self.clock_drift * self.proof_validity_s)


@cache
def descriptions() -> Mapping[str, Description]:
    """The description of each setting by its name, section by section."""
    return {name: described(name, field) for name, field in Settings.model_fields.items()}
