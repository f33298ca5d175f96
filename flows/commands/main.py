"""The root of the `rstar2` command: groups, exit codes, and how an error reads.

The groups import nothing but cyclopts at their top and the rest inside each command, so that
`grade`, `sandbox`, `catalog`, `plan` and `doctor` load neither prefect nor torch (a test holds it).
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 waiting for a person.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from flows.commands import catalog, filter, gate, sandbox, sft
from flows.commands.deploy import deploy
from flows.commands.doctor import doctor
from flows.commands.grade import grade
from flows.commands.ingest import ingest
from flows.commands.interrupt import INTERRUPTED
from flows.commands.notify import notify
from flows.commands.owner import owner
from flows.commands.plan import plan
from flows.commands.run import run
from flows.commands.services import down, status, up
from infra.sandbox.resident import SandboxError

DONE, FAILED, WRONG_USAGE = 0, 1, 2
ROOMS = frozenset({"flows", "tasks", "infra", "data_catalog", "rstar2"})


def _version() -> str:
    return f"rstar2 {importlib.metadata.version('rstar2')}"


app = App(
    name="rstar2",
    help="Trains a tool-using model by the rStar2-Agent recipe.\n\nExample: rstar2 run laptop",
    version=_version,
    help_format="plaintext",
)
for command in (
    *(
        run,
        plan,
        ingest,
        gate.app,
        filter.app,
        owner,
        catalog.app,
        sft.app,
        up,
        down,
        status,
        deploy,
        notify,
        doctor,
        grade,
    ),
    sandbox.app,
):
    app.command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. A user's mistake never shows a traceback."""
    try:
        result = app(
            list(arguments) if arguments is not None else None,
            exit_on_error=False,
            print_error=True,
            result_action="return_value",
        )
    except CycloptsError:  # printed by cyclopts, with the usage
        return WRONG_USAGE
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on where it was", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return DONE
    except (ValueError, RuntimeError, OSError, SandboxError) as error:
        return _report(error)
    return result if isinstance(result, int) else DONE


def _report(error: Exception) -> int:
    """Prints an error that a person can act on; one of unknown origin is a bug and goes on up.

    Our own exceptions are such messages: a `ValueError` says that what was asked for is wrong, a
    `RuntimeError` that it could not be done. So are the operating system's, about a file or a port.
    """
    if type(error).__module__.partition(".")[0] in ROOMS:
        print(f"rstar2: {error}", file=sys.stderr)
        return WRONG_USAGE if isinstance(error, ValueError) else FAILED
    if isinstance(error, OSError):
        print(f"rstar2: {_os_message(error)}", file=sys.stderr)
        return FAILED
    raise error


def _os_message(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
