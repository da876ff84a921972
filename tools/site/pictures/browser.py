"""What a browser draws of a page, light and dark, as small WebP files."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

_QUALITY = 82  # half the bytes of a PNG of 256 colours, and the skies are smooth
_SCHEMES = {"light": "1", "dark": "0"}  # as chromium's settings number them


def photograph(page: Path, picture: Path, width: int, height: int) -> None:
    """Writes `picture`-light.png and `picture`-dark.png of the top of a page.

    Args:
        page: an HTML or SVG file.
        picture: the path without the ending.
        width, height: of the window, in pixels.

    Raises:
        FileNotFoundError: there is no browser.
        subprocess.CalledProcessError: it failed.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise FileNotFoundError("a browser is needed: apt-get install chromium")
    for scheme, number in _SCHEMES.items():
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder, "whole.png")
            command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            command += [f"--user-data-dir={folder}/profile", f"--blink-settings=preferredColorScheme={number}"]
            command += [f"--window-size={width},{height}", f"--screenshot={whole}", page.absolute().as_uri()]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            with Image.open(whole) as drawn:
                drawn.save(picture.with_name(f"{picture.name}-{scheme}.webp"), quality=_QUALITY, method=6)
