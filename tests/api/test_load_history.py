"""`/v1/history`: what the jobs published, and nothing else of the disk."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil
import pytest
from starlette.types import Message
from yarl import URL

from loadmanager.history import published
from loadmanager.history.published import Provenance
from loadmanager_api.routes.load_history import LoadHistory, ResultResponse, show_picture
from tests.api.conftest import WAIT_S, Cluster, Refused

MADE = Provenance(job="analyse", at=datetime(2030, 1, 31, 12, tzinfo=UTC), lake="lake")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one result of each kind."""
    root = tmp_path / "published"
    published.publish(root, "analyses/imbalance", [{"broker": "a:1", "over": 1.25}], MADE)
    published.publish(root, "audit", [], MADE, {"records": 7})
    published.publish(root, "replay", [{"candidate": "plan"}], MADE)
    published.publish(root, "replay-windows", [{"candidate": "plan", "begin": "2030-01-31T12:00:00Z"}], MADE)
    published.publish(root, "advice", [{"kind": "settings"}], MADE)
    published.publish_page(root, "<!doctype html><title>Load history</title>")
    published.publish_picture(root, "heat-map", b"\x89PNG")
    return root


async def test_without_the_setting_every_route_says_what_to_set(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    for path in ("", "/analyses", "/analyses/imbalance", "/audit", "/advice", "/report", "/pictures/heat-map.png"):
        assert "--set history_dir=" in (await refused(404, "GET", f"/v1/history{path}"))["reason"]


async def test_what_was_published_is_listed_and_sent(cluster: Cluster, root: Path) -> None:
    await cluster.start(history_dir=str(root))
    status, shown, _ = await cluster.ask("GET", "/v1/history")
    assert status == 200
    found = LoadHistory.model_validate(shown)
    assert [(each.name, each.rows) for each in found.results] == [
        ("advice", 1),
        ("analyses/imbalance", 1),
        ("audit", 0),
        ("replay", 1),
        ("replay-windows", 1),
    ]
    assert (found.pictures, found.report) == (["heat-map"], True)
    status, analyses, _ = await cluster.ask("GET", "/v1/history/analyses")
    assert [each["name"] for each in analyses] == ["analyses/imbalance"]
    status, result, headers = await cluster.ask("GET", "/v1/history/analyses/imbalance")
    assert headers["Content-Length"] == str(len(msgspec.json.encode(result)))
    assert ResultResponse.model_validate(result).rows == [{"broker": "a:1", "over": 1.25}]
    assert (await cluster.ask("GET", "/v1/history/audit"))[1]["facts"] == {"records": 7}
    assert (await cluster.ask("GET", "/v1/history/replay"))[1]["rows"] == [{"candidate": "plan"}]


async def test_everything_that_is_listed_is_served(cluster: Cluster, root: Path) -> None:
    published.publish(root, "of-a-later-release", [{"n": 1}], MADE)
    await cluster.start(history_dir=str(root))
    _, shown, _ = await cluster.ask("GET", "/v1/history")
    found = LoadHistory.model_validate(shown)
    for each in found.results:
        status, result, _ = await cluster.ask("GET", f"/v1/history/{each.name}")
        assert (status, result["name"], len(result["rows"])) == (200, each.name, each.rows)
    for path in (*(f"pictures/{name}.png" for name in found.pictures), *(["report"] if found.report else [])):
        async with cluster.session.get(f"{cluster.brokers[0].url}/v1/history/{path}") as answer:
            assert answer.status == 200, path
    assert {"advice", "audit", "replay", "replay-windows", "of-a-later-release"} < {each.name for each in found.results}
    assert (found.pictures, found.report) == (["heat-map"], True)


async def test_the_report_gets_nothing_from_anywhere(cluster: Cluster, root: Path) -> None:
    await cluster.start(history_dir=str(root))
    async with cluster.session.get(cluster.brokers[0].url + "/v1/history/report") as answer:
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "<title>Load history</title>" in await answer.text()
    async with cluster.session.get(cluster.brokers[0].url + "/v1/history/pictures/heat-map.png") as answer:
        assert (answer.status, answer.content_type, await answer.read()) == (200, "image/png", b"\x89PNG")


def is_open(root: Path, name: str) -> bool:
    """Whether this process has a file of this name open below the folder."""
    return any(
        Path(each.path).name == name and root in Path(each.path).parents for each in psutil.Process().open_files()
    )


async def test_a_client_that_goes_away_leaves_no_file_open(root: Path) -> None:
    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def never_sent(_: Message) -> None:
        await asyncio.Event().wait()

    response = await show_picture(str(root), "heat-map")
    assert is_open(root, "heat-map.png")
    async with asyncio.timeout(WAIT_S):
        await response({"type": "http"}, gone, never_sent)
    assert not is_open(root, "heat-map.png")


async def test_a_folder_that_is_empty_or_missing_is_an_empty_history(
    cluster: Cluster, tmp_path: Path, refused: Refused
) -> None:
    await cluster.start(history_dir=str(tmp_path / "nowhere"))
    assert (await cluster.ask("GET", "/v1/history"))[1] == {"results": [], "pictures": [], "report": False}
    assert "run the job" in (await refused(404, "GET", "/v1/history/replay"))["reason"]
    assert "run the job" in (await refused(404, "GET", "/v1/history/report"))["reason"]


OUT_OF_THE_FOLDER: list[str] = [
    "analyses/..%2F..%2Fsecret",
    "analyses/%2e%2e%2f%2e%2e%2fsecret",
    "analyses/..%5C..%5Csecret",
    "pictures/..%2F..%2Fsecret.png",
    "pictures/%2e%2e/%2e%2e/secret.png",
    "analyses/..%2Faudit",
    "analyses/%00",
    "analyses/imbalance.json",
    "analyses/" + "a" * 5_000,
]


@pytest.mark.slow
async def test_no_path_leads_out_of_the_folder(cluster: Cluster, root: Path, subtests: pytest.Subtests) -> None:
    for name in ("secret.json", "secret.png"):
        (root.parent / name).write_text('"treasure"')
    await cluster.start(history_dir=str(root))
    for path in OUT_OF_THE_FOLDER:
        with subtests.test(path=path[:60]):
            url = URL(f"{cluster.brokers[0].url}/v1/history/{path}", encoded=True)
            async with cluster.session.get(url) as answer:
                assert answer.status in (404, 412)
                assert "treasure" not in await answer.text()
