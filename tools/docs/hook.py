"""The site's hook for mkdocs: README.md is the front page, and files outside docs/ that pages link to get a page each below `source/`.

So the repository's Markdown reads the same on a forge and on the site, and the built folder needs nothing but itself.
"""

import posixpath
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.docs.links import is_external, links, resolved, rewritten, site_path  # noqa: E402 - needs the path above

MAX_BYTES = 400_000
LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".py": "python", ".json": "json", ".sh": "sh", ".tsv": "text", "": "text"}
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the front page and every page below `source/` that is linked to, also from pages below `source/`."""
    sources = {
        f"docs/{file.src_uri}": Path(file.abs_src_path or "").read_text() for file in files.documentation_pages()
    }
    sources["README.md"] = (ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=sources["README.md"]))
    waiting, seen = list(sources), set(sources)
    while waiting:
        name = waiting.pop()
        for _, target in links(sources[name]):
            path, _ = resolved(name, target)
            if is_external(target) or path in seen or path.startswith(("docs/", "..")) or not (ROOT / path).exists():
                continue  # what is not there stays a link to nothing, which a strict build reports
            seen.add(path)
            sources[path] = _source_page(path)
            files.append(File.generated(config, site_path(path), content=sources[path]))
            if path.endswith(".md") or (ROOT / path).is_dir():
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site needs them."""
    uri = page.file.src_uri
    if uri == "index.md":
        return rewritten(markdown, "README.md")
    if uri.startswith("source/"):
        return rewritten(markdown, uri.removeprefix("source/").removesuffix(".md"))
    return rewritten(markdown, f"docs/{uri}")


def _source_page(path: str) -> str:
    """A page that shows a file of the repository, or lists a folder."""
    place = ROOT / path
    if place.is_dir():
        name = posixpath.basename(path)
        listed = [f"- [{below.name}]({name}/{below.name})" for below in sorted(place.iterdir()) if _is_shown(below)]
        return f"{HIDDEN}# {path}\n\n" + "\n".join(listed) + "\n"
    if place.suffix == ".md":
        return HIDDEN + place.read_text()
    text = place.read_text()
    if len(text) > MAX_BYTES:
        text = text[:MAX_BYTES] + "\n(the rest is left out here)"
    language = LANGUAGES.get(place.suffix, "text")
    return f"{HIDDEN}# {path}\n\n~~~~{language}\n{text.rstrip()}\n~~~~\n"


def _is_shown(place: Path) -> bool:
    if place.name.startswith((".", "__")):
        return False
    return place.suffix in LANGUAGES or place.suffix == ".md" or place.is_dir()
