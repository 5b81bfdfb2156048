"""The words that several commands take, with what their help says."""

from __future__ import annotations

from typing import Annotated

import typer

Name = Annotated[str | None, typer.Argument(help="Show one of them in full.")]
Draw = Annotated[str | None, typer.Option("--draw", metavar="FILE.svg", help="Write a picture of the network to this file, too.")]
RecipeName = Annotated[str, typer.Option("--recipe", metavar="NAME|FILE", help="A published recipe (superformer recipes) or a YAML file.")]
DataSpec = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="SPEC",
        help="digits (embedded); a folder of one folder per class; a .npz with images and labels; train=PATH,test=PATH; or a timm reader.",
    ),
]
RunFolder = Annotated[str, typer.Option("--run", metavar="DIR", help="The folder of the run.")]
Changes = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as train.epochs=10.")]
ArchWords = Annotated[
    list[str] | None,
    typer.Option("--arch", metavar="WHICH", help="best, smallest, largest, a key of the front, or a JSON file; repeatable."),
]
ArchWord = Annotated[str, typer.Option("--arch", metavar="WHICH", help="best, smallest, largest, a key of the front, or a JSON file.")]
MacsMax = Annotated[str | None, typer.Option("--macs-max", metavar="600M", help="The most multiply-accumulates of a network.")]
ParamsMax = Annotated[str | None, typer.Option("--params-max", metavar="5M", help="The most parameters.")]
LatencyMax = Annotated[str | None, typer.Option("--latency-max", metavar="20ms", help="The longest time for a picture, measured here.")]
MethodName = Annotated[str | None, typer.Option("--method", metavar="NAME", help="evolution, nsga2, predictor, random or exhaustive.")]
MemoryMax = Annotated[str | None, typer.Option("--memory-max", metavar="20MB", help="The most memory of activations, for one picture.")]
ThroughputMin = Annotated[str | None, typer.Option("--throughput-min", metavar="500", help="The fewest pictures a second, measured here.")]
Split = Annotated[str, typer.Option("--split", help="test, or search (what searching sees).")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON instead of tables.")]
AnalysisWords = Annotated[list[str] | None, typer.Argument(metavar="[PART]... [KEY=VALUE]...", help="What to look at, and settings.")]
