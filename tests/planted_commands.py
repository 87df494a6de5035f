"""The planted bugs of what one command does: trimming, comparisons and plans; and all of them."""

from tests.planted import OF_PARTS, Bug

TRIMMING = (
    Bug(
        "merge_dropped",
        "jaxformer/tokenizers/trimming.py",
        "if {a, b, a + b.removeprefix(inside)} <= known.keys()]",
        "if {a, b, a + b.removeprefix(inside)} <= known.keys()][1:]",
        "tests/tokenizers/test_trimming.py::test_merges_of_kept_tokens_stay",
    ),
    Bug(
        "special_tokens_removed",
        "jaxformer/tokenizers/trimming.py",
        "kept = {token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)}",
        "kept = set[int]()",
        "tests/tokenizers/test_trimming.py::test_special_tokens_stay",
    ),
    Bug(
        "bias_has_the_first_rows",
        "jaxformer/tasks/trim.py",
        "leaf = jnp.take(leaf, rows(tokens, size, before.shape[axis]), axis=axis)",
        "leaf = jnp.take(leaf, rows(tokens, size, before.shape[axis]), axis=axis) if leaf.ndim > 1 else "
        "leaf[: after.shape[0]]",
        "tests/tasks/test_trim.py::test_each_table_is_cut_along_its_tokens",
    ),
    Bug(
        "projection_has_the_first_columns",
        "jaxformer/tasks/trim.py",
        "leaf = jnp.take(leaf, rows(tokens, size, before.shape[axis]), axis=axis)",
        "leaf = leaf[:, : after.shape[1]] if axis else jnp.take(leaf, rows(tokens, size, before.shape[axis]), axis=0)",
        "tests/tasks/test_trim.py::test_each_table_is_cut_along_its_tokens",
    ),
    Bug(
        "trimmed_tables_not_compared",
        "jaxformer/tasks/trim_proof.py",
        "if expected.dtype != after.dtype or expected.tobytes() != np.asarray(after).tobytes():",
        "if expected.dtype != after.dtype or expected.shape != after.shape:",
        "tests/tasks/test_trim.py::test_wrong_tables_leave_nothing[_one_changed]",
    ),
)

COMPARED = (
    Bug(
        "as_many_seeds_drawn_as_there_are",
        "jaxformer/evaluation/seeds.py",
        "size=(max(len(group) - 1, 1), draws))",
        "size=(len(group), draws))",
        "tests/evaluation/test_seeds.py::test_the_spread_of_the_mean_over_seeds_is_that_of_the_trainings",
    ),
    Bug(
        "spreads_of_two_groups_pooled",
        "jaxformer/evaluation/seeds.py",
        "sum(parts) ** 2 / squares if squares else 1.0",
        "n + m - 2.0 if squares else 1.0",
        "tests/evaluation/test_seeds.py::test_a_difference_is_that_of_scipy",
    ),
    Bug(
        "groups_of_one_seed_after_another",
        "jaxformer/tasks/comparison.py",
        'by_seed = {cell: sorted(zip(x["seeds"], x["values"], strict=True)) for cell, x in parts.items()}',
        'by_seed = {cell: list(zip(x["seeds"], sorted(x["values"]), strict=True)) for cell, x in parts.items()}',
        "tests/tasks/test_comparison.py::test_values_are_paired_by_seed",
    ),
    Bug(
        "program_of_one_device",
        "jaxformer/planning/program.py",
        "work = ((flops or 0) + full * (slower - 1)) / devices",
        "work = (flops or 0) + full * (slower - 1)",
        "tests/planning/test_program.py::test_a_data_parallel_step_by_hand",
    ),
)

BUGS = OF_PARTS + TRIMMING + COMPARED
