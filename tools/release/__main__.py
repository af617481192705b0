"""`python -m tools.release VERSION --registry HOST --key cosign.key`: make a release, publish it, verify it. `make release` calls this.

Status 0; 1 with one line for each thing that is wrong. Run again, it goes on where it stopped.
"""

import argparse
import sys
from pathlib import Path

from tools.release import plan as planned
from tools.release import steps
from tools.release.plan import CannotRelease, ReleasePlan


def describe(plan: ReleasePlan) -> str:
    """What a release would make, a line each."""
    lines = [f"image  {plan.at(image)} for {', '.join(image.architectures)}" for image in plan.images]
    lines += [
        f"chart  oci://{plan.chart}:{plan.version}",
        "files  wheel, sdist, SBOMs, NOTES.md, SHA256SUMS, signatures",
    ]
    if plan.left_out:
        lines.append(f"left out: {', '.join(plan.left_out)}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Parse, check, make."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.release", description="Make a release from this checkout and publish it."
    )
    parser.add_argument("version", help="three numbers, such as 1.2.3")
    parser.add_argument(
        "--registry", required=True, help="host of the registry, with a path before all names if it needs one"
    )
    parser.add_argument("--key", default="", help="private key of cosign; COSIGN_PASSWORD has its password")
    parser.add_argument(
        "--only",
        default="",
        metavar="NAMES",
        help="some images, such as operator,trainer-cuda; the notes name the others",
    )
    parser.add_argument("--arch", default="", metavar="NAMES", help="some architectures: amd64, arm64")
    parser.add_argument(
        "--without-scan", default="", metavar="REASON", help="look for no vulnerabilities; the notes give the reason"
    )
    parser.add_argument("--folder", type=Path, help="where it is made (default: .cache/release/VERSION)")
    parser.add_argument(
        "--former-key",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="public key that an earlier release was signed with; may be given again",
    )
    parser.add_argument(
        "--build-only",
        action="store_true",
        help="build and scan, without a key; the same command without this option goes on, signs and publishes",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be made and what is wrong")
    given = parser.parse_args(arguments)

    def say(text: str) -> None:
        print(f"release: {text}", flush=True)

    try:
        names = [[each for each in text.split(",") if each] for text in (given.only, given.arch)]
        plan = planned.make_plan(given.version, given.registry, steps.roles(), *names)
        work = steps.ReleaseFolder((given.folder or steps.ROOT / ".cache" / "release" / plan.version).resolve())
        key = str(Path(given.key).resolve()) if given.key else ""
        print(describe(plan), flush=True)
        reason = given.without_scan.strip()
        for former in given.former_key:
            if not former.is_file():
                raise CannotRelease(f"there is no former key {former}")
        wrong = planned.problems(plan, steps.facts(plan, key, reason, work, given.build_only))
        if wrong or given.dry_run:
            print("".join(f"release: {one}\n" for one in wrong), file=sys.stderr, end="")
            return 1 if wrong else 0
        if given.build_only:
            steps.build(plan, reason, work, say)
            say(f"{plan.version} is built, and nothing of it is signed or named; release it without --build-only")
            return 0
        steps.make(plan, key, reason, work, say, [each.resolve() for each in given.former_key])
    except CannotRelease as refused:
        print(f"release: {refused}", file=sys.stderr)
        return 1
    say(f"{plan.version} is published; its files are in {work.files}")
    say(f"tag it: git tag -s v{plan.version} {work.done['begin']['commit'][:12]} && git push origin v{plan.version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
