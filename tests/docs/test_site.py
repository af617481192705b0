"""The site: a strict build passes, nothing of it comes from another host, every page can be reached, pictures read on light and dark."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from servers import ROOT

FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object|link(?=[^>]*rel=\"?(?:stylesheet|icon|preload|preconnect|dns-prefetch)))"
    r"[^>]*?(?:src|href|data)=\"?((?:https?:)?//[^\s\">]+)"
)
SVG = "{http://www.w3.org/2000/svg}"
PICTURES = sorted((ROOT / "docs" / "concepts").glob("*.svg"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    ended = subprocess.run(
        build, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return folder


def test_a_strict_build_has_every_page(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        shown = name.parent / "index.html" if name.stem in ("README", "index") else name
        assert (site / shown).is_file(), f"{page.name} is not on the site"


def test_nothing_is_fetched_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not FETCHED.findall(text), page.name
        assert 'class="mermaid"' not in text, f"{page.name}: the theme would fetch mermaid from another host"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text()), sheet.name


def test_the_search_index_knows_the_pages_and_not_the_sources(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"architecture.html", "cli.html", "security.html"} <= places
    assert not [place for place in places if place.startswith("source/")]


def test_every_page_is_in_the_navigation_or_linked_from_a_page_that_is() -> None:
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)) - {"index.md"}
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    texts = [(ROOT / "README.md").read_text(), *((ROOT / "docs" / page).read_text() for page in sorted(listed & pages))]
    linked = {Path(target).name for text in texts for target in re.findall(r"\]\(([^)#\s]+\.md)", text)}
    assert {page for page in pages - listed if Path(page).name not in linked} == set()
    runbooks = (ROOT / "docs" / "runbooks" / "README.md").read_text()
    assert all(f"({Path(page).name})" in runbooks for page in pages if re.match(r"runbooks/Shoal", page))


def test_every_alert_has_a_runbook_on_the_site(site: Path) -> None:
    groups = yaml.safe_load((ROOT / "charts" / "shoal" / "files" / "alerts.yaml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert alerts
    assert {alert for alert in alerts if not (site / "runbooks" / f"{alert}.html").is_file()} == set()


def test_there_are_pictures() -> None:
    assert len(PICTURES) >= 6


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_reads_on_light_and_dark_and_needs_nothing_else(picture: Path) -> None:
    text = picture.read_text()
    root = ElementTree.fromstring(text)
    assert root.find(f"{SVG}title") is not None
    assert root.find(f"{SVG}desc") is not None
    assert root.get("viewBox")
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"(href|url)\s*[=(]\s*[\"']?(https?:)?//", text.replace("http://www.w3.org", ""))
    assert not [
        element for element in root.iter() if element.tag in (f"{SVG}script", f"{SVG}image", f"{SVG}foreignObject")
    ]
    width = float(root.get("viewBox", "0 0 0 0").split()[2])
    for element in root.iter(f"{SVG}text"):
        at = float(element.get("x", "0"))
        assert 0 <= at <= width, f"{picture.name}: {element.text} lies outside"
