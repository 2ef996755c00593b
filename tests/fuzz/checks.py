"""What Schemathesis checks of every answer here beyond what it knows itself: the process that runs it loads this file.

`FUZZ_REFUSED` in its environment is the only status of requests that need credentials, where there are none.
"""

from __future__ import annotations

import os

import schemathesis

REFUSED = int(os.environ.get("FUZZ_REFUSED", "0"))


@schemathesis.check
def says_when_to_try_again(ctx: object, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """429 and 503 have Retry-After."""
    if response.status_code in (429, 503):
        assert "retry-after" in response.headers, "there is no Retry-After"


@schemathesis.check
def refuses_no_valid_request(ctx: object, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """Of requests that fit the schema, 400 is for a cursor or a revision only: any text may be one.

    And for `/v1/policies/namespace/TENANT/history`, which is the path of the policy of the namespace TENANT/history.
    """
    if response.status_code == 400 and case.meta is not None and case.meta.generation.mode.is_positive:
        detail = str(response.json().get("detail"))
        known = detail.startswith("query.cursor: ") or case.path in ("/v1/watch", "/v1/policies/{kind}/{name}/history")
        assert known, f"it is refused: {detail}"


@schemathesis.check
def lets_nobody_in(ctx: object, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """Who shows no good credentials gets one answer, whatever is asked; what a web page could send gets 415."""
    if REFUSED and case.operation.definition.raw.get("security"):
        assert response.status_code in (REFUSED, 415), f"{response.status_code} without credentials"
