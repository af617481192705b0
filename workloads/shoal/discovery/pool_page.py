"""The public page of a run that lends of strangers' machines: what each open pool asks, what is paid, and the command that joins. Pure.

In: the run's configuration and the offer that `shoal node join` gets. Out: HTML without script, with text of the run escaped. It names no node, no
code and no secret. Served by discovery at `/`, where whoever is given the URL to join looks first.
"""

from html import escape

from shoal.contracts.pools import Requirements
from shoal.contracts.run import JoinOffer, OpenPool, RunConfig
from shoal.text import count, plain

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1c242c}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.4rem .8rem;border-bottom:1px solid #dfe4e8;vertical-align:top}"
    "code{background:#e8edf1;padding:.1rem .3rem;overflow-wrap:anywhere}"
)
WORK = {
    "Train": "reinforcement learning: nodes sample answers, from which the run's trainer learns",
    "Generate": "data generation: nodes sample answers, which become a dataset",
    "SFT": "supervised fine-tuning: nodes score versions",
}


def pool_page(config: RunConfig, offer: JoinOffer) -> str:
    """The page; a run without an open pool says so."""
    url = config.addresses.public_discovery or config.addresses.discovery
    rows = "".join(_row(pool, url) for pool in offer.pools)
    table = f"<table><tr><th>pool<th>asked<th>who may join<th>command</tr>\n{rows}</table>" if rows else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(offer.run)}</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>{_text(offer.run)}</h1>\n"
        f"<p>Model {_text(offer.model_id)}; {WORK.get(config.mode, _text(config.mode))}.<br>"
        f"Run key <code>{_text(offer.run_key)}</code>: compare it with what the run's owner gave you.</p>\n"
        f"<h2>Pools</h2>\n{table or '<p>No pool is open to machines of strangers.</p>'}\n"
        f"<h2>What is paid</h2>\n<p>{_paid(config)}</p>\n</body></html>\n"
    )


def _row(pool: OpenPool, url: str) -> str:
    asked = "<br>".join(_text(each) for each in asked_of(pool.requirements)) or "any machine"
    command = f"shoal node join {url} --pool {pool.name}" + (" --invite-code-file FILE" if pool.codes else "")
    return (
        f"<tr><td>{_text(pool.name)}<td>{asked}<td>{_text(admitted(pool))}<td><code>{_text(command, 700)}</code></tr>\n"
    )


def asked_of(wanted: Requirements) -> list[str]:
    """What a machine must have, a line each; none: nothing."""
    numbers = (
        (wanted.gpus, f"{wanted.gpus} GPUs"),
        (wanted.gpu_memory_gib, f"{wanted.gpu_memory_gib} GiB of memory in each GPU"),
        (len(wanted.gpu_types), f"GPUs: {', '.join(wanted.gpu_types)}"),
        (wanted.cpus, f"{wanted.cpus} cores"),
        (wanted.memory_gib, f"{wanted.memory_gib} GiB of memory"),
        (wanted.disk_gib, f"{wanted.disk_gib} GiB of free disk"),
        (wanted.uplink_mbps, f"an uplink of {wanted.uplink_mbps} Mbit/s"),
        (wanted.gflops, f"{wanted.gflops} Gflop/s of arithmetic"),
    )
    return [words for number, words in numbers if number]


def admitted(pool: OpenPool) -> str:
    """Who may join, in words."""
    if not pool.listed and not pool.codes:
        return "any machine"
    ways = [("whose key is listed", pool.listed), ("with an invite code", pool.codes)]
    return "machines " + " or ".join(words for words, there in ways if there)


def _paid(config: RunConfig) -> str:
    probation = config.validation.probation_files
    after = f"once {count(probation)} files of a node were accepted" if probation else "from the first accepted file"
    return (
        f"Credit in the run's ledger: one for each token of an accepted file, counted {after}. Validators check files; a node that is evicted for a"
        " rejected file loses its credit. Anyone can check the ledger, and <code>shoal node earned</code> shows a node's own share. What credit is"
        " worth is for the run's owner to say: Shoal pays no money."
    )


def _text(value: object, limit: int = 300) -> str:
    return escape(plain(value, limit), quote=True)
