"""Why a bundle moved or stayed, and what another setting would have decided."""
