"""`loadmanager history jars`: brings what Spark needs beside itself. The only command that downloads anything."""

from __future__ import annotations

import click

from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.options import prints
from loadmanager_api.cli.printing import echo, show_answer
from loadmanager_api.cli.remote import Remote


@click.command()
@click.option("--spark-submit", "submit", is_flag=True, help="Print the jars as options of spark-submit, on one line.")
@click.option("--s3", is_flag=True, help="Download also the jars for a lake on S3 (s3a://…).")
@click.option(
    "--archive/--no-archive",
    "archived",
    default=True,
    show_default=True,
    help="Archive the classes that Spark loads (190 MB), for commands on this machine to begin some seconds earlier.",
)
@prints
def jars(remote: Remote, submit: bool, s3: bool, archived: bool) -> None:
    """Download the missing jars of Delta Lake and the Kafka connector, with Maven.

    The jars go to ~/.cache/loadmanager/jars, or to the folder in LOADMANAGER_HISTORY_JARS. For a machine without
    network, copy that folder. The command prints the folder. No other command downloads anything.
    """
    from loadmanager.errors import LoadManagerError
    from loadmanager.history import archive
    from loadmanager.history.jars import bring, folder

    try:
        found = bring(s3=s3)
        if archived and not archive.make():
            echo("Warning: there is no archive of classes, so commands take some seconds longer to begin", err=True)
    except (LoadManagerError, OSError) as error:
        raise Failed(str(error)) from None
    if submit:
        echo(" ".join(options()))
    elif not remote.for_people:
        show_answer(remote, {"folder": str(folder()), "jars": [path.name for path in found]})
    else:
        echo(f"{len(found)} jars in {folder()}")


def options() -> list[str]:
    """Options for spark-submit, wherever the job runs: jars, and the settings that make Delta work."""
    from loadmanager.history.session import DRIVER_LANGUAGE, configuration

    wanted = configuration().items()
    given = {name: value for name, value in wanted if name == DRIVER_LANGUAGE or not name.startswith("spark.driver.")}
    files = given.pop("spark.jars")
    return ["--jars", files, *(word for name, value in given.items() for word in ("--conf", f"{name}={value}"))]
