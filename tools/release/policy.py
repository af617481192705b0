"""Which known vulnerabilities keep a release from being made: the policy, and its judgement of grype's reports. Pure.

The policy: no image and no package is released with a vulnerability of severity High or Critical for which a fix exists. An exception
(`exceptions.json`) names one vulnerability and one package, gives a reason, and ends on a day. A report that cannot be read refuses the release.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from tools.release.plan import CannotRelease

REFUSED = ("High", "Critical")
FIXED = "fixed"
POLICY = "No image or package has a known vulnerability of severity High or Critical that has a fix"


@dataclass(frozen=True)
class Exemption:
    """One vulnerability of one package that a release may have, until a day."""

    vulnerability: str
    package: str
    reason: str
    until: date


def exemptions(document: Any) -> list[Exemption]:
    """Those of `exceptions.json`. Raises CannotRelease for an entry that says too little or too much."""
    made = []
    if not isinstance(document, list):
        raise CannotRelease("exceptions.json must be a list")
    for number, each in enumerate(document):
        fields = {"vulnerability", "package", "reason", "until"}
        if (
            not isinstance(each, dict)
            or set(each) != fields
            or not all(isinstance(one, str) and one for one in each.values())
        ):
            raise CannotRelease(
                f"exceptions.json: entry {number} must have exactly these texts: {', '.join(sorted(fields))}"
            )
        try:
            until = date.fromisoformat(each["until"])
        except ValueError:
            raise CannotRelease(
                f"exceptions.json: entry {number}: {each['until']!r} is no day such as 2027-01-31"
            ) from None
        made.append(Exemption(each["vulnerability"], each["package"], each["reason"], until))
    return made


def refusals(reports: Mapping[str, Any], excepted: list[Exemption], today: date) -> list[str]:
    """A line for each vulnerability that the policy refuses, by subject (an image's key or a file).

    `reports` are grype's JSON documents. Raises CannotRelease for one that is no such document: an empty answer proves nothing.
    """
    lines = []
    allowed = {(one.vulnerability, one.package): one for one in excepted}
    for subject, report in reports.items():
        matches = report.get("matches") if isinstance(report, dict) else None
        if not isinstance(matches, list):
            raise CannotRelease(f"the report on {subject} has no list of matches; the scan did not work")
        for match in matches:
            try:
                found, package = match["vulnerability"], match["artifact"]
                name, severity, state = found["id"], found["severity"], found["fix"]["state"]
                what, version = package["name"], package["version"]
            except (KeyError, TypeError):
                raise CannotRelease(
                    f"the report on {subject} has a match that cannot be read: {str(match)[:200]}"
                ) from None
            if severity not in REFUSED or state != FIXED:
                continue
            exempt = allowed.get((name, what))
            if exempt is not None and today <= exempt.until:
                continue
            fixes = ", ".join(map(str, found["fix"].get("versions") or [])) or "a later version"
            ended = f" (its exception ended on {exempt.until})" if exempt is not None else ""
            lines.append(f"{subject}: {name} ({severity}) in {what} {version}, fixed by {fixes}{ended}")
    return sorted(set(lines))


def statement(reason: str, database: str, excepted: list[Exemption]) -> str:
    """What the notes say of the scan. `reason` is why there was none, or empty; `database` names the day of grype's."""
    if reason:
        return f"**These images were not scanned for known vulnerabilities**: {re.sub(r'[^ -~]', ' ', reason).strip()}. The policy was not applied."
    text = f"{POLICY}, by grype's database of {database}."
    return text + "".join(
        f" Excepted until {one.until}: {one.vulnerability} in {one.package}, because {one.reason}." for one in excepted
    )
