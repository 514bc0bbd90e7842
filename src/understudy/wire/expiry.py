"""Certificates that have ended, as a reason why there is no connection: TLS seldom tells a client that."""

from understudy.wire.certificates import Certificates
from understudy.wire.renewal import day_of


def ended(certificates: Certificates, now: float) -> str:
    """A clause for people, which stays the same however often it is said. Empty: none has ended. `now`: the time of
    day."""
    over = {file: end for file, end in certificates.ends().items() if end <= now}
    if not over:
        return ""
    files = ", ".join(f"{certificates.folder / file} (on {day_of(end)})" for file, end in over.items())
    return f"the certificate has ended: {files}; new files are used without a restart"
