"""Estimates what a model needs on given machines: memory, communication and time of each layout.

Pure functions over frozen dataclasses, without torch. `choice.plan` is the entry. `plan_report` and
`job_manifest` turn its result into a text and into a TrainingJob. Sizes are bytes, times are
seconds, and rates are per second, unless a name has another unit.

Sources, by the short names used in comments:
- ZeRO: Rajbhandari et al., 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
  Models".
- Megatron-2: Narayanan et al., 2021, "Efficient Large-Scale Language Model Training on GPU
  Clusters".
- Recomputation: Korthikanti et al., 2022, "Reducing Activation Recomputation in Large Transformer
  Models".
- PaLM: Chowdhery et al., 2022, appendix B (FLOPs per token, model FLOPs utilisation).
- Ring: Thakur, Rabenseifner & Gropp, 2005, "Optimization of Collective Communication Operations in
  MPICH".
"""
