"""What was searched and how to do it again: data, split, seeds, versions, machine, commands, recipe; what is to do."""

from __future__ import annotations

import math
import shlex
import time

import superformer
from superformer.cost import cost
from superformer.draw.sketch import space_table
from superformer.errors import SuperformerError, amount
from superformer.machine import machine
from superformer.recipes import names, resolve
from superformer.recipes.searching import Options, method_settings
from superformer.report.inputs import NOTHING, Inputs, count
from superformer.report.markup import Section, command, details, pairs, paragraph, several, table, tag
from superformer.space.costs import Exact

CLASSES, COMMANDS = 24, 60
"""That are told."""
TOLD_FACTS = ("data", "fingerprint", "classes", "img_size", "format")


def searched(inputs: Inputs) -> Section:
    """The data, the split, the space, the seeds, versions and the machine."""
    facts, recipe = inputs.facts, inputs.recipe
    classes = [str(name) for name in facts.get("classes", ())]
    more = f", and {len(classes) - CLASSES} more" if len(classes) > CLASSES else ""
    part = recipe.data.search
    carved = f"{100 * part:g} % of the training pictures" if part < 1 else f"{part:g} training pictures"
    split = f"{carved} of each class, the same for every seed. Networks are chosen on it, and never trained on it"
    split = split if part else "none: the network is trained on all training pictures"
    unseen = "never seen by training or search; they are only read for the numbers that are called test accuracy"
    rows: list[tuple[object, object]] = [
        ("data", tag("code", facts.get("data", NOTHING))),
        ("fingerprint of the pictures", tag("code", facts.get("fingerprint", NOTHING))),
        ("classes", f"{len(classes)}: {', '.join(classes[:CLASSES])}{more}"),
        ("picture size", f"{facts.get('img_size', '-')} pixels"),
        ("search split", split),
        ("test pictures", unseen),
    ]
    rows += [(name.replace("_", " "), _told(value)) for name, value in facts.items() if name not in TOLD_FACTS]
    if inputs.front:
        seed = (inputs.front.get("options") or {}).get("seed", 0)
        sought = ", ".join(inputs.front.get("objectives", ()))
        rows.append(("search", f"{inputs.front.get('method')}, seed {seed}; sought: {sought}"))
    rows += [("recipe", f"{recipe.name}, seed {recipe.seed}"), *_versions(inputs)]
    space = inputs.space
    reach = Exact.of(space, ("macs", "params"), inputs.num_classes).range
    macs, params = (" to ".join(map(amount, reach[name])) for name in ("macs", "params"))
    about = f"{space.name or 'The space'} ({space.family}): {count(space.size)} architectures of {macs} MACs and "
    about += f"{params} parameters."
    lines = [[r["where"], r["choice"], r["values"]] for r in space_table(space)]
    choices = details("Its choices", table(["where", "choice", "values"], lines, "Choices", words=3))
    body = several(pairs(rows), tag("h3", "The space"), paragraph(about), choices)
    return Section("searched", "What was searched", body)


def _told(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_told(v)}" for k, v in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _versions(inputs: Inputs) -> list[tuple[object, object]]:
    """Those of the commands, if they were noted; and of this page."""
    told = ("superformer", "timm", "machine")  # the machine's name tells torch's version
    used = dict.fromkeys(tuple(str(c.get(name) or "?") for name in told) for c in inputs.commands)
    this = f"written {time.strftime('%Y-%m-%d %H:%M')} by superformer {superformer.__version__} on {machine()}"
    return [*(("run with", f"superformer {own}, timm {timm}, on {on}") for own, timm, on in used), ("this page", this)]


def repeat(inputs: Inputs) -> Section:
    """The commands that make this run, and the whole recipe."""
    last = inputs.commands[-COMMANDS:]
    given = list(dict.fromkeys(f"superformer {shlex.join(map(str, c.get('words') or []))}" for c in last))
    first = f" (the last {COMMANDS} of {len(inputs.commands)})" if len(inputs.commands) > COMMANDS else ""
    parts = []
    if given:
        parts += [paragraph(f"The commands of this run, as they were given{first}:"), command("\n".join(given))]
    noted = {(c.get("words") or [""])[0] for c in inputs.commands}
    train, *search = rebuilt(inputs)
    lost = [] if noted & {"train", "evolve-space", "demo"} else [train]
    lost += [] if noted & {"search", "demo"} else search
    if lost:
        told = "What made this run was not noted. Commands that do the same, from its recipe and its last search:"
        parts += [paragraph(told), command("\n".join(lost))]
    text = tag("pre", tag("code", inputs.recipe_text), tabindex="0")
    return Section("repeat", "Do it again", several(*parts, details("The whole recipe", text, id="recipe")))


def rebuilt(inputs: Inputs) -> list[str]:
    """Commands from what the run's files say."""
    first = inputs.run.folder / "spaces" / "0" / "recipe.yaml"
    what, recipe = ("evolve-space", str(first)) if inputs.evolution and first.exists() else ("train", _recipe(inputs))
    data = str(inputs.facts.get("data", "SPEC"))
    again = f"{inputs.folder.rstrip('/')}-again"
    out = [shlex.join(["superformer", what, "--recipe", recipe, "--data", data, "--run", again])]
    if inputs.front:
        out.append(shlex.join(["superformer", "search", "--run", again, *_search(inputs)]))
    return out


def _recipe(inputs: Inputs) -> str:
    """A published recipe by its name, if the run has its very settings; else the run's own file."""
    name = inputs.recipe.name
    return name if name in names() and resolve(name) == inputs.recipe else str(inputs.run.recipe_file)


def _search(inputs: Inputs) -> list[str]:
    method = str(inputs.front.get("method"))
    words = [
        *(word for name, ends in inputs.limits.items() for word in _limit(inputs, name, *ends)),
        "--method",
        method,
    ]
    usual = inputs.recipe.search.model_dump(mode="json") if method == inputs.recipe.search.method else {}
    try:
        usual = method_settings(method, usual).model_dump(mode="json")
    except SuperformerError:
        usual = {}
    for part, known in (("settings", usual), ("options", Options().model_dump(mode="json"))):
        for key, value in (inputs.front.get(part) or {}).items():
            if value is not None and key != "method" and value != known.get(key):
                words.append(f"{key}={','.join(map(str, value)) if isinstance(value, list) else value}")
    return words


def _limit(inputs: Inputs, name: str, low: float, high: float) -> list[str]:
    if name == "throughput":
        return ["--throughput-min", f"{low:.12g}"] if low else []
    if math.isinf(high):
        return []
    if name in inputs.imported:
        return ["--cost-max", f"{name}={high:.12g}{inputs.imported[name].unit}"]
    if name == "latency":
        return ["--latency-max", f"{1e3 * high:.12g}ms"]
    power, unit = next(((p, u) for p, u in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if high >= p), (1, ""))
    return [f"--{name}-max", f"{high / power:.12g}{unit}{'B' if name == 'memory' else ''}"]


def missing(inputs: Inputs) -> Section | None:
    """What the run does not have yet, and the command that makes it."""
    steps: list[tuple[str, str]] = []
    run = shlex.quote(inputs.folder)
    if not inputs.trained:  # by the command that began it, if it was noted
        told = "The supernet is not trained yet. The same words go on with it, if it was interrupted:"
        noted = (row.get("words") or [] for row in inputs.commands)
        begun = (words for words in noted if isinstance(words, list) and words[:1] in (["train"], ["evolve-space"]))
        data = str(inputs.facts.get("data", "SPEC"))
        usual = ["train", "--recipe", _recipe(inputs), "--data", data, "--run", inputs.folder]
        steps.append((told, f"superformer {shlex.join(map(str, next(begun, usual)))}"))
    if not inputs.front:  # with a limit that about half of the networks meet
        archs = inputs.space.sample(99, seed=0)
        macs = sorted(cost(inputs.space, archs, num_classes=inputs.num_classes).macs)
        limit = amount(float(f"{macs[49]:.2g}")).replace(" ", "")
        steps.append(("It was not searched yet:", f"superformer search --run {run} --macs-max {limit}"))
    if not inputs.retrained:
        steps.append(("No network was retrained yet:", f"superformer retrain --run {run}"))
    if not inputs.bench:
        steps.append(("Nothing was timed yet:", f"superformer bench {run}"))
    if not steps:
        return None
    steps.append(("Then write this page again:", f"superformer report --run {run}"))
    body = tag("ol", *(tag("li", told, command(words)) for told, words in steps), class_="todo")
    return Section("missing", "Still to do", body)
