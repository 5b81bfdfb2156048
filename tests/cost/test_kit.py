"""Kits for other devices: written, run without superformer, and imported. The networks are tiny stand-ins but one."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import superformer as sf
from superformer import files
from superformer.cost import kit as module
from superformer.cost import latency_table, measure_kit
from superformer.cost.kit import Kit, KitError
from superformer.cost.latency import Timing
from superformer.cost.latency_table import LatencyError, LatencyTable
from superformer.errors import SuperformerError
from superformer.report import write as write_report
from superformer.runs.devices import export_kit, import_table, kit_of
from superformer.search import search

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

NETWORKS = 3
FORBIDDEN = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "superformer", "timm", "onnx", "rich", "typer", "scipy"):
            raise ImportError("the script of a kit may not import " + name)
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
import runpy
runpy.run_path(sys.argv[0], run_name="__main__")
"""
Command = Callable[..., tuple[int, str, str]]


def stand_in(shape: tuple[int, ...]) -> Any:
    """A graph that takes pictures and does almost nothing."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    given = helper.make_tensor_value_info("pixel_values", floats, ["batch", *shape[1:]])
    out = helper.make_tensor_value_info("logits", floats, ["batch", *shape[1:]])
    graph = helper.make_graph([helper.make_node("Relu", ["pixel_values"], ["logits"])], "g", [given], [out])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return SimpleNamespace(save=lambda path: onnx.save(made, path))


@pytest.fixture(scope="module")
def kit_once(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kit of the tiny run; its first network is real."""
    real, count = module.as_onnx, [0]

    def as_onnx(net: torch.nn.Module, x: torch.Tensor, any_batch: bool = False) -> Any:
        count[0] += 1
        return real(net, x, any_batch=any_batch) if count[0] == 1 else stand_in(tuple(x.shape))

    folder = tmp_path_factory.mktemp("kit") / "kit"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "as_onnx", as_onnx)
        export_kit(trained_once, folder, NETWORKS)
        assert count[0] == len(list((folder / "networks").iterdir())) == NETWORKS + 2
        next((folder / "networks").glob("04of5-*")).unlink()  # as if it had been stopped
        export_kit(trained_once, folder, NETWORKS)
        assert count[0] == NETWORKS + 3
    return folder


def run_script(kit: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Alone: -I hides the tests' own path, and everything but onnxruntime and numpy is refused."""
    line = [sys.executable, "-I", "-c", FORBIDDEN, str(kit / "measure.py"), *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=kit, env={"PATH": os.environ["PATH"]})


def times(run: Path, seconds: list[tuple[float, float]], **more: Any) -> dict[str, Any]:
    """What the script would write, had every network these medians and fastest runs."""
    kit = kit_of(sf.Run.open(run), NETWORKS)
    turns = {name: [[median, fastest, 9]] * 2 for name, (median, fastest) in zip(kit.names, seconds, strict=True)}
    about = {"format": "superformer-times", "version": 1, "finished": True, "kit": kit.fingerprint, "networks": turns}
    about |= {"seed": 0, "fitted": NETWORKS, "machine": "a board", "onnxruntime": "1.2", "python": "3.8", "numpy": "1"}
    return about | {"provider": "CPUExecutionProvider", "threads": 1, "batch": 1, "rounds": 2, "repeats": 9} | more


def write_times(run: Path, path: Path, **more: Any) -> Path:
    medians = [1e-3 * (2 + k) for k in range(NETWORKS + 2)]
    files.write_object(path, times(run, [(m, m / 2) for m in medians], **more))
    return path


# --- the kit and its script ---


def test_the_script_runs_alone_goes_on_and_is_imported(kit_once: Path, trained: Path, tmp_path: Path) -> None:
    kit = shutil.copytree(kit_once, tmp_path / "kit")
    few = ("--out", "board.json", "--rounds", "2", "--repeats", "2", "--batch", "3")
    done = run_script(kit, *few)
    assert done.returncode == 0, done.stderr
    assert "5 networks, 2 rounds" in done.stderr
    assert "about " in done.stderr
    assert done.stdout == ""
    whole = json.loads((kit / "board.json").read_text())
    assert all(len(turns) == 2 for turns in whole["networks"].values())
    cut = {k: v for k, v in whole.items() if k != "checksum"} | {"finished": False}
    names = list(whole["networks"])
    cut["networks"] = {names[0]: whole["networks"][names[0]], names[1]: whole["networks"][names[1]][:1]}
    files.write_object(kit / "board.json", cut)  # as if it had been killed
    with pytest.raises(KitError, match=r"lacks 3 of 5 networks .*: run measure.py again, it goes on"):
        import_table(trained, kit / "board.json")
    assert "3 of 10 turns are done" in run_script(kit, *few).stderr
    again = json.loads((kit / "board.json").read_text())
    assert again["networks"][names[0]] == whole["networks"][names[0]]
    assert "was begun with batch 3" in run_script(kit, *few, "--batch", "1").stderr
    table, place = import_table(trained, kit / "board.json")
    assert place == trained / "latency-onnx-1-3-board.json"
    assert (table.batch, table.threads, table.runtime, table.device, table.imported) == (3, 1, "onnx", "board", True)
    assert whole["machine"] in table.machine


def test_networks_of_several_sizes_see_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in every run of a fit, whose space has several."""
    monkeypatch.setattr(module, "as_onnx", lambda net, x, any_batch: stand_in(tuple(x.shape)))
    block = {"heads": 2, "attn": sf.times(8, of="heads"), "mlp": 32}
    arch = sf.Space("one", "vit", (sf.Stage(block, depth=2),), {"patch_size": 4, "width": 16}, 32).smallest()
    space = sf.space_around(arch, 3)
    Kit(space, 10, None, 6).write(tmp_path / "kit", lambda text: None)
    sizes = {tuple(entry["input"]) for entry in json.loads((tmp_path / "kit" / "kit.json").read_text())["networks"]}
    assert len(sizes) > 1
    done = run_script(tmp_path / "kit", "--rounds", "1", "--repeats", "1")
    assert done.returncode == 0, done.stderr


def test_the_script_refuses_a_damaged_kit_and_holds_one_network(kit_once: Path, tmp_path: Path) -> None:
    kit = shutil.copytree(kit_once, tmp_path / "kit")
    held = run_script(kit, "--hold", "03", "--seconds", "0.05")
    assert " runs in " in held.stderr
    next((kit / "networks").glob("02of5-*")).write_bytes(b"cut")
    broken = run_script(kit)
    assert broken.returncode == 1
    assert "is missing or damaged: copy the kit again" in broken.stderr
    assert not (kit / "times.json").exists()


def test_the_script_is_of_an_old_python(kit_once: Path) -> None:
    text = (kit_once / "measure.py").read_text()
    assert text == Path(measure_kit.__file__).read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {name for name in imported if name not in sys.stdlib_module_names} == {"numpy", "onnxruntime"}


def test_another_folder_is_left_alone(kit_once: Path, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(KitError, match="is no kit"):
        export_kit(trained, tmp_path / "mine", NETWORKS)
    with pytest.raises(KitError, match="kit of another run or space"):
        export_kit(trained, kit_once, NETWORKS + 1)


# --- import ---


def test_the_same_times_give_the_same_table(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured here with ONNX Runtime, or with a kit: bit for bit."""
    run, rng = sf.Run.open(trained), np.random.default_rng(0)
    seconds = [(float(f * r), float(f)) for f, r in rng.uniform(1.0, 1.5, (NETWORKS + 2, 2))]

    def measured(models: Any, *words: object, **more: object) -> list[Timing]:
        return [Timing(m, f, f, m, 9, 1, 1, "onnx", "here") for m, f in seconds]

    monkeypatch.setattr(latency_table, "measure_in_turn", measured)
    size, classes = run.facts()["img_size"], len(run.facts()["classes"])
    here = LatencyTable.build(run.space(), classes, size, runtime="onnx", networks=NETWORKS)
    files.write_object(tmp_path / "pi5.json", times(trained, seconds))
    there, _ = import_table(trained, tmp_path / "pi5.json")
    assert (there.base, there.parts, there.fit) == (here.base, here.parts, here.fit)
    genes = run.space().sample_genes(50, 1)
    np.testing.assert_array_equal(there.latency(run.space(), genes), here.latency(run.space(), genes))
    assert len(there.fit.points) == there.fit.held_out == 2


REFUSED = {
    "another kit": ({"kit": "0" * 32}, "kit of another run, space or picture size"),
    "another seed": ({"seed": 5}, "kit of another run"),
    "format": ({"format": "other"}, "is not of format"),
    "version": ({"version": 2}, "is not of format"),
    "form": ({"threads": "one"}, "does not hold what measure.py writes"),
    "huge": ({"fitted": 10**9}, "does not hold what measure.py writes"),
    "turns": ({"rounds": 3}, r"is not finished \(00of5-.*2 of 3 turns"),
}


@pytest.mark.parametrize(("change", "says"), REFUSED.values(), ids=REFUSED)
def test_foreign_and_damaged_files_change_nothing(
    trained: Path, tmp_path: Path, command: Command, change: dict[str, Any], says: str
) -> None:
    before = sorted(trained.iterdir())
    path = write_times(trained, tmp_path / "pi5.json", **change)
    with pytest.raises(KitError, match=says):
        import_table(trained, path)
    status, _, told = command("latency", "import", "--run", str(trained), str(path))
    assert (status, told.count("\n")) == (2, 1)
    assert sorted(trained.iterdir()) == before


@pytest.mark.parametrize("bad", [0.0, -1e-3, float("nan"), float("inf"), None, "1"])
def test_times_that_are_none(trained: Path, tmp_path: Path, bad: object) -> None:
    data = times(trained, [(1e-3, 1e-3)] * (NETWORKS + 2))
    name = next(iter(data["networks"]))
    data["networks"][name] = [[bad, 1e-3, 9]] * 2
    files.write_object(tmp_path / "pi5.json", data)
    with pytest.raises(KitError, match=name):
        import_table(trained, tmp_path / "pi5.json")
    path = write_times(trained, tmp_path / "pi5.json")
    path.write_text(path.read_text().replace("0.002", "0.003", 1))
    with pytest.raises(files.DamagedError, match="checksum differs"):
        import_table(trained, path)
    path.write_text("{")
    with pytest.raises(files.DamagedError, match="is damaged"):
        import_table(trained, path)
    assert not list(trained.glob("latency-*"))


@pytest.mark.parametrize("name", ["cuda", "../up", "", "a b", "CPU"])
def test_names_of_devices(trained: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(KitError, match="give another one"):
        import_table(trained, write_times(trained, tmp_path / "pi5.json"), name)


# --- a search ---

WORDS = {"evaluations": 8, "seed": 1}


def test_a_search_obeys_an_imported_device(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = import_table(trained, write_times(trained, tmp_path / "pi5.json"))
    monkeypatch.setattr("superformer.search.front.measure", None)  # nothing is measured here
    monkeypatch.setattr("superformer.search.task.measure_in_turn", None)
    space = sf.Run.open(trained).space()
    limit = float(np.median(table.latency(space, space.sample_genes(99, 0))))
    found = search(trained, {"latency": (0, limit)}, "random", WORDS | {"device": "pi5"})
    assert found["device"] == "pi5"
    assert (found["options"]["runtime"], found["options"]["threads"]) == ("onnx", 1)
    for row in found["front"]:
        arch = sf.Arch.from_json(json.dumps(row["arch"]))
        assert row["latency"] == table.latency(space, arch)[0] <= limit
        assert "measured" not in row
    page = write_report(trained).read_text()
    assert "Measured elsewhere" in page
    assert "a board, onnxruntime 1.2 (CPU)" in page
    assert "predicted latency" in page
    with pytest.raises(SuperformerError, match=r"device=pi6 cannot be used here \(imported devices of this run: pi5\)"):
        search(trained, {"latency": (0, limit)}, "random", WORDS | {"device": "pi6"})
    with pytest.raises(LatencyError, match="device=pi5 has 0 tables for throughput of batch 32"):
        search(trained, {"throughput": (1, np.inf)}, "random", WORDS | {"device": "pi5"})
    import_table(trained, write_times(trained, tmp_path / "pi5.json", threads=4))
    with pytest.raises(LatencyError, match=r"has 2 tables .*threads=1 batch=1; threads=4 batch=1.*: say threads="):
        search(trained, {"latency": (0, limit)}, "random", WORDS | {"device": "pi5"})
    again = search(trained, {"latency": (0, limit)}, "random", WORDS | {"device": "pi5", "threads": 4})
    assert again["options"]["threads"] == 4


def test_energy_is_a_cost_that_is_limited_and_sought(trained: Path, tmp_path: Path, command: Command) -> None:
    run = sf.Run.open(trained)
    kit = kit_of(run, NETWORKS)
    lines = "".join(f"{name},{5 + k}\n" for k, name in enumerate(kit.names))
    (tmp_path / "joule.csv").write_text("network,value\n" + lines)
    words = ("--unit", "mJ", "--as", "energy", "--name", "pi5")
    status, out, err = command("latency", "import", "--run", str(trained), str(tmp_path / "joule.csv"), *words)
    assert status == 0, err
    assert "--cost-max energy=9mJ" in out
    (tmp_path / "joule.json").write_text(json.dumps({"values": {n: 5 + k for k, n in enumerate(kit.names)}}))
    table, place = import_table(trained, tmp_path / "joule.json", "pi5", "energy", "mJ")
    assert (place.name, table.unit) == ("cost-energy.json", "mJ")
    limit = float(np.median(table.latency(kit.space, kit.space.sample_genes(99, 0))))
    search_words = ("--method", "random", "evaluations=8", "objectives=accuracy,energy")
    limited = ("--cost-max", f"energy={limit}mJ")
    status, out, err = command("search", "--run", str(trained), *limited, *search_words)
    assert status == 0, err
    assert "mJ energy" in out
    found = run.front()
    assert found["objectives"] == ["accuracy", "energy"]
    assert all(row["energy"] <= limit for row in found["front"])
    page = write_report(trained).read_text()
    assert "predicted energy" in page
    assert '"units":{"energy":"mJ"}' in page
    for word in ("energy=3J", "energy", "power=3mJ"):
        assert command("search", "--run", str(trained), "--cost-max", word)[0] == 2


OWN = {
    "missing": (lambda n: [f"{name},1" for name in n[1:]], r"lacks 1 of 5 networks \(00of5-"),
    "foreign": (lambda n: [f"x{name},1" for name in n], "is no network of this run's kit"),
    "zero": (lambda n: [f"{name},{k}" for k, name in enumerate(n)], "must be a finite number above 0"),
    "words": (lambda n: [f"{name},many" for name in n], "is not network,value"),
    "twice": (lambda n: [f"{name},1" for name in [*n, n[0]]], "is not network,value"),
    "nothing": (lambda n: [], "is no network of this run's kit"),
}


@pytest.mark.parametrize(("lines", "says"), OWN.values(), ids=OWN)
def test_values_that_cannot_be_used(trained: Path, tmp_path: Path, lines: Any, says: str) -> None:
    kit = kit_of(sf.Run.open(trained), NETWORKS)
    (tmp_path / "own.csv").write_text("\n".join(lines(kit.names)))
    with pytest.raises(KitError, match=says):
        import_table(trained, tmp_path / "own.csv", "pi5", "energy", "mJ")
    with pytest.raises(KitError, match="latency is in s, ms, us"):
        import_table(trained, tmp_path / "own.csv", "pi5", unit="mJ")
    with pytest.raises(KitError, match="needs its unit"):
        import_table(trained, tmp_path / "own.csv", "pi5", "energy")
    with pytest.raises(KitError, match="means something already"):
        import_table(trained, tmp_path / "own.csv", "pi5", "macs", "M")
    assert not list(trained.glob("cost-*"))


def test_own_values_in_a_unit_of_time_are_latencies(trained: Path, tmp_path: Path) -> None:
    kit = kit_of(sf.Run.open(trained), NETWORKS)
    (tmp_path / "phone.csv").write_text("".join(f"{name},{2 + k}\n" for k, name in enumerate(kit.names)))
    table, place = import_table(trained, tmp_path / "phone.csv", unit="ms")
    assert place.name == "latency-onnx-1-1-phone.json"
    assert (table.fit.fastest, table.fit.slowest) == (2e-3, 6e-3)


def test_kits_of_other_sizes_and_spaces_have_other_fingerprints() -> None:
    one, other = sf.space("s3-initial"), sf.space("nasvit")
    kits = [Kit(one, 10, 32, 2), Kit(one, 10, 64, 2), Kit(one, 9, 32, 2), Kit(one, 10, 32, 3), Kit(other, 10, 32, 2)]
    assert len({kit.fingerprint for kit in kits}) == len(kits)
