"""What a run tells about its method: error distributions, rank correlation, gradient conflicts, attention distances,
seeds.

`run.analyse` gathers it in ``DIR/analysis.json``, which the report reads; each part can be called by itself. `settings`
says what can be asked (without torch, for the command line); `bench` measures latency."""
