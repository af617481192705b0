"""The whole report from a run folder: a page that stands by itself, a JSON with the promised keys, and the model beside them."""

import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from run_documents import RunFolder, sample, step_metrics, verdict

from shoal.contracts import keys
from shoal.contracts.completions import LengthReward
from shoal.contracts.final_model import ORIGIN_FILE, FinalModel, ModelOrigin, read_origin
from shoal.report.access import NoRun, open_run
from shoal.report.collect import ModelPlace
from shoal.report.export import export_model
from shoal.report.plots import Line, draw
from shoal.report.records import SessionRecord
from shoal.report.write import Report, make_report

REQUIRED = {
    "reward_start", "reward_end", "steps", "files_accepted", "files_rejected", "bytes_broadcast", "engine", "relay",
    "store", "wall_seconds", "busy_seconds",
}  # fmt: skip
FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 12}


class Page(HTMLParser):
    """Counts elements and collects every attribute that could fetch something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data")]


@pytest.fixture
def run(tmp_path) -> RunFolder:
    run = RunFolder(tmp_path)
    for step in range(10):
        run.add_step(step_metrics(step, task_reward=0.3 + step / 20, entropy=1 - step / 20))
    run.add_verdict(verdict(0, "accept"))
    run.add_verdict(verdict(1, "reject", "computation"))
    run.add_records(
        SessionRecord(unix=0, event="start"),
        *(
            sample(t, container, pod, cpu_seconds=t / 2, metrics={'shoal_busy_seconds_total{phase="update"}': t / 2})
            for t in range(0, 121, 5)
            for container, pod in (("trainer", "demo-trainer-1"), ("worker", "demo-pool-0"))
        ),
        SessionRecord(unix=125, event="stop", outcome="complete"),
    )
    return run


def make(run: RunFolder) -> Report:
    return make_report(run.path, run.path / "metrics.jsonl", run.path / "model")


def test_report_json_has_every_promised_key(run) -> None:
    document = json.loads(make(run).json.read_bytes())
    assert set(document) >= REQUIRED
    assert document["reward_start"] == pytest.approx(0.35)
    assert document["reward_end"] == pytest.approx(0.65)
    assert document["busy_seconds"] == {"trainer": 60.0, "worker": 60.0}
    assert document["wall_seconds"] == 125
    assert (document["files_accepted"], document["files_rejected"], document["steps"]) == (1, 1, 10)


def test_the_page_stands_by_itself_and_has_a_plot_for_every_curve(run) -> None:
    page = Page(make(run).html.read_text())
    assert page.tags.count("svg") == 7  # reward, gradient norm, clip ratio, entropy, policy lag, length, utilisation
    assert all(link.startswith("#") for link in page.links)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)


def test_no_id_occurs_twice_in_the_page(run) -> None:
    ids = re.findall(r'\bid="([^"]+)"', make(run).html.read_text())
    assert len(ids) == len(set(ids))
    assert ids


def test_a_plot_is_well_formed_and_names_its_axes_with_units() -> None:
    svg = draw("length", [Line("mean", [0, 1], [3.0, 4.0])], "step", "tokens")
    words = "".join(ElementTree.fromstring(svg).itertext())
    assert "step" in words
    assert "tokens" in words


def test_every_reference_within_a_plot_is_to_an_id_of_the_same_plot() -> None:
    svg = draw("length", [Line("mean", [0, 1], [3.0, 4.0])], "step", "tokens")
    used = set(re.findall(r'xlink:href="#([^"]+)"', svg)) | set(re.findall(r"url\(#([^)]+)\)", svg))
    assert used
    assert used <= set(re.findall(r'\bid="([^"]+)"', svg))


def test_hostile_text_in_readings_is_escaped(run) -> None:
    run.add_records(
        sample(60, "worker", metrics={'shoal_engine_info{engine="<script>alert(1)</script>\\u001b[2J"}': 1.0})
    )
    page = make(run).html.read_text()
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page


def test_a_run_that_has_only_begun_has_a_report_with_notes_and_no_plots(tmp_path) -> None:
    page = Page(make(RunFolder(tmp_path)).html.read_text())
    assert "svg" not in page.tags


def test_a_folder_without_an_orchestrator_says_why_there_is_no_report(tmp_path) -> None:
    with pytest.raises(NoRun, match="has no orchestrator yet: the run ended before its base model was prepared"):
        make_report(tmp_path, tmp_path / "metrics.jsonl", tmp_path / "model")


def test_the_last_version_is_exported_whole_and_an_older_export_is_replaced(run) -> None:
    run.add_version(1, FILES)
    assert make(run).data.model is not None
    run.add_version(2, FILES | {"model.safetensors": b"new" * 1000})
    report = make(run)
    assert report.data.model is not None
    assert report.data.model.version == 2
    assert (run.path / "model" / "model.safetensors").read_bytes() == b"new" * 1000
    assert [path.name for path in run.path.iterdir() if path.name.startswith(".model")] == []


def test_the_base_model_alone_is_no_trained_model(run) -> None:
    run.add_version(0, FILES)
    assert export_model(open_run(run.path), run.path / "model") is None


def test_how_the_run_asked_lies_beside_its_model(run) -> None:
    run.config = run.config.model_copy(update={"length_reward": LengthReward(targets=[20])})
    (run.home / "config" / "run.json").write_bytes(run.config.to_json())
    run.add_version(3, FILES)
    make(run)
    assert read_origin(run.path / "model") == ModelOrigin(run="demo", version=3, targets=[20], max_completion_tokens=32)


def put_result(run: RunFolder, version: int, **changed: bytes) -> None:
    """`models/final/` as a run of mode SFT leaves it; `changed` are files that are not what the seal says."""
    for name, data in FILES.items():
        run.store.put(keys.FINAL_MODEL + name, changed.get(name.partition(".")[0], data))
    files = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
    run.store.put(keys.FINAL_SEAL, FinalModel(run="demo", version=version, model_id="demo/tiny", files=files).to_json())


def test_a_run_that_publishes_no_versions_has_its_result_exported_and_its_losses_told(run) -> None:
    run.add_step(step_metrics(0, epoch=0.5, loss=2.0, held_out_loss=2.5))
    run.add_step(step_metrics(9, epoch=1.0, loss=0.5, held_out_loss=0.75))
    put_result(run, 10)
    report = make(run)
    assert report.data.model == ModelPlace(str(run.path / "model"), 10)
    assert {path.name for path in (run.path / "model").iterdir()} == {*FILES, ORIGIN_FILE}
    assert [command.title for command in report.commands] == ["With transformers:", "With vLLM:"]
    put_result(run, 11)
    again = make(run)
    assert again.data.model is not None
    assert again.data.model.version == 11


def test_a_result_that_is_not_what_its_seal_says_is_not_exported(run) -> None:
    put_result(run, 10, model=b"other weights")
    report = make(run)
    assert report.data.model is None
    assert [path.name for path in run.path.iterdir() if "model" in path.name] == []
    assert any("models/final/model.safetensors has SHA-256" in note for note in report.data.notes)


def test_a_version_with_a_flipped_bit_is_not_exported_and_the_report_says_so(run) -> None:
    run.add_version(1, FILES)
    shard = "versions/v000001/00000.bin"
    data = bytearray(run.store.get(shard))
    data[5] ^= 1
    run.store.put(shard, bytes(data))
    report = make(run)
    assert report.data.model is None
    assert not (run.path / "model").exists()
    assert any("shard 0 of version 1 does not have the SHA-256" in note for note in report.data.notes)
