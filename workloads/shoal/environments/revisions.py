"""Branches and tags of hub repositories become commits once, in prepare; `prepared.json` says which, and every later part reads the store.

In: a run's configuration, wherever in it a repository with a revision stands. Out: the same with commits, and the list of what was resolved.
Called by `prepare`.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from shoal.contracts.hub import HubCommit
from shoal.contracts.model_source import ModelSource
from shoal.contracts.run import RunConfig
from shoal.environments.hub import HubRefused, RepositoryKind, commit_of


class Revisions:
    """Each repository and revision is asked for once. `known`: what another run resolved, whose model and tasks this one shares."""

    def __init__(self, known: Sequence[HubCommit] = ()) -> None:
        self._known = {(each.kind, each.repository, each.revision): each for each in known}
        self.used: list[HubCommit] = []

    def pinned(self, config: RunConfig) -> RunConfig:
        """The configuration with commits in the place of branches and tags. Raises `hub.HubRefused`, which begins with the field of the manifest."""
        found = self._pinned(config, "spec")
        assert isinstance(found, RunConfig)
        return found

    def _pinned(self, value: Any, field: str) -> Any:
        if isinstance(value, list):
            return [self._pinned(each, f"{field}[{number}]") for number, each in enumerate(value)]
        if not isinstance(value, BaseModel):
            return value
        changes = {
            name: changed
            for name in type(value).model_fields
            if (changed := self._pinned(found := getattr(value, name), f"{field}.{to_camel(name)}")) is not found
            and changed != found
        }
        repository, revision = getattr(value, "hugging_face", None), getattr(value, "revision", None)
        if repository is not None and revision is not None:
            kind: RepositoryKind = "model" if isinstance(value, ModelSource) else "dataset"
            try:
                changes["revision"] = self._commit(kind, repository, revision)
            except HubRefused as error:
                raise HubRefused(f"{field}: {error}", passing=error.passing) from error
        return value.model_copy(update=changes) if changes else value

    def _commit(self, kind: RepositoryKind, repository: str, revision: str) -> str:
        found = self._known.get((kind, repository, revision))
        if found is None:
            commit = commit_of(kind, repository, revision)
            found = HubCommit(kind=kind, repository=repository, revision=revision, commit=commit)
            self._known[kind, repository, revision] = found
        if found not in self.used:
            self.used.append(found)
        return found.commit
