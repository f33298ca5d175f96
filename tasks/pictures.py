"""What a run shows on its page in Prefect may be lost: a server that is away costs no work.

The same facts are in the ledger and the catalogue. Writes one warning for each picture that is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from httpx import HTTPError

log = logging.getLogger(__name__)


@contextmanager
def shown(what: str) -> Iterator[None]:
    """Around a call that only shows something on the run's page."""
    try:
        yield
    except HTTPError as error:
        log.warning("%s is not shown, the run goes on: no Prefect server (%s)", what, error)
