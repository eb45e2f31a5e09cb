"""The HTML page: it is complete in itself, and in a browser it shows what the model says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from minillama.errors import InvalidInputError
from minillama.generate import LanguageModel
from minillama.trace.report import report

IDS = [5, 77, 200, 13]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def page(model: LanguageModel, ids: list[int] = IDS) -> str:
    return report(model, ids, lambda token: f"<t{token}></script>&")


def test_the_page_is_complete_and_safe(model: LanguageModel) -> None:
    html = page(model)
    assert not re.findall(r"""(?:src|href)\s*=|url\(|@import|https?://|fetch\(""", html)
    assert html.count("</script>") == 1  # texts of tokens cannot end it
    assert "/*DATA*/" not in html


def test_too_long(model: LanguageModel) -> None:
    with pytest.raises(InvalidInputError, match="the text has 257 tokens, a page has room for 256"):
        page(model, [1] * 257)


if BROWSER is not None or os.environ.get("CI"):  # elsewhere a machine without a browser has the tests above

    def rendered(html: str, tmp_path: Path, script: str) -> str:
        """The page's document after a script has run on it."""
        assert BROWSER is not None, "no chromium, chromium-browser or google-chrome on the path"
        path = tmp_path / "page.html"
        path.write_text(html.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def test_in_a_browser(model: LanguageModel, tmp_path: Path) -> None:
        clicks = (
            'document.querySelectorAll(".token")[1].click(); document.querySelectorAll("tr.layer")[1].click();'
            'document.querySelectorAll("figure")[2].click();'
        )
        shown = rendered(page(model), tmp_path, clicks)
        assert 'data-ready="yes"' in shown
        assert "Attention of layer 1, head 2" in shown
        assert "Likeliest tokens after position 1" in shown
        assert len(re.findall(r'class="token', shown)) == len(IDS)
        best = int(np.argmax(model.logits(IDS)[1]))
        first = re.search(r'id="next">.*?class="text">([^<]*)<', shown)
        assert first is not None
        assert first[1].startswith(f"&lt;t{best}&gt;")
