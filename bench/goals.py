"""What the summary keys of the cases shall show; a bench prints them, it does not move them."""

from __future__ import annotations

GOALS: dict[str, tuple[str, float]] = {
    "goodput_over_tcp_offload": (">=", 1.0),
    "goodput_over_bbr_offload": (">=", 1.25),
    "goodput_over_tcp_mtu": (">=", 1.0),
    "goodput_over_ceiling": (">=", 0.85),
    "clean_kernel_drops": ("==", 0),
    "clean_overhead": ("<=", 1.005),
    "loss1_p99_over_clean_p50": ("<=", 2.0),
    "loss1_gloo_p99_over_dblp": (">=", 5.0),
    "loss5_gloo_over_dblp": (">=", 15.0),
    "loss5_mtu_gloo_over_dblp": (">=", 2.0),
    "burst_over_clean": ("<=", 1.5),
    "burst_baseline_over_dblp": (">=", 4.0),
    "tail_ratio": (">=", 2.0),
    "mean_ratio": (">=", 1.6),
    "incast_link_share": (">=", 0.93),
    "incast_waste": ("<=", 0.05),
    "incast_fairness": ("<=", 1.1),
    "incast_gloo_over_dblp": (">=", 1.35),
    "small_over_gloo": ("<=", 1.0),
    "hog_p99_ratio": ("<=", 1.5),
    "sharded_exact_over_gloo": ("<=", 1.0),
    "sharded_tolerant_over_gloo": ("<=", 0.65),
    "sharded_loss1_p99_over_gloo": ("<=", 0.3333),
    "sharded_incast_over_gloo": ("<=", 0.78),
    "sharded_incast_tolerant_over_gloo": ("<=", 0.5),
}
