"""A Hugging Face hub: which commit a revision is, a model's configuration, and the files of a data set's subset and split.

In: repository, revision, subset, split. Out: a commit, parsed JSON, files in a folder. A README's `configs` say what subsets and splits are; without
them a subset is a folder and a split is in the names of the files, as on the hub itself. Every refusal is `HubRefused`, in one line. Called by
`task_source`, by `prepare` through `revisions`, and by `shoal init`. Token and endpoint come from the environment (`HF_TOKEN`, `HF_ENDPOINT`).
"""

import fnmatch
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import yaml

from shoal.environments.datasets import BadDataset, split_names
from shoal.errors import MayPass

RepositoryKind = Literal["model", "dataset"]
COMMIT = re.compile(r"[0-9a-f]{40}")
ANSWER_SECONDS = 10.0
"""A hub answers in well under a second; who is behind a wall that swallows packets should hear of it soon."""
LONGEST_HEADER = 1 << 20
BUSY = (408, 425, 429)
"""Statuses below 500 that a hub gives to right requests: it is busy."""


class HubRefused(MayPass):
    """A repository is not available from the hub."""


@contextmanager
def explained(repository: str, revision: str, kind: str) -> Iterator[None]:
    """Turn what the hub's library raises into HubRefused, in one line that says what to do. `kind`: `model` or `data set`."""
    import httpx2  # what the library itself speaks by
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = f"{kind} {repository}"
    cannot = f"cannot get the {where} at revision {revision}"
    try:
        yield
    except GatedRepoError as error:
        raise HubRefused(
            f"{where} is gated: ask for access on its page, and give prepare a token of an account that has it (HF_TOKEN)"
        ) from error
    except RepositoryNotFoundError as error:
        raise HubRefused(
            f"there is no {where} on the hub, or prepare's token (HF_TOKEN) may not read it: check huggingFace"
        ) from error
    except RevisionNotFoundError as error:
        raise HubRefused(f"{where} has no revision {revision!r}: give a branch, tag or commit that it has") from error
    except HFValidationError as error:
        raise HubRefused(f"huggingFace: {repository!r} is no name of a repository; write owner/name") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if isinstance(error, EntryNotFoundError):
            raise HubRefused(f"{cannot}: it lists a file that it does not have; give another revision") from error
        if 400 <= status < 500 and status not in BUSY:
            raise HubRefused(
                f"{cannot}: the hub refuses with status {status}: check huggingFace, and prepare's token (HF_TOKEN)"
            ) from error
        raise HubRefused(f"{cannot}: {_one_line(error)}", passing=True) from error
    except (LocalEntryNotFoundError, httpx2.HTTPError, OSError) as error:
        raise HubRefused(f"{cannot}: {_one_line(error)}", passing=True) from error


def is_away(error: BaseException | None) -> bool:
    """Whether the hub or the network is at fault for an error, whatever a library wrapped it in."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    while error is not None:
        if isinstance(error, HfHubHTTPError):
            return error.response.status_code >= 500 or error.response.status_code in BUSY
        if isinstance(error, ConnectionError | TimeoutError | httpx2.HTTPError):
            return True
        error = error.__cause__ or error.__context__
    return False


def commit_of(kind: RepositoryKind, repository: str, revision: str) -> str:
    """The commit that a branch, tag or commit of a repository is now, 40 hex digits. Raises HubRefused."""
    if COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi

    name = "model" if kind == "model" else "data set"
    with explained(repository, revision, name):
        found = HfApi().repo_info(repository, repo_type=kind, revision=revision, timeout=ANSWER_SECONDS).sha
    if found is None or not COMMIT.fullmatch(found):
        raise HubRefused(f"the hub names no commit for the {name} {repository} at revision {revision}: give the commit")
    return found


def model_config(repository: str, revision: str, folder: Path | None = None) -> dict[str, Any]:
    """`config.json` of a model on a hub, fetched into `folder` or the user's cache. Raises HubRefused."""
    from huggingface_hub import hf_hub_download

    with explained(repository, revision, "model"):
        path = hf_hub_download(
            repository, "config.json", revision=revision, local_dir=folder, etag_timeout=ANSWER_SECONDS
        )
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise HubRefused(f"config.json of {repository} cannot be read: {_one_line(error)}") from error
    if not isinstance(found, dict):
        raise HubRefused(f"config.json of {repository} is not a JSON object")
    return found


def fetch(repository: str, revision: str, subset: str | None, split: str, folder: Path) -> list[Path]:
    """Files of one split, in order. Raises BadDataset, and HubRefused."""
    from huggingface_hub import HfApi

    with explained(repository, revision, "data set"):
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        info = api.dataset_info(repository, revision=revision)
        names = sorted(each.rfilename for each in info.siblings or [])
        commit = info.sha or revision

        def get(name: str) -> Path:
            if ".." in name.split("/") or name.startswith("/"):
                raise BadDataset(f"data set {repository} names a file {name[:200]!r} outside of it; give another one")
            return Path(api.hf_hub_download(repository, name, repo_type="dataset", revision=commit, local_dir=folder))

        header = read_header(get("README.md")) if "README.md" in names else {}
        return [get(name) for name in chosen(header, names, subset, split, f"data set {repository}")]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def read_header(readme: Path) -> Mapping[str, Any]:
    """The YAML header of a README, empty without one. BadDataset when it cannot be read."""
    text = readme.read_bytes()[:LONGEST_HEADER].decode(errors="replace").replace("\r\n", "\n")
    if not text.startswith("---\n"):
        return {}
    try:
        found = yaml.safe_load(text[4:].partition("\n---")[0])
    except (yaml.YAMLError, RecursionError) as error:
        raise BadDataset(
            f"README.md of the data set has a header that is not YAML: {str(error).splitlines()[0][:200]}"
        ) from error
    return found if isinstance(found, dict) else {}


def chosen(header: Mapping[str, Any], names: Sequence[str], subset: str | None, split: str, where: str) -> list[str]:
    """Paths of a split's files among `names`, as the header's `configs` or the names say. Raises BadDataset."""
    configs = [each for each in header.get("configs") or [] if isinstance(each, dict) and each.get("config_name")]
    if not configs:
        return split_names(names, split, subset, where)
    by_name = {str(each["config_name"]): each for each in configs}
    if subset is None:
        usual = [name for name, each in by_name.items() if each.get("default") or name == "default"]
        usual = usual or (list(by_name) if len(by_name) == 1 else [])
        if not usual:
            raise BadDataset(f"{where} has subsets {', '.join(by_name)} and no default; name one as subset")
        subset = usual[0]
    if subset not in by_name:
        raise BadDataset(f"{where} has no subset {subset!r}; there is {', '.join(by_name)}")
    given = by_name[subset]
    below = str(given.get("data_dir") or "").strip("/")
    files = given.get("data_files")
    if files is None:
        return split_names(
            [name for name in names if name.startswith(f"{below}/")] if below else names, split, None, where
        )
    patterns = _patterns(files)
    if split not in patterns:
        raise BadDataset(f"{where}, subset {subset!r}, has no split {split!r}; there is {', '.join(patterns)}")
    wanted = [f"{below}/{pattern}" if below else pattern for pattern in patterns[split]]
    found = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)]
    if not found:
        raise BadDataset(f"{where}, subset {subset!r}, names files {', '.join(wanted)[:200]} that it does not have")
    return found


def _patterns(files: Any) -> dict[str, list[str]]:
    """Patterns of paths by split: one for all, a list, a mapping, or a list of splits with their paths."""

    def listed(value: Any) -> list[str]:
        return [str(each) for each in (value if isinstance(value, list) else [value])]

    if isinstance(files, dict):
        return {str(name): listed(paths) for name, paths in files.items()}
    if isinstance(files, list) and files and all(isinstance(each, dict) for each in files):
        return {str(each.get("split", "train")): listed(each.get("path", [])) for each in files}
    return {"train": listed(files)}
