"""A recipe: the complete settings of a run. Every part has a name, a meaning and a default. Lengths of time are in
epochs where a paper gives epochs, and in shares of the training where it gives shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from superformer.recipes.searching import COSTS, Nsga2, SearchMethod, SpaceEvolution
from superformer.settings import Channels, Deviations, Range, SettingsBase
from superformer.settings import Limits as Limits
from superformer.space.arch import LARGEST_PICTURE

Share = Annotated[float, Field(ge=0, lt=1)]
LARGEST_RATE = 1e12
"""Of learning; far above what any optimiser survives, but finite after every step."""
OFF = BeforeValidator(lambda value: "off" if value is False else value)
"""YAML reads the word off as false."""
WORDS = BeforeValidator(lambda value: [w.strip() for w in value.split(",")] if isinstance(value, str) else value)
"""Several words with commas between them."""
Weights = Literal["finetuned", "scratch"]
"""How a network by itself begins: with the weights it inherits from the supernet, or with new ones."""
LARGER_PICTURES = {"lr": 1e-5, "weight_decay": 1e-8, "schedule": "constant", "warmup_epochs": 0}


class Data(SettingsBase):
    """How pictures are split, prepared and varied."""

    search: float = Field(
        0.1, ge=0, description="search split: a share of the training data, from 1 on pictures a class; 0: none"
    )
    mean: Channels = Field((0.485, 0.456, 0.406), description="of each channel, subtracted")
    std: Deviations = Field((0.229, 0.224, 0.225), description="of each channel, divided by")
    augment: Literal["none", "shift", "timm"] = Field("timm", description="shift: small pictures, all of them at once")
    shift: float = Field(0.125, ge=0, le=0.5, description="shift: the most a picture is moved, a share of its side")
    scale: Range = Field((0.08, 1.0), description="timm: share of a picture that a random crop keeps")
    ratio: Range = Field((0.75, 4 / 3), description="timm: sides of a random crop")
    mirror: float = Field(0.5, ge=0, le=1, description="probability of a left-right flip; 0 for digits and letters")
    randaugment: str | None = Field(None, description="timm's auto-augment string, such as rand-m9-mstd0.5-inc1")
    color_jitter: float | None = Field(
        None, ge=0, le=10, description="timm: strength of colour jitter (not used with randaugment)"
    )
    erase: float = Field(0.0, ge=0, le=1, description="probability of random erasing")
    interpolation: str = "bicubic"
    crop: float = Field(0.875, gt=0, le=1, description="share of a test picture that the centre crop keeps")
    # batches of 64 training pictures of all classes; 0: as runs have it that were begun before this was a setting
    calibration: int = Field(64, ge=0, description="batches that a sub-network's batch norms are estimated on")
    repeats: int = Field(1, ge=1, description="repeated augmentation: times a picture appears, of as many fewer")
    views: int = Field(0, ge=0, description="timm: ways to vary a picture, an epoch each, that come again; 0: ever new")
    workers: int = Field(2, ge=0, description="processes that prepare pictures (augment=timm)")
    memory: float = Field(2.0, ge=0, description="gigabytes of decoded pictures; larger sets are decoded each time")

    @model_validator(mode="after")
    def _views_of_pictures(self) -> Data:
        if self.views and (self.augment != "timm" or self.repeats > 1):
            raise ValueError("data.views goes with augment=timm and repeats=1: set data.views=0")
        return self


class Mix(SettingsBase):
    """Mixup, CutMix and label smoothing; timm's words."""

    mixup: float = Field(0.0, ge=0, le=1000)
    cutmix: float = Field(0.0, ge=0, le=1000)
    prob: float = Field(1.0, ge=0, le=1)
    switch: float = Field(0.5, ge=0, le=1, description="probability of CutMix where both are on")
    smoothing: float = Field(0.1, ge=0, lt=1)
    # token labelling (ViT-ResNAS, section 2.4): patch-wise CutMix switched with Mixup, or half a batch each as released
    patches: Annotated[Literal["off", "switch", "halves"], OFF] = "off"


class Identity(SettingsBase):
    """The expected cost of a sub-network that the probability of identities is set for (ViTAS v1, section 4.3): one of
    these. Latency and throughput (appendix B: "900 GPU throughput") are those of a table that is measured when a run
    begins, where it trains; what was found is a fact of the run."""

    macs: Limits | None = None
    params: Limits | None = None
    latency: Limits | None = Field(None, description="seconds for a batch")
    throughput: Limits | None = Field(None, description="pictures a second; released: batches of 256")
    batch: int | None = Field(None, ge=1, description="pictures at once; none: 1 for latency, 32 for throughput")
    threads: int = Field(1, ge=1, description="latency and throughput: threads")
    seconds: float = Field(20, gt=0, description="latency and throughput: time to measure networks for a table")

    @model_validator(mode="after")
    def _one_cost(self) -> Identity:
        if sum(getattr(self, name) is not None for name in COSTS[:4]) != 1:
            raise ValueError(f"one of {', '.join(COSTS[:4])} as [low, high] is needed")
        return self

    @property
    def cost(self) -> str:
        return next(name for name in COSTS[:4] if getattr(self, name) is not None)


def _read_identity(value: Any) -> Any:
    """One clear line for what is neither limits nor a probability."""
    if isinstance(value, Mapping):
        return Identity.read(value, "sampling.identity", ValueError)  # type: ignore[arg-type]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not 0 < value < 1:
        raise ValueError("a probability of identities lies between 0 and 1")
    if not number and not isinstance(value, tuple | list | Identity | None):
        raise ValueError("[low, high] of expected MACs, {throughput: [low, high]} or a probability is needed")
    return value


class Sampling(SettingsBase):
    """Which sub-networks a step trains."""

    rule: Literal["single", "sandwich", "multi"] = "single"
    networks: int = Field(1, ge=0, description="multi: in a batch; sandwich: beside the largest and the smallest")
    over: Literal["choices", "architectures"] = "choices"
    macs: Limits | None = Field(None, description="draw random networks within these MACs")
    params: Limits | None = Field(None, description="draw random networks within these parameters")
    # the probability of identities, or such that the expected MACs, or another cost, lie here (ViTAS v1, section 4.3)
    identity: Annotated[Limits | Identity | float | None, BeforeValidator(_read_identity)] = None
    even: float = Field(0.0, ge=0, le=1, description="share of random networks that differ in depth and size alone")
    warmup: float = Field(0.0, ge=0, le=1, description="share of the training that admits smaller choices bit by bit")
    sides: Literal["left", "both", "random"] = Field("left", description="bilateral sharing: which sides a step runs")


class Loss(SettingsBase):
    """What a sub-network is trained towards."""

    distill: Literal["none", "kl", "alpha"] = Field("none", description="the largest of a sandwich teaches the others")
    alpha: tuple[Annotated[float, Field(ge=-100, le=100)], Annotated[float, Field(ge=-100, le=100)]] = Field(
        (-1.0, 1.0), description="ends of the adaptive alpha-divergence"
    )
    clip: float = Field(5.0, gt=0, description="alpha-divergence: largest importance ratio")
    teachers: tuple[str, ...] = Field((), description="outside teachers: timm models, or folders with networks")
    teacher_size: Literal["own", "student", "larger"] = Field(
        "own", description="own: pictures at the size that teachers are made for; larger: cut at that size for all"
    )
    teacher_labels: Literal["soft", "hard"] = Field("soft", description="hard: the class they find most likely (DeiT)")
    teacher_scale: float = Field(1.0, gt=0, description="factor of teachers' logits (5 sharpens, as NASViT released)")
    teacher_weight: float | None = Field(
        None, ge=0, le=1, description="share of the teachers' targets against the labels; none: 1, of hard ones 0.5"
    )
    features: float = Field(
        0.0, ge=0, description="weight of the difference of final tokens from the teachers' (which are folders)"
    )
    keep: str | None = Field(
        None, pattern=r"^[^\x00]+$", description="folder of what teachers said of data.views; trainings may share it"
    )
    patches: float = Field(1.0, ge=0, description="weight of the patch tokens' loss in token labelling")


class Gradients(SettingsBase):
    """How the gradients of a step's sub-networks become one."""

    rule: Literal["sum", "project"] = "sum"
    priority: Literal["subnets", "supernet"] = Field("subnets", description="whose stays whole (NASViT, table 7)")
    start: float = Field(0.0, ge=0, le=1, description="project: share of the training before it begins")
    cap: float | None = Field(
        None, ge=0, description="project: the most that is taken out, as a multiple (2 as released)"
    )
    clip: float | None = Field(None, gt=0, description="largest norm of the whole gradient")
    clip_subnets: float | None = Field(None, gt=0, description="largest norm of the others' sum, before joining")
    travel: Literal["float32", "bfloat16"] = Field("float32", description="between processes; bfloat16: half the bytes")


class Optimizer(SettingsBase):
    name: str = Field("adamw", description="any optimiser of timm")
    lr: float = Field(1e-3, gt=0, le=LARGEST_RATE)
    weight_decay: float = Field(0.05, ge=0)
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0, le=1)
    momentum: Share = 0.9
    no_decay: tuple[str, ...] = Field((), description="parts of names of weights that do not decay; nor do vectors")
    decay_vectors: bool = Field(False, description="vectors decay as well: biases, norms")
    own_no_decay: bool = Field(True, description="nor what a family itself names: tokens, positions, scales")
    decay_unused: bool = Field(False, description="shrink also what a step did not use, as released trainers do")
    schedule: Literal["cosine", "constant", "poly", "steps"] = "cosine"
    power: float = Field(0.9, gt=0, le=10, description="poly: of the share of the training that is left; 1 is linear")
    milestones: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (), description="steps: epochs after which the rate is a tenth"
    )
    warmup_epochs: float = Field(5, ge=0)
    warmup_steps: int | None = Field(None, ge=0, description="the same in steps, where a paper counts those")
    warmup_lr: float = Field(1e-6, ge=0, le=LARGEST_RATE)
    min_lr: float = Field(1e-5, ge=0, le=LARGEST_RATE)


class Start(SettingsBase):
    """Weights to begin with."""

    timm: str | None = Field(None, description="a timm network of the family; heads and hidden units are sorted")
    pretrained: bool = Field(True, description="timm: with its published weights")
    checkpoint: str | None = Field(None, description="timm: a file of weights instead (safetensors)")
    run: str | None = Field(None, description="the supernet of an earlier run: what fits is copied")
    network: str | None = Field(None, description="a folder with a stand-alone network of the family")
    orders: str | None = Field(None, description="a file of its units by importance (superformer importance)")


class Length(SettingsBase):
    """How long something is trained, with how many pictures at a time."""

    epochs: float = Field(..., gt=0)
    batch_size: int = Field(128, ge=1, description="of all processes together")


class Train(Length):
    accumulate: int = Field(1, ge=1, description="parts that a batch is computed in")
    drop_path: float = Field(0.0, ge=0, lt=1)
    dropout: float = Field(0.0, ge=0, lt=1, description="of what the classifier reads (NASViT, table 5)")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of averaged weights, for evaluation and search")
    amp: Annotated[Literal["off", "auto", "bfloat16", "float16"], OFF] = Field(
        "off", description="precision of products; auto: bfloat16 where the device has units for it, else off"
    )
    recompute: bool = Field(False, description="blocks again in the backward pass: less memory, a third more time")
    compile: bool = Field(False, description="torch.compile, of a network by itself: minutes first, then faster")
    threads: int | None = Field(None, ge=1, description="of a process; none: torch's; 1 is best for small networks")
    sync_norm: bool = Field(True, description="batch norms take the pictures of all processes, not each its own")
    channel_sort: float = Field(0.0, ge=0, le=1, description="share of the training in which channels are sorted")


class BySize(SettingsBase):
    """A change for networks of some size."""

    above: float | None = Field(None, gt=0, description="of so many MACs or more, at the size of its own pictures")
    below: float | None = Field(None, gt=0, description="of fewer MACs")
    change: dict[str, Any]

    def meant(self, macs: float) -> bool:
        return (self.above is None or macs >= self.above) and (self.below is None or macs < self.below)


class Retrain(SettingsBase):
    """How a found network is trained by itself: changes of its supernet's recipe, for inherited weights that are tuned,
    for new ones, for networks of some size; and further ones where the result is tuned for larger pictures."""

    weights: Weights = Field("finetuned", description="begin with inherited or with new weights")
    finetuned: dict[str, Any] = {"train": {"epochs": 30}, "optimizer": {"lr": 1e-4, "warmup_epochs": 0}}
    scratch: dict[str, Any] = {}
    by_macs: tuple[BySize, ...] = ()
    larger: dict[str, Any] = {"train": {"epochs": 10}, "optimizer": LARGER_PICTURES}


class Watch(SettingsBase):
    """Health while training, and what is kept."""

    every: float = Field(1, gt=0, description="epochs between checks of the watched sub-networks")
    networks: int = Field(3, ge=0, description="fixed random sub-networks watched beside the smallest and the largest")
    pictures: int = Field(1024, ge=1, description="the most of the search split to use for a check")
    stop: float | None = Field(
        None, gt=0, description="epochs without a better mean of the checks that end the training"
    )
    log: int = Field(10, ge=1, description="steps between lines of metrics.jsonl")
    conflicts: int = Field(10, ge=0, description="steps between measurements of the conflict of gradients; 0: never")
    checkpoint_seconds: float = Field(60, ge=0)
    checkpoint_steps: int | None = Field(None, ge=1, description="also after so many steps")
    keep: int = Field(3, ge=1, description="checkpoints kept")
    parts_above: float = Field(2.0, ge=0, description="gigabytes of a checkpoint of which each process writes a part")
    explode: float = Field(20, gt=1, description="a loss so many times the recent one: the step is skipped")
    patience: int = Field(10, ge=1, description="skipped steps in a row that stop the run")


class Recipe(SettingsBase):
    """Everything that a training run depends on, but the pictures."""

    name: str
    about: str = ""
    space: str | dict[str, Any] = Field(description="a published one, a file, or the space itself as in space.json")
    narrow: dict[str, Any] = Field(default_factory=dict, description="keep only these values of choices")
    img_size: int | None = Field(
        None, ge=1, le=LARGEST_PICTURE, description="input size, where the space does not search it"
    )
    sharing: Literal["ordinal", "bilateral", "cyclic", "cyclic-groups"] = "ordinal"
    # which weights are private to a patch size, a head count, a type (ViTAS v1, table 2): cls_token,qk; none; all
    private: Annotated[tuple[str, ...] | None, WORDS] = Field(None, description="null: as the space says")
    # where identities sit: at the end of a stage (ViTAS v2, section 5), or anywhere (v1)
    identity: Literal["shifted", "free"] | None = Field(None, description="null: as the space says")
    seed: int = Field(0, ge=0)
    data: Data = Data()
    mix: Mix = Mix()
    sampling: Sampling = Sampling()
    loss: Loss = Loss()
    gradients: Gradients = Gradients()
    optimizer: Optimizer = Optimizer()
    train: Train
    start: Start = Start()
    watch: Watch = Watch()
    evolve: SpaceEvolution = Field(SpaceEvolution(), description="how superformer evolve-space moves the space")
    search: SearchMethod = Field(Nsga2(), discriminator="method", description="the method of superformer search")
    retrain: Retrain = Field(Retrain(), description="how superformer retrain trains the network that was found")
    sizes: dict[str, dict[str, Any]] = Field({}, description="changes that a published space brings, by its name")
