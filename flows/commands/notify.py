"""`rstar2 notify`: tells people of promotions, holds and failures, by webhook or e-mail.

Creates notification blocks and automations on the checkout's Prefect server, which sends them.
"""

from __future__ import annotations

from pathlib import Path


def notify(
    *,
    webhook: str | None = None,
    email: str | None = None,
    sender: str | None = None,
    sendgrid_key_file: Path | None = None,
) -> int:
    """Have the server tell people of promotions, holds and failures. Safe to repeat.

    Example: rstar2 notify --webhook https://example.org/hooks/rstar2

    Parameters
    ----------
    webhook
        Address that gets a POST of `{"subject", "text"}`.
    email
        Address that gets a mail, through SendGrid.
    sender
        Address that the mail comes from; SendGrid has to know it.
    sendgrid_key_file
        File that holds the key of the SendGrid account.
    """
    from infra.services import ensure_server
    from infra.settings import load_settings, prepare_prefect_environment

    key = _checked(webhook, email, sender, sendgrid_key_file)
    settings = load_settings()
    prepare_prefect_environment(settings, ensure_server(settings, say=print))
    from flows.automations import notify_email, notify_webhook

    if webhook:
        notify_webhook(webhook)
        print(f"promotions, holds and failures are posted to {webhook}")
    if email and sender:
        notify_email(email, sender=sender, api_key=key)
        print(f"promotions, holds and failures are mailed to {email}")
    return 0


def _checked(
    webhook: str | None, email: str | None, sender: str | None, key_file: Path | None
) -> str:
    """The key of the mail account, empty for none; raises `ConfigError` where something lacks."""
    from rstar2.config import ConfigError

    if webhook and not webhook.startswith(("http://", "https://")):
        raise ConfigError(f"--webhook {webhook!r}: expected an address like https://example.org/x")
    if not email and not webhook:
        raise ConfigError("nobody to tell: expected --webhook URL, or --email ADDRESS")
    if not email:
        return ""
    if not sender or not key_file:
        raise ConfigError("--email needs --sender ADDRESS and --sendgrid-key-file FILE")
    if not key_file.is_file():
        raise ConfigError(f"--sendgrid-key-file {key_file}: no such file; it holds the key alone")
    return key_file.read_text().strip()
