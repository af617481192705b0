"""`shoal push`: puts a run's trained model, its tokenizer and a generated card on a model hub, in one commit.

The model is taken out of the store by `report.export`, every piece checked, and uploaded through huggingface_hub. A push that broke is run again.
Files that the hub has are not sent again (chunks with Xet). The repository changes only when all of it is there.
A 65 GB model is read twice, for its digests and for the upload.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from shoal.contracts.signed import BadSignature
from shoal.errors import InputWrong, RunFailed
from shoal.report.access import RunAccess
from shoal.report.export import check_replaceable, export_model
from shoal.report.model_card import UNKNOWN_LICENCE, model_card, read_facts
from shoal.storage import NotFound, StoreUnavailable
from shoal.storage.checkpoint_files import WrongWeights
from shoal.text import Say, count, plain, secret_values, size, without_secrets

CARD = "README.md"
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
"""What an earlier push may have left of another number of files: taken out of the repository by the same commit."""
TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105 - its name
PROGRESS_VARIABLE = "HF_HUB_DISABLE_PROGRESS_BARS"


def push(
    access: RunAccess, run_key: str, folder: Path, repository: str, say: Say,
    *, token_file: Path | None, licence: str | None, private: bool, dry_run: bool,
) -> None:  # fmt: skip
    """Upload the newest version, or say what would be. `folder`: where the model is exported to, or lies already.

    Raises `InputWrong` for what the user can change, `RunFailed` for a hub that did not take it.
    """
    owner, slash, name = repository.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise InputWrong(
            f"--to {plain(repository, 200)}: give owner/name, as in the address of the repository on the hub"
        )
    token = _token(token_file)
    try:
        facts = read_facts(access, run_key)
        if facts is None:
            raise InputWrong(f"run {access.run} has trained no version yet, so there is nothing to push")
        card = model_card(facts, repository, licence or UNKNOWN_LICENCE)
        if dry_run:
            say(card.rstrip("\n"))
            return
        check_replaceable(folder)
        place = export_model(access, folder)
        if place is not None and place.version != facts.version:  # trained since the facts were read
            facts = replace(facts, version=place.version)
            card = model_card(facts, repository, licence or UNKNOWN_LICENCE)
    except (WrongWeights, BadSignature, NotFound, ValidationError) as error:
        raise RunFailed(f"the model cannot be taken out of the run's store: {plain(error, 400)}") from None
    except StoreUnavailable as error:
        raise RunFailed(f"the run's store is away: {plain(error, 400)}") from None
    say(f"{access.run}: version {facts.version} goes to {repository}")
    url = _upload(folder, card, repository, f"Version {facts.version} of run {access.run}", token, say, private=private)
    say(f"pushed: {url}")


def _token(path: Path | None) -> str | None:
    """The token of a file, else that of the environment; None: the one that huggingface_hub has stored."""
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputWrong(
            f"--token-file {plain(path, 200)}: cannot be read: {getattr(error, 'strerror', 'not a text')}"
        ) from None
    if not token or any(character.isspace() for character in token):
        raise InputWrong(f"--token-file {plain(path, 200)}: must hold one token and nothing else")
    return token


def _upload(
    folder: Path, card: str, repository: str, message: str, token: str | None, say: Say, *, private: bool
) -> str:
    """One commit with all files; returns its address."""
    os.environ.setdefault(PROGRESS_VARIABLE, "1")  # bars are drawn over our lines
    from httpx2 import HTTPError  # what the library itself speaks by
    from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(token=token)
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    try:
        api.create_repo(repository, private=private or None, exist_ok=True)
        there = api.model_info(repository)
        if private and not there.private:
            raise InputWrong(
                f"--private: {repository} is there already, and public: make it private on its page, or leave --private out"
            )
        names = {path.name for path in files}
        left = [
            each.rfilename
            for each in there.siblings or []
            if WEIGHTS.fullmatch(each.rfilename) and each.rfilename not in names
        ]
        total = sum(path.stat().st_size for path in files)
        say(f"{count(len(files) + 1)} files, {size(total)}; what the hub has already is not sent again")
        operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = [
            CommitOperationAdd(CARD, card.encode()),
            *(CommitOperationAdd(path.name, path) for path in files if path.name != CARD),
            *(CommitOperationDelete(name) for name in left),
        ]
        return str(api.create_commit(repository, operations, commit_message=message).commit_url)
    except HfHubHTTPError as error:
        raise _refused(error.response.status_code, _first_line(error, token), repository) from None
    except ValueError as error:  # a name or a card's metadata that the hub does not allow
        raise InputWrong(f"--to {plain(repository, 200)}: {_first_line(error, token)}") from None
    except (OSError, HTTPError, RuntimeError) as error:  # RuntimeError: its own word for a file that could not be sent
        raise RunFailed(
            f"the hub at {without_secrets(api.endpoint, [])} did not take it: {_first_line(error, token)}; run the command again"
        ) from None


def _refused(status: int, said: str, repository: str) -> Exception:
    if status in (401, 403):
        return InputWrong(
            f"the hub does not let you write to {repository} ({status}): give a token with write access by {TOKEN_VARIABLE} or --token-file"
        )
    if status < 500 and status != 429:
        return InputWrong(f"the hub refuses {repository}: {said}")
    return RunFailed(f"the hub did not take {repository}: {said}; run the command again, what it has is not sent again")


def _first_line(error: Exception, token: str | None) -> str:
    """What a library says, without tokens and logins."""
    secrets = [*secret_values(os.environ), *([token] if token else [])]
    lines = [line.strip() for line in without_secrets(str(error), secrets).splitlines() if line.strip()]
    return plain(" ".join(lines[:2]) or type(error).__name__, 400)
