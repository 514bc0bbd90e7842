"""When are two script errors the same error? Same type, same place, same words (numbers that vary by process aside)."""

import re
import traceback

from understudy.state.digests import digest_text


def fingerprint_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
    words = re.sub(r"0x[0-9a-fA-F]+", "0x", str(error))
    return digest_text(f"{type(error).__qualname__}|{place}|{words}".encode())[:16]
